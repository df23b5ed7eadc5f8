"""OpenVINO IR (`.xml` and `.bin`): the PyTorch frontend leaves the module path in every operation's name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from layertap.errors import MissingExtra, TargetError
from layertap.messages import tr
from layertap.result import Note
from layertap.site import Site, natural_key
from layertap.targets.reader import Argument, ArtefactContents, Ran, Reader, bind
from layertap.targets.scopes import Node, Scopes

_NAME = re.compile(r"__module\.(?P<path>[^/]+)/")
_WEIGHT = re.compile(r"(?:self|__module)\.(?P<path>[^/]+)\.[^./]+")
_SHAPES = frozenset({"ShapeOf"})
_SHAPE_ARITHMETIC = frozenset(
    {
        *("Add", "Broadcast", "Concat", "Convert", "Divide", "Equal", "Gather", "Maximum", "Minimum", "Multiply"),
        *("ReduceProd", "Reshape", "Select", "Slice", "Squeeze", "StridedSlice", "Subtract", "Unsqueeze"),
    }
)


_FOLDING = frozenset({"Add", "Divide", "Multiply", "Subtract"})
_FOLDED = "LinOpSequenceFusion"


_COARSE = {"bf16": "bfloat16", "f16": "float16"}
"""OpenVINO's names → torch's."""


class OpenVino(Reader):
    """A loaded IR, compiled for the CPU once for each set of taps."""

    format = "OpenVINO"

    def __init__(self, path: Path, name: str, config: Mapping[str, Any]) -> None:
        self._name, self._path = name, path
        self._openvino = library(name)
        self._core = self._openvino.Core()
        self.model = self._read()
        nodes = list(_nodes(self.model))
        if not any(node.scope for node in nodes):
            raise TargetError(tr("openvino.no_paths", name=name))
        inputs = [_first_name(port, port.get_node().get_friendly_name()) for port in self.model.inputs]
        ends = [_value(port.get_node().input_value(0)) for port in self.model.outputs]
        self._scopes = Scopes(nodes, [_value(port) for port in self.model.inputs], ends)
        paths = {path for node in nodes for path in node.scope}
        arguments = [
            Argument(name=given, dtype=_dtype(port), shape=tuple(map(str, port.get_partial_shape())))
            for given, port in zip(inputs, self.model.inputs, strict=True)
        ]
        self.contents = ArtefactContents(
            kind=self.model.get_friendly_name() or "Model",
            modules={"": "", **{path: _kind_by_name(path) for path in sorted(paths, key=natural_key)}},
            arguments=tuple(arguments),
            parameters=dict(weights_of(self.model)),
        )
        for weight in self.contents.parameters:
            self.contents.modules.setdefault(weight.rpartition(".")[0], "Module")
        self._scopes.fill(self.contents)
        self.contents.remarks.append(Note("openvino.folding"))
        self._compiled: dict[frozenset[str], Any] = {}
        self._config = dict(config)

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: frozenset[str]) -> Ran:
        if wanted not in self._compiled:
            model = self._tapped(wanted) if wanted else self.model
            self._compiled[wanted] = self._core.compile_model(model, "CPU", self._config)
        compiled = self._compiled[wanted]
        computes, notes = computed_in(compiled, self._config)
        given = bind(self.contents.arguments, args, kwargs)
        feeds = {
            place: _numpy(given[argument.name])
            for place, argument in enumerate(self.contents.arguments)
            if argument.name in given
        }
        result = compiled(feeds)
        tensors = [torch.from_numpy(np.array(result[port])) for port in compiled.outputs]
        own = len(self.model.outputs)
        names = [_first_name(port, str(place)) for place, port in enumerate(self.model.outputs)]
        output = tensors[0] if own == 1 else dict(zip(names, tensors[:own], strict=True))
        taps = iter(tensors[own:])
        calls = [
            (call.path, {leaf: next(taps) for leaf in call.leaves})
            for call in self._scopes.calls
            if call.path in wanted
        ]
        return Ran(output=output, calls=calls, notes=notes, computes=computes)

    def save(self, path: Path, wanted: frozenset[str]) -> str:
        model = self._tapped(wanted)
        sites = [
            str(Site(path=call.path, leaf=leaf, call=call.number))
            for call in self._scopes.calls
            if call.path in wanted
            for leaf in call.leaves
        ]
        for port, site in zip(model.outputs[len(self.model.outputs) :], sites, strict=True):
            port.get_tensor().add_names({f"layertap:{site}"})
        self._openvino.save_model(model, path, compress_to_fp16=False)
        return Note("openvino.tap_outputs")

    def _read(self) -> Any:
        check_ir(self._path, self._name)
        try:
            return self._core.read_model(self._path)
        except Exception as error:
            lines = str(error).split("\n")  # the places in its source come first
            message = next((line for line in reversed(lines) if line.strip()), type(error).__name__)
            raise TargetError(tr("openvino.unreadable", name=self._name, error=message)) from error

    def _tapped(self, wanted: frozenset[str]) -> Any:
        model = self._read()
        ports = {_value(port): port for op in model.get_ordered_ops() for port in op.outputs()}
        for call in self._scopes.calls:
            for value in call.values if call.path in wanted else ():
                # Each a result of its own: add_outputs would hand back one that already exists.
                model.add_results([self._openvino.opset13.result(ports[value])])
        model.validate_nodes_and_infer_types()
        return model


def computed_in(compiled: Any, config: Mapping[str, Any]) -> tuple[frozenset[str], list[str]]:
    """The coarser precision in which it really computes, by its own account, asked or not; and that in words."""
    kind = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    ops = [op.get_rt_info() for op in compiled.get_runtime_model().get_ordered_ops()]
    count = sum(str(op["runtimePrecision"].astype(str)).lower() == kind for op in ops if "runtimePrecision" in op)
    asked = config.get("INFERENCE_PRECISION_HINT")
    if kind in _COARSE and count:
        message = Note("openvino.precision", count=count, kind=kind)
        return frozenset([_COARSE[kind]]), [Note("openvino.hint", why=message)]
    if asked in _COARSE:
        return frozenset(), [Note("openvino.asked", asked=asked)]
    return frozenset(), []


def _nodes(model: Any) -> Iterator[Node]:
    shapes: set[str] = set()
    constants: set[str] = set()
    for op in model.get_ordered_ops():
        kind, name = op.get_type_name(), op.get_friendly_name()
        if kind in ("Parameter", "Result"):
            continue
        outputs = [_value(port) for port in op.outputs()]
        if kind == "Constant":
            constants.update(outputs)
            continue
        sources = [port.get_source_output() for port in op.inputs()]
        moving = [_value(source) for source in sources if _value(source) not in constants]
        if not moving:
            constants.update(outputs)
        hidden = kind in _SHAPES or (
            kind in _SHAPE_ARITHMETIC and bool(moving) and all(value in shapes for value in moving)
        )
        if hidden:
            shapes.update(outputs)
        found = _NAME.match(name)
        weights = [source.get_node().get_friendly_name() for source in sources]
        yield Node(
            scope=_prefixes(found["path"]) if found else (),
            inputs=moving,
            outputs=outputs,
            parameters=[weight for weight in weights if _WEIGHT.fullmatch(weight)],
            hidden=hidden,
            fused=_FOLDED if kind in _FOLDING and any(map(_nameless, sources)) else "",
            known="/" in name,
        )


def _nameless(source: Any) -> bool:
    """Whether it is a constant for each channel that is no parameter by name: one that may have come from several."""
    node = source.get_node()
    shape = source.get_partial_shape()
    if node.get_type_name() != "Constant" or _WEIGHT.fullmatch(node.get_friendly_name()):
        return False
    return bool(np.prod(list(shape.to_shape())) > 1) and not shape.is_dynamic


def _prefixes(path: str) -> tuple[str, ...]:
    """The path and those above it; the parent of a number is a list of modules, which is never called.

    >>> _prefixes("model.layers.0.mlp")
    ('model', 'model.layers.0', 'model.layers.0.mlp')
    """
    parts = [*path.split("."), ""]
    ends = [end for end in range(1, len(parts)) if not parts[end].isdigit() or parts[end - 1].isdigit()]
    return tuple(".".join(parts[:end]) for end in ends)


def weights_of(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for op in model.get_ordered_ops():
        name = op.get_friendly_name()
        if op.get_type_name() == "Constant" and _WEIGHT.fullmatch(name):
            dtype = getattr(torch, _dtype(op.output(0)), torch.float32)
            shape = tuple(op.output(0).get_shape())
            yield name.partition(".")[2], torch.empty(shape, dtype=dtype, device="meta")


def _kind_by_name(path: str) -> str:
    return "Module"  # the IR keeps paths, not classes


def _dtype(port: Any) -> str:
    return str(np.dtype(port.get_element_type().to_dtype()).name)


def _first_name(port: Any, default: str) -> str:
    """Of the names of one tensor, that which a person gave; the frontend adds numbers."""
    names = sorted(port.get_names(), key=lambda name: (name != default, name[:1].isdigit(), name))
    return names[0] if names else default


def _value(port: Any) -> str:
    return f"{port.get_node().get_friendly_name()}#{port.get_index()}"


def _numpy(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def check_ir(path: Path, name: str) -> None:
    """Raises for what is plainly no IR, on which OpenVINO would try the readers of every other format, loudly."""
    with path.open("rb") as file:
        if b"<net" not in file.read(4096):
            raise TargetError(tr("openvino.no_net", name=name))
    weights = path.with_suffix(".bin")
    if not weights.is_file():
        raise TargetError(tr("onnx.weights_missing", name=name, file=weights.name))


def library(name: str) -> Any:
    """openvino."""
    try:
        import openvino
    except ImportError as error:
        raise MissingExtra(tr("openvino.needs", name=name)) from error
    return openvino
