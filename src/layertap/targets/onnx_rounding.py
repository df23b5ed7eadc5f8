"""What the integers of a quantised ONNX graph represent: the scale and the zero point of each rounded value.

A value's scale is an input of the operation that makes it, or of the DequantizeLinear that reads it. Operations that
only move elements hand their input's scale on.
"""

from __future__ import annotations

import math
from typing import Any

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


def read_rounding(graph: Any) -> tuple[dict[str, tuple[str, ...]], frozenset[str]]:
    """Value of integers → its scale and zero point, where one scale holds for all of it; and all values of integers."""
    single = {tensor.name for tensor in graph.initializer if math.prod(tensor.dims) == 1}
    scales: dict[str, tuple[str, ...]] = {}
    integers: set[str] = set()
    moving: set[str] = {value.name for value in graph.input}
    for node in graph.node:
        first = node.input[0] if node.input else ""
        if any(name in moving for name in node.input):
            moving.update(node.output)
        if node.op_type == "DequantizeLinear" and first in moving:
            integers.add(first)
            _put(scales, first, node.input[1:3], single)
        elif node.op_type in _SCALE_AT and len(node.input) > _SCALE_AT[node.op_type]:
            at = _SCALE_AT[node.op_type]
            integers.add(node.output[0])
            _put(scales, node.output[0], node.input[at : at + 2], single)
        elif node.op_type in _MOVES and first in integers:
            integers.update(node.output)
            for value in node.output if first in scales else ():
                scales.setdefault(value, scales[first])
        integers.update(value for value in node.output if value.endswith(_ROUNDED))
    return {value: read for value, read in scales.items() if value not in single}, frozenset(integers)


def _put(scales: dict[str, tuple[str, ...]], value: str, read: Any, single: set[str]) -> None:
    names = tuple(name for name in read if name)
    if names and all(name in single for name in names):
        scales.setdefault(value, names)
