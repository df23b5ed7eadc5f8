"""Which module each node of an ONNX graph is from: by torch's metadata, by the names of values, or not at all.

The exporter of `dynamo=True` writes the module path into each node's metadata. The older one, and optimisers after it,
leave it in the names of values, `/layer1/layer1.0/conv1/Conv_output_0`. Where neither is there, every tensor is offered
by its own name.

Quantisers put QuantizeLinear and DequantizeLinear behind a value. These belong to the module that made the value, so
that its output is what the next module reads: floats, after dequantisation.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from layertap.result import Note, code_of
from layertap.targets.onnx_rounding import ROUNDS, read_rounding
from layertap.targets.scopes import AMBIGUOUS, Node

SCOPES = "pkg.torch.onnx.name_scopes"
_CLASSES = "pkg.torch.onnx.class_hierarchy"
_FX = "pkg.torch.onnx.fx_node"
_RULE = "pkg.onnxscript.rewriter.rule_name"
_MERGES_ONE = "FuseBatchNormInto"
"""A rule that makes one node of two: a batch normalisation, and the convolution or product before it."""
_MERGES_NOTHING = "RemoveOptionalBias"
_SHAPES = frozenset({"Shape", "Size"})
_SHAPE_ARITHMETIC = frozenset(
    {
        *("Add", "Cast", "Concat", "Div", "Equal", "Expand", "Gather", "Identity", "Max", "Min", "Mod", "Mul", "Neg"),
        *("ReduceProd", "Reshape", "Slice", "Squeeze", "Sub", "Unsqueeze", "Where"),
    }
)
_INTEGER = frozenset({"ConvInteger", "DynamicQuantizeLinear", "MatMulInteger", "MatMulNBits", "QGemm"})
_FOLDED_WEIGHT = re.compile(r"onnx::Conv(Transpose)?_\d+")
"""How the older exporter calls a convolution's weights once it has multiplied a batch normalisation into them."""
INTEGERS = "onnx.integers"
_MERGED = "onnx.merged_after"
NO_PATHS = "onnx.no_names"
BY_NAME = "onnx.value_names"


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A graph with its modules."""

    nodes: list[Node]
    modules: dict[str, str]
    """Path → class."""
    lost: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    scales: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Value of integers → the constants, scale and zero point, that make floats of it."""
    integers: set[str] = field(default_factory=set)
    """The values of integers, whether or not their scale is in the file."""
    quantised: int = 0
    """How many operations compute with integers in place of floats."""


def read_graph(graph: Any) -> Graph:
    """The nodes of a graph, each with the module it is from."""
    initializers = {tensor.name for tensor in graph.initializer}
    for kind in (_Metadata, _Names, _Tensors):
        way: _Way = kind(graph, initializers)
        nodes = list(_nodes(graph, initializers, way))
        if any(node.scope for node in nodes):
            break
    quantised = sum(node.op_type in _INTEGER or node.op_type.startswith("QLinear") for node in graph.node)
    quantised += sum(node.op_type == "QuantizeLinear" for node in graph.node)
    remarks = list(way.remarks)
    if quantised:
        remarks.append(Note("onnx.quantised", quantised=quantised))
    rounding = read_rounding(graph)
    clipped = {node.scope[-1] for node in nodes if node.scope and rounding.clipped.intersection(node.outputs)}
    lost = {**way.repeated(), **way.lost}
    modules = way.modules()
    for path in clipped:
        if not any(other.startswith(f"{path}.") for other in modules):
            lost[path] = Note(_MERGED)
    return Graph(
        nodes=nodes,
        modules=modules,
        lost=lost,
        remarks=remarks,
        scales=rounding.scales,
        integers=rounding.integers,
        quantised=quantised,
    )


class _Way:
    """How the module of a node is found."""

    def __init__(self, graph: Any, initializers: set[str]) -> None:
        self.graph, self.initializers = graph, initializers
        self.remarks: list[str] = []
        self.lost: dict[str, str] = {}
        self.after: dict[str, tuple[str, ...]] = {}
        """Value → the modules that it is in once it is rounded, where those are others."""

    def place(self, node: Any, hidden: bool, origin: Mapping[str, str]) -> dict[str, Any]:
        """The parts of a `Node` that say where it is from; `origin` is constant → weight."""
        raise NotImplementedError

    def modules(self) -> dict[str, str]:
        """Path → class."""
        raise NotImplementedError

    def repeated(self) -> dict[str, str]:
        """Modules of which it is not known how often they are called, with the reason."""
        return {}


class _Metadata(_Way):
    """By what `torch.onnx.export(dynamo=True)` writes on each node."""

    def place(self, node: Any, hidden: bool, origin: Mapping[str, str]) -> dict[str, Any]:
        meta = _meta(node)
        rules = [rule for rule in meta.get(_RULE, "").split(", ") if rule and not rule.startswith(_MERGES_NOTHING)]
        scope = tuple(path for path in _scope(meta) if path)
        made_by = _defined(meta.get(_FX))
        if scope and not hidden and self._merged(node, made_by):
            # Rounding cuts off what is below zero, so it is the activation; before it, the value is the module's own.
            if any(path.startswith(f"{scope[-1]}.") for path in self._paths):
                self.remarks.append(Note("onnx.merged", output=node.output[0], scope=scope[-1]))
            else:
                self.after[node.output[0]] = scope[:-1]
                self.remarks.append(Note("onnx.rounded_activation", output=node.output[0], scope=scope[-1]))
        return {
            "scope": scope,
            "fused": ", ".join(rules),
            "absorbed": _absorbed(rules, node, origin),
            "made_by": made_by,
            "reads": frozenset(re.findall(r"%(\w+)", meta[_FX].partition("=")[2])) if _FX in meta else None,
            "known": SCOPES in meta,
        }

    def _merged(self, node: Any, made_by: str) -> bool:
        """Whether the node gives the value of a later activation, which a quantiser took out: `Conv` → `relu`."""
        found = re.fullmatch(r"(relu6?|clamp|hardtanh)(_\d+)?_?", node.output[0]) if node.output else None
        return bool(found and made_by and found[0] != made_by and node.op_type not in ("Relu", "Clip"))

    @functools.cached_property
    def _paths(self) -> set[str]:
        return {path for node in self.graph.node for path in _scope(_meta(node))}

    def modules(self) -> dict[str, str]:
        modules: dict[str, str] = {"": kind_of(self.graph)}
        for node in self.graph.node:
            meta = _meta(node)
            for path, kind in zip(_scope(meta), _listed(meta.get(_CLASSES)), strict=False):
                modules.setdefault(path, kind.rpartition(".")[2])
        # A module that lost its nodes may still have weights.
        for tensor in self.graph.initializer:
            path = tensor.name.rpartition(".")[0]
            if path:
                modules.setdefault(path, "Module")
        return modules


class _Names(_Way):
    """By the names of values and nodes, as torch's older exporter gives them: `/layer1/layer1.0/conv1/Conv`."""

    def __init__(self, graph: Any, initializers: set[str]) -> None:
        super().__init__(graph, initializers)
        self.remarks.append(Note(BY_NAME))
        self._found: dict[str, str] = {"": "ONNX"}
        self._owners = {name.rpartition(".")[0] for name in initializers if "." in name}
        parts = [part for node in graph.node for name in (node.name, *node.output) if (part := _parts(name))]
        self._scopes = {part[:length] for part in parts for length in range(1, len(part) + 1)}
        self._prefix = self._prefixes(graph)
        self._numbers: dict[str, list[tuple[str, ...]]] = {}

    def place(self, node: Any, hidden: bool, origin: Mapping[str, str]) -> dict[str, Any]:
        # The value's name first: where operations were merged, the value is that of the last of them.
        named = [name for name in (*node.output, node.name) if _slashed(name)]
        if not named or node.op_type == "DynamicQuantizeLinear":  # named after what it rounds, part of what reads it
            return {"scope": (), "known": False}
        calls = self._calls(_parts(named[0]))
        if node.op_type not in ROUNDS:
            for path in self._calls(_parts(node.name)) if _slashed(node.name) else ():
                self._found.setdefault(path, "Module")
                if path not in calls:
                    self.lost.setdefault(path, Note(_MERGED))
        for path in calls:
            self._found.setdefault(path, "Module")
        itself = not _slashed(node.name) or _parts(node.name) == _parts(named[0])
        if calls and itself and any(_FOLDED_WEIGHT.match(name) for name in node.input):
            path = list(calls)[-1]
            self.lost[path] = Note(_MERGED)
            del calls[path]
        for path in () if hidden else calls:
            if code_of(self.lost.get(path, "")) == _MERGED and list(calls)[-1] == path:
                del self.lost[path]  # a node of its own is there after all
        return {"scope": tuple(calls), "calls": calls, "known": True}

    def modules(self) -> dict[str, str]:
        return {**self._found, **dict.fromkeys(self.lost, "Module")}

    def repeated(self) -> dict[str, str]:
        """Names number the modules inside: where all of them are called again, so may be what they are in."""
        above = {path[:end] for path in self._found for end, letter in enumerate(path) if letter == "."}
        leaves = [path for path in self._found if path and path not in above]
        found: dict[str, str] = {}
        for path in above & set(self._found):
            inside = [leaf for leaf in leaves if leaf.startswith(f"{path}.")]
            if all(len(self._numbers.get(leaf, ())) > 1 for leaf in inside):
                found[path] = Note(AMBIGUOUS)
        return found

    def _calls(self, parts: tuple[str, ...]) -> dict[str, int]:
        """Path → which call, of the modules that a name is in. The second call of `act` is named `act_1`."""
        found: dict[str, int] = {}
        path = self._prefix.get(parts[0], "") if parts else ""
        for place, part in enumerate(parts):
            again = re.fullmatch(r"(.+)_\d+", part)
            own = _joined(path, part)
            if again and (*parts[:place], again[1]) in self._scopes and not self._has_weights(own):
                own = _joined(path, again[1])
            path = own
            seen = self._numbers.setdefault(path, [])
            if parts[: place + 1] not in seen:
                seen.append(parts[: place + 1])
            found[path] = seen.index(parts[: place + 1])
        return found

    def _has_weights(self, path: str) -> bool:
        return any(owner == path or owner.startswith(f"{path}.") for owner in self._owners)

    def _prefixes(self, graph: Any) -> dict[str, str]:
        """First part of a name → what is before it: containers that are never called leave no trace in names."""
        found: dict[str, set[str]] = {}
        for node in graph.node:
            parts = _parts(node.name)
            path = ""
            for part in parts:
                path = _joined(path, part)
            for owner in {name.rpartition(".")[0] for name in node.input if name in self.initializers} if path else ():
                if owner == path or owner.endswith(f".{path}"):
                    found.setdefault(parts[0], set()).add(owner[: -len(path)].rstrip("."))
        return {part: prefixes.pop() for part, prefixes in found.items() if len(prefixes) == 1}


class _Tensors(_Way):
    """Each value by its own name."""

    def __init__(self, graph: Any, initializers: set[str]) -> None:
        super().__init__(graph, initializers)
        self.remarks.append(Note(NO_PATHS, SCOPES=SCOPES))
        self._found: dict[str, str] = {"": "ONNX"}

    def place(self, node: Any, hidden: bool, origin: Mapping[str, str]) -> dict[str, Any]:
        name = _as_path(next((name for name in node.output if name), ""))
        if hidden or not name:
            return {"scope": (), "known": True}
        self._found[name] = node.op_type
        return {"scope": (name,), "known": True}

    def modules(self) -> dict[str, str]:
        return self._found


def _nodes(graph: Any, initializers: set[str], way: _Way) -> Iterator[Node]:
    shapes: set[str] = set()
    origin: dict[str, str] = {name: name.removesuffix("_quantized") for name in initializers}
    """Constant → the weight that it is, rounded or not."""
    scopes: dict[str, dict[str, Any]] = {}
    """Value → where it is from."""
    same: dict[str, str] = {}
    """A value that was dequantised twice → the first time."""
    rounded: dict[tuple[str, ...], str] = {}
    dtypes = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info)}
    # A number that optimisers share, or the scale of a rounding, is read often in one call: it counts no calls.
    shared = {tensor.name for tensor in graph.initializer if "." not in tensor.name and math.prod(tensor.dims) == 1}
    for node in graph.node:
        read = [same.get(name, name) for name in node.input if name]
        moving = [name for name in read if name not in origin]
        constant = node.op_type == "Constant" or (bool(read) and not moving)
        if constant:
            origin.update(dict.fromkeys(node.output, origin.get(read[0], "") if read else ""))
        hidden = node.op_type in _SHAPES or (
            node.op_type in _SHAPE_ARITHMETIC and bool(moving) and all(name in shapes for name in moving)
        )
        if hidden:
            shapes.update(node.output)
        if node.op_type in ROUNDS and moving:
            first = rounded.setdefault((node.op_type, *read), node.output[0])
            same[node.output[0]] = first
            place = scopes.get(moving[0], {"scope": (), "known": True})
            if moving[0] in way.after:
                place = {"scope": way.after[moving[0]], "known": True}
        else:
            place = way.place(node, hidden or constant, origin)
        for name in node.output:
            scopes[name] = {key: place[key] for key in ("scope", "calls", "known", "made_by") if key in place}
        yield Node(
            inputs=moving,
            outputs=[name for name in node.output if name],
            parameters=[
                origin[name]
                for name in read
                if origin.get(name) and origin[name] not in shared and node.op_type not in ROUNDS
            ],
            hidden=hidden or constant,
            alias_of=moving[0] if moving and _hands_on(node, dtypes) else "",
            **place,
        )


def _hands_on(node: Any, dtypes: Mapping[str, int]) -> bool:
    """Whether it is a cast to the dtype that its input has already: in eager mode, the same tensor."""
    wanted = next((entry.i for entry in node.attribute if entry.name == "to"), 0)
    return node.op_type == "Cast" and wanted != 0 and dtypes.get(node.input[0]) == wanted


def kind_of(graph: Any) -> str:
    """The class of the model, as far as the metadata keeps it."""
    for node in graph.node:
        meta = _meta(node)
        if _scope(meta) and _listed(meta.get(_CLASSES)):
            return _listed(meta[_CLASSES])[0].rpartition(".")[2]
    return "ONNX"


def _meta(node: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in node.metadata_props}


def _absorbed(rules: list[str], node: Any, origin: Mapping[str, str]) -> str:
    """The module of the convolution that a normalisation was merged with: the one whose weight is left."""
    if len(rules) != 1 or not rules[0].startswith(_MERGES_ONE):
        return ""
    owner, _, own = origin.get(node.input[1], "").rpartition(".")
    return owner if own == "weight" else ""


def _defined(text: str | None) -> str:
    """The name that a line of the original program gives its result: `%relu : [num_users=1] = call_function…`."""
    found = re.match(r"%(\w+)", text or "")
    return found[1] if found else ""


def _scope(meta: Mapping[str, str]) -> list[str]:
    """The paths of the modules that a node is in, the root's first; none for what the exporter put in of its own."""
    *paths, _ = _listed(meta.get(SCOPES)) or [""]  # the last is the operation's own name
    return paths if paths[:1] == [""] else []


def _listed(text: str | None) -> list[str]:
    """A list as the exporter writes it: Python's own notation."""
    try:
        found = ast.literal_eval(text) if text else []
    except (ValueError, SyntaxError):
        return []
    return [str(item) for item in found] if isinstance(found, list) else []


def _slashed(name: str) -> bool:
    return name.startswith("/") and not name.startswith("//")


def _parts(name: str) -> tuple[str, ...]:
    """The modules in a name, without the operation at its end; none for a name of another kind.

    >>> _parts("/layer1/layer1.0/conv1/Conv_output_0"), _parts("/Add"), _parts("conv2d")
    (('layer1', 'layer1.0', 'conv1'), (), ())
    """
    return tuple(name[1:].split("/")[:-1]) if _slashed(name) else ()


def _joined(path: str, part: str) -> str:
    """A path and what is below it, whose name repeats the end of the path if it is a number.

    >>> _joined("layer1", "layer1.0"), _joined("encoder", "layer.3"), _joined("net.0", "0.1")
    ('layer1.0', 'encoder.layer.3', 'net.0.1')
    """
    have, new = path.split(".") if path else [], part.split(".")
    for shared in range(min(len(have), len(new) - 1), 0, -1):
        if have[-shared:] == new[:shared]:
            return ".".join([*have, *new[shared:]])
    return f"{path}.{part}" if path else part


def _as_path(name: str) -> str:
    """A value's name as the path of a site, which has its own use for `:` and `@`."""
    return re.sub(r"[:@]+", "_", name)
