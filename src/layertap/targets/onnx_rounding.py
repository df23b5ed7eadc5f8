"""What the integers of a quantised ONNX graph represent: the scale and the zero point of each rounded value.

A value's scale is an input of the operation that makes it, or of the DequantizeLinear that reads it. Operations that
only move elements hand their input's scale on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ROUNDS = frozenset({"QuantizeLinear", "DequantizeLinear"})
_ROUNDED = "_quantized"
"""How ONNX Runtime's quantiser ends the name of a value of integers."""
_SCALE_AT = {
    "QuantizeLinear": 1,
    "QLinearConv": 6,
    "QLinearMatMul": 6,
    "QLinearAdd": 6,
    "QLinearMul": 6,
    "QLinearConcat": 0,
    "QLinearWhere": 7,
    "QGemm": 7,
    "QLinearAveragePool": 3,
    "QLinearGlobalAveragePool": 3,
    "QLinearLeakyRelu": 3,
    "QLinearReduceMean": 3,
    "QLinearSigmoid": 3,
    "QLinearSoftmax": 3,
}
"""Operation → which of its inputs is the scale of its output; the zero point comes after it."""
_MOVES = frozenset(
    {
        *("DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Reshape", "Slice", "SpaceToDepth"),
        *("Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    }
)
"""Operations whose output has no other elements than their first input."""


_SIGNED = frozenset({"QGemm", "QLinearAdd", "QLinearConv", "QLinearMatMul"})
"""Operations that give numbers of both signs, unless an activation was put into their rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """The values of integers in a graph."""

    scales: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Value → its scale and zero point, where one scale holds for all of it."""
    integers: set[str] = field(default_factory=set)
    """All of them."""
    clipped: set[str] = field(default_factory=set)
    """Those that cannot be below zero, although what made them could: an activation is in their rounding."""


def read_rounding(graph: Any) -> Rounding:
    """Which values of a graph are integers, and what they stand for."""
    single = {tensor.name: tensor for tensor in graph.initializer if math.prod(tensor.dims) == 1}
    found = Rounding()
    moving: set[str] = {value.name for value in graph.input}
    for node in graph.node:
        first = node.input[0] if node.input else ""
        if any(name in moving for name in node.input):
            moving.update(node.output)
        at = _SCALE_AT.get(node.op_type, len(node.input))
        if node.op_type == "DequantizeLinear" and first in moving:
            found.integers.add(first)
            _put(found, first, node.input[1:3], single)
        elif at < len(node.input):
            found.integers.add(node.output[0])
            _put(found, node.output[0], node.input[at : at + 2], single)
            if node.op_type in _SIGNED and _lowest(single.get((*node.input[at + 1 : at + 2], "")[0])):
                found.clipped.add(node.output[0])
        elif node.op_type in _MOVES and first in found.integers:
            found.integers.update(node.output)
            for value in node.output if first in found.scales else ():
                found.scales.setdefault(value, found.scales[first])
        found.integers.update(value for value in node.output if value.endswith(_ROUNDED))
    return found


def _put(found: Rounding, value: str, read: Any, single: Any) -> None:
    names = tuple(name for name in read if name)
    if names and all(name in single for name in names):
        found.scales.setdefault(value, names)


def _lowest(zero: Any) -> bool:
    """Whether a zero point is the least integer of its dtype, so that nothing is below zero."""
    if zero is None:
        return False
    from onnx import numpy_helper

    value = numpy_helper.to_array(zero)
    return value.dtype.kind in "iu" and int(value.reshape(-1)[0]) == np.iinfo(value.dtype).min
