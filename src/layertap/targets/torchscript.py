"""TorchScript: a file of `torch.jit.save`, or a ScriptModule in memory.

After loading, scopes are gone, but the graphs of the methods still call each other: following `prim::GetAttr` from
`self` names the module behind every `prim::CallMethod`. A call is inlined only when a wanted site is inside it. At a
tap, a clone of the value is appended to one list, together with its name; the list is returned beside the output. A
list, not extra outputs: it also works inside loops and branches, and keeps the order of execution.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch._C import ListType, NoneType, StringType, TensorType, TupleType

from layertap.messages import tr
from layertap.result import Note
from layertap.site import Site
from layertap.targets.opaque import frozen_torchscript
from layertap.targets.reader import Argument, ArtefactContents, Ran, Reader, bind
from layertap.targets.scopes import leaf_names
from layertap.targets.shadow import CONTAINERS, data_of
from layertap.targets.torchscript_file import with_output_type

# The tracer calls the second call of one module forward1; a script calls an overload of it forward__0 (nn.LSTM).
FORWARD = re.compile(r"forward(__)?\d*")
_PAIR = TupleType([StringType.get(), TensorType.get()])
_TAPS = ListType(_PAIR)


class TorchScript(Reader):
    """A loaded ScriptModule."""

    format = "TorchScript"

    def __init__(self, source: Path | torch.jit.ScriptModule, name: str) -> None:
        self._source = source
        self._name = name
        self._module = self._load()
        calls = _Calls(self._module)
        if calls.frozen:
            raise frozen_torchscript(name)
        self.contents = _contents(self._module, calls)
        self._tapped: dict[frozenset[str], Any] = {frozenset(): self._module}

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: frozenset[str]) -> Ran:
        if not wanted:
            return Ran(output=self._module(*args, **kwargs), calls=[])
        if wanted not in self._tapped:
            graph = self._module._c._get_method("forward").graph.copy()
            _tap(graph, self._module, wanted)
            self._tapped[wanted] = torch._C._create_function_from_graph("tapped", graph)
        given = self._in_order(args, kwargs)
        output, taps = self._tapped[wanted](self._module, *given)
        return Ran(output=output, calls=grouped(taps))

    def save(self, path: Path, wanted: frozenset[str]) -> str:
        module = self._load()  # its graphs are changed in place
        graph = module._c._get_method("forward").graph
        _tap(graph, module, wanted)
        written = io.BytesIO()
        with _undeprecated():
            torch.jit.save(module, written)
        with_output_type(
            written.getvalue(), path, module._c.qualified_name, next(graph.outputs()).type().annotation_str
        )
        return Note("script.returns")

    def _load(self) -> Any:
        with _undeprecated():
            if isinstance(self._source, Path):
                return torch.jit.load(self._source, map_location=None if torch.cuda.is_available() else "cpu")
            held = io.BytesIO()
            torch.jit.save(self._source, held)
            held.seek(0)
            return torch.jit.load(held)

    def _in_order(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        schema = self._module._c._get_method("forward").schema
        given = bind(self.contents.arguments, args, kwargs)
        missing = [a.name for a in schema.arguments[1:] if a.name not in given and not a.has_default_value()]
        if missing:
            raise TypeError(
                tr("script.input_missing", missing=", ".join(missing), map=", ".join(map(str, self.contents.arguments)))
            )
        return [given.get(a.name, a.default_value) for a in schema.arguments[1:]]


@contextlib.contextmanager
def _undeprecated() -> Iterator[None]:
    """torch states of every such file that its format is deprecated; whoever opens one knows."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        yield


def grouped(taps: list[tuple[str, torch.Tensor]]) -> list[tuple[str, dict[str, torch.Tensor]]]:
    """The tensors of one call together: a leaf that comes again begins the next call."""
    calls: list[tuple[str, dict[str, torch.Tensor]]] = []
    for text, tensor in taps:
        site = Site.parse(text)
        if not calls or calls[-1][0] != site.path or site.leaf in calls[-1][1]:
            calls.append((site.path, {}))
        calls[-1][1][site.leaf] = tensor
    return [(path, dict(sorted(values.items()))) for path, values in calls]


class _Calls:
    """Who calls whom in the graphs, found without running anything."""

    def __init__(self, module: Any) -> None:
        self.leaves: dict[str, list[str]] = {}
        """Path → the leaves of what its first call returns, in order of execution."""
        self.types: dict[str, str] = {}
        """Path → what its first call returns, as TorchScript writes it."""
        self._seen: set[tuple[str, str]] = set()
        graph = module._c._get_method("forward").graph
        self._walk(graph, module, "")
        held = any(True for _ in module.parameters())
        weights = any(node.output().type().kind() == "TensorType" for node in graph.findAllNodes("prim::Constant"))
        self.frozen = not self.leaves and not held and weights

    def _walk(self, graph: Any, module: Any, path: str) -> None:
        for node in graph.findAllNodes("prim::CallMethod"):
            below = _receiver(node)
            if below is None:
                continue
            called, method = _join(path, below), node.s("name")
            child = _child(module, below)
            if (called, method) not in self._seen:
                self._seen.add((called, method))
                self._walk(child._c._get_method(method).graph, child, called)
            if below and FORWARD.fullmatch(method):
                self.leaves.setdefault(called, list(_leaves(node, child).values()))
                self.types.setdefault(called, node.output().type().annotation_str)


def _contents(module: Any, calls: _Calls) -> ArtefactContents:
    modules = {path: str(child.original_name) for path, child in module.named_modules()}
    lost: dict[str, str] = {}
    for path, kind in modules.items():
        if not path:
            continue
        if path not in calls.leaves:
            container = Note("select.container", kind=kind)
            lost[path] = container if kind in CONTAINERS else Note("script.not_called")
        elif not calls.leaves[path] and calls.types[path] == "NoneType":
            lost[path] = Note("script.no_own_value", kind=kind)
        elif not calls.leaves[path]:
            lost[path] = Note("script.types", kind=kind, types=calls.types[path])
    schema = module._c._get_method("forward").schema
    return ArtefactContents(
        kind=str(module.original_name),
        modules=modules,
        lost=lost,
        arguments=tuple(Argument(name=argument.name) for argument in schema.arguments[1:]),
        parameters={name: data_of(tensor) for name, tensor in module.named_parameters()},
        several=[path for path, leaves in calls.leaves.items() if "v1" in leaves],
    )


def _tap(graph: Any, module: Any, wanted: frozenset[str]) -> None:
    """Puts taps into a graph, which then returns (output, taps)."""
    taps = graph.create("prim::ListConstruct", [], 1)
    taps.output().setType(_TAPS)
    graph.prependNode(taps)
    _expand(graph, graph.block(), module, "", taps.output(), wanted)
    graph.registerOutput(taps.output())
    graph.makeMultiOutputIntoTuple()
    graph.lint()


def _expand(graph: Any, block: Any, module: Any, path: str, taps: Any, wanted: frozenset[str]) -> None:
    for node in list(block.nodes()):
        for inner in node.blocks():
            _expand(graph, inner, module, path, taps, wanted)
        below = _receiver(node) if node.kind() == "prim::CallMethod" else None
        if below is None:
            continue
        called, method = _join(path, below), node.s("name")
        value = node.output()
        tapped = called in wanted and below and FORWARD.fullmatch(method)
        inside = any(other.startswith(f"{called}.") if called else True for other in wanted)
        child = _child(module, below)
        leaves = _leaves(node, child) if tapped else {}
        if inside:
            callee = child._c._get_method(method).graph.copy()
            further = callee.addInput("taps")
            further.setType(_TAPS)
            _expand(callee, callee.block(), child, called, further, wanted)
            with graph.insert_point_guard(node):
                (value,) = graph.insertGraph(callee, [*node.inputs(), taps])
            node.output().replaceAllUsesWith(value)
        if tapped:
            _append(graph, node, called, value, taps, leaves)
        if inside:
            node.destroy()


def _append(graph: Any, after: Any, path: str, value: Any, taps: Any, leaves: Mapping[tuple[int, ...], str]) -> None:
    """Inserts, after a node, what puts the leaves of a value on the list of taps."""

    def insert(kind: str, inputs: list[Any], output: Any = None, count: int = 1) -> Any:
        nonlocal after
        node = graph.create(kind, inputs, count)
        node.insertAfter(after)
        after = node
        if output is not None:
            node.output().setType(output)
        return node

    def walk(value: Any, place: tuple[int, ...]) -> None:
        if value.type().kind() == "TupleType":
            parts = value.type().elements()
            opened = insert("prim::TupleUnpack", [value], None, len(parts))
            for number, (part, kind) in enumerate(zip(opened.outputs(), parts, strict=True)):
                part.setType(kind)
                walk(part, (*place, number))
        elif place in leaves:
            none = insert("prim::Constant", [], NoneType.get())
            copy = insert("aten::clone", [value, none.output()], TensorType.get())
            name = insert("prim::Constant", [], StringType.get())
            name.s_("value", str(Site(path=path, leaf=leaves[place])))
            pair = insert("prim::TupleConstruct", [name.output(), copy.output()], _PAIR)
            insert("aten::append", [taps, pair.output()], _TAPS)

    walk(value, ())


def _leaves(call: Any, module: Any) -> dict[tuple[int, ...], str]:
    """What a call returns: the place of each tensor in the value → the name of its leaf.

    A scripted method returns what its source states, and leaves are named by place. A traced one returns those
    values of the module that are used later, in the order of that use: (b, a) where the module returned (a, b) and b
    came first. So they are put in the order of computation, and called v0, v1 where there are several.
    """
    places = list(_places(call.output().type()))
    if not call.sourceRange().startswith("Serialized"):
        return {place: ".".join(map(str, place)) for place in places}
    made = next(module._c._get_method(call.s("name")).graph.outputs()).node()
    if len(places) < 2 or made.kind() != "prim::TupleConstruct" or any(len(place) > 1 for place in places):
        return dict(zip(places, leaf_names(len(places)), strict=True))
    order = {place: _computed(made.inputsAt(place[0]), module) for place in places}
    # A no-op on the module's input is the input itself, which the rest of the model uses by its own right.
    kept = [place for place in places if not _hands_on(made.inputsAt(place[0]))] or places
    return dict(zip(sorted(kept, key=lambda place: order[place]), leaf_names(len(kept)), strict=True))


def _computed(value: Any, module: Any) -> tuple[int, int]:
    """When a value is computed, within its graph; the values of one inner call by their own order."""
    node = value.node()
    if node.kind() == "prim::TupleUnpack" and node.input().node().kind() == "prim::CallMethod":
        inner = node.input().node()
        below = _receiver(inner)
        names = {} if below is None else _leaves(inner, _child(module, below))
        return _position(inner), list(names).index((value.offset(),)) if (value.offset(),) in names else value.offset()
    return (-1, value.offset()) if node.kind() == "prim::Param" else (_position(node), 0)


def _position(node: Any) -> int:
    return list(node.owningBlock().nodes()).index(node)


def _hands_on(value: Any) -> bool:
    """Whether it is an input of its graph, or what `x.to(…)` makes of one: in eager mode, mostly the same tensor."""
    while value.node().kind() in ("aten::to", "aten::contiguous"):
        value = value.node().inputsAt(0)
    return bool(value.node().kind() == "prim::Param")


def _places(kind: Any, place: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    if kind.kind() == "TupleType":
        for number, element in enumerate(kind.elements()):
            yield from _places(element, (*place, number))
    elif kind.kind() == "TensorType":
        yield place


def _receiver(node: Any) -> str | None:
    """The path from `self` to the module whose method is called; None where it is not found by names alone."""
    names = []
    value = node.inputsAt(0)
    while value.node().kind() == "prim::GetAttr":
        names.append(value.node().s("name"))
        value = value.node().input()
    if value.node().kind() != "prim::Param" or value.offset() != 0:
        return None
    return ".".join(reversed(names))


def _join(path: str, below: str) -> str:
    return f"{path}.{below}" if path and below else path or below


def _child(module: Any, below: str) -> Any:
    return functools.reduce(getattr, below.split("."), module) if below else module
