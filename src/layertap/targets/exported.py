"""`.pt2`: a program of `torch.export`, whose nodes name their modules by `nn_module_stack`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument
from torch.utils._pytree import TreeSpec, tree_flatten, tree_structure, tree_unflatten

from layertap.capture.leaves import leaves
from layertap.errors import TargetError
from layertap.messages import tr
from layertap.result import Note
from layertap.site import Site
from layertap.targets.reader import Argument, ArtefactContents, Ran, Reader, bind
from layertap.targets.scopes import Node, ScopedCall, Scopes
from layertap.targets.shadow import data_of
from layertap.targets.target import error_text

_NO_OPS = frozenset({torch.ops.aten.to, torch.ops.aten.contiguous, torch.ops.aten._to_copy})


class ExportedFile(Reader):
    """A loaded ExportedProgram."""

    format = "torch.export"

    def __init__(self, source: Path | torch.export.ExportedProgram, name: str) -> None:
        if isinstance(source, Path):
            try:
                source = torch.export.load(source)
            except Exception as error:
                raise TargetError(tr("targets.export_load", name=name, error=error_text(error))) from error
        self.program = source
        nodes = list(_nodes(source))
        signature = source.graph_signature
        outputs = [spec.arg.name for spec in signature.output_specs if isinstance(spec.arg, TensorArgument)]
        self._scopes = Scopes(nodes, signature.user_inputs, outputs)
        self.contents = _contents(source)
        for call in self._scopes.calls:
            _use_signature(call, source)
        self._scopes.fill(self.contents)
        if len(self.contents.paths) == 1 and len(nodes) > 1:
            raise TargetError(tr("targets.no_module_stack", name=name))
        self._tapped: dict[frozenset[str], tuple[Any, list[tuple[ScopedCall, str]]]] = {}

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: frozenset[str]) -> Ran:
        if wanted not in self._tapped:
            program, taps = self.tapped(wanted) if wanted else (self.program, [])
            self._tapped[wanted] = program.module(), taps
        module, taps = self._tapped[wanted]
        args, kwargs = as_exported(self.program, args, kwargs)
        raw = module(*args, **kwargs)
        if not wanted:
            return Ran(output=raw, calls=[])
        output, tensors = raw
        calls: list[tuple[str, dict[str, torch.Tensor]]] = []
        last = None
        for (call, leaf), tensor in zip(taps, tensors, strict=True):
            if call is not last:
                calls.append((call.path, {}))
                last = call
            calls[-1][1][leaf] = tensor
        return Ran(output=output, calls=calls)

    def save(self, path: Path, wanted: frozenset[str]) -> str:
        program, taps = self.tapped(wanted)
        names = [str(Site(path=call.path, leaf=leaf, call=call.number)) for call, leaf in taps]
        torch.export.save(program, path, extra_files={"layertap_taps": "\n".join(names)})
        return Note("targets.returns_tuple", count=len(names), names=", ".join(names[:6])) + (
            Note("targets.list_in_file") if len(names) > 6 else ""
        )

    def tapped(self, wanted: frozenset[str]) -> tuple[torch.export.ExportedProgram, list[tuple[ScopedCall, str]]]:
        """The program with these modules' values as a second output, and what each value is."""
        old = self.program
        graph = torch.fx.Graph()
        copies: dict[torch.fx.Node, Any] = {}
        own = graph.graph_copy(old.graph, copies)
        for node, copy in copies.items():
            # Copying gives new names to what is called like a builtin (`input`); the signature goes by the old ones.
            copy.name = node.name
            if node.op == "placeholder":
                copy.target = node.target
        by_name = {node.name: copy for node, copy in copies.items()}
        made: list[torch.fx.Node] = []
        taps: list[tuple[ScopedCall, str]] = []
        for call in self._scopes.calls:
            if call.path not in wanted:
                continue
            for leaf, value in zip(call.leaves, call.values, strict=True):
                node = by_name[value]
                with graph.inserting_after(node):
                    # A clone: the next operation may write into the value itself.
                    clone = graph.create_node(
                        "call_function", torch.ops.aten.clone.default, (node,), name=f"layertap_tap_{len(made)}"
                    )
                clone.meta = {**node.meta}
                made.append(clone)
                taps.append((call, leaf))
        graph.output((*cast("tuple[Any, ...]", own), *made))
        specs = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(name=node.name), None) for node in made]
        signature = old.graph_signature
        root, *others = old.module_call_graph
        assert root.signature is not None  # the root's is always there
        returns = replace(root.signature, out_spec=_beside(root.signature.out_spec, len(made)))
        program = torch.export.ExportedProgram(
            root=old.graph_module,
            graph=graph,
            graph_signature=replace(signature, output_specs=[*signature.output_specs, *specs]),
            state_dict=old.state_dict,  # shared: a large model is not held twice
            range_constraints=old.range_constraints,
            module_call_graph=[replace(root, signature=returns), *others],
            example_inputs=old.example_inputs,
            constants=old.constants,
            verifiers=old.verifiers,
        )
        return program, taps


def _use_signature(call: ScopedCall, program: torch.export.ExportedProgram) -> None:
    """What a module returned, and in which order, is kept where `preserve_module_call_signature` asked for it."""
    name = f"{call.path}@{call.number}" if call.number else call.path
    entry = next((entry for entry in program.module_call_graph if entry.fqn == name), None)
    if entry is None or entry.signature is None:
        return
    places = [torch.empty(0) for _ in entry.signature.outputs]
    structure = tree_unflatten(places, entry.signature.out_spec)
    found = {id(leaf.tensor): leaf.path for leaf in leaves(structure)}
    kept = [
        (argument.name, found[id(place)])
        for argument, place in zip(entry.signature.outputs, places, strict=True)
        if isinstance(argument, TensorArgument)
    ]
    if kept:
        call.values, call.known = [name for name, _ in kept], [leaf for _, leaf in kept]


def as_exported(
    program: torch.export.ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """By place and by name just as when it was exported, since a program takes its arguments no other way."""
    signature = program.module_call_graph[0].signature
    names = signature.forward_arg_names if signature is not None else None
    if signature is None or not names:
        return args, dict(kwargs)
    by_place, by_name = tree_unflatten([0] * signature.in_spec.num_leaves, signature.in_spec)
    given = bind(_arguments(program), args, kwargs)
    return tuple(given[name] for name in names[: len(by_place)] if name in given), {
        name: given[name] for name in by_name if name in given
    }


def _beside(spec: TreeSpec, count: int) -> TreeSpec:
    """The structure (own output, taps)."""
    own = tree_unflatten([0] * spec.num_leaves, spec)
    whole = tree_structure((own, tuple(range(count))))
    assert whole.num_leaves == len(tree_flatten(own)[0]) + count
    return whole


def _nodes(program: torch.export.ExportedProgram) -> Iterator[Node]:
    signature = program.graph_signature
    weights = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    for node in program.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        stack = node.meta.get("nn_module_stack") or {}
        calls = {path: int(key.partition("@")[2] or 0) for key, (path, _) in stack.items() if path}
        inputs = [source.name for source in node.all_input_nodes]
        yield Node(
            scope=tuple(calls),
            inputs=inputs,
            outputs=[node.name] if isinstance(node.meta.get("val"), torch.Tensor) else [],
            calls=calls,
            parameters=[weights[name] for name in inputs if name in weights],
            alias_of=_alias(node),
        )


def _alias(node: Any) -> str:
    """The input of an operation that changes nothing, whose output then is that same tensor in eager mode."""
    if getattr(node.target, "overloadpacket", None) not in _NO_OPS or not node.all_input_nodes:
        return ""
    source = node.all_input_nodes[0]
    before, after = source.meta.get("val"), node.meta.get("val")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return ""
    same = before.dtype == after.dtype and before.device == after.device and before.stride() == after.stride()
    return str(source.name) if same else ""


def _contents(program: torch.export.ExportedProgram) -> ArtefactContents:
    kinds: dict[str, str] = {}
    for node in program.graph.nodes:
        for path, kind in (node.meta.get("nn_module_stack") or {}).values():
            name = kind if isinstance(kind, str) else kind.__qualname__
            kinds.setdefault(path, name.rpartition(".")[2])
    modules = {}
    for entry in program.module_call_graph:
        path = entry.fqn.partition("@")[0]
        # A container is in the list of calls as it is in the tree, but no node is ever inside it.
        if path in kinds or not any(other.startswith(f"{path}.") for other in kinds):
            modules[path] = kinds.get(path, "Module")
    modules = {**modules, **kinds}
    parameters = {name: data_of(tensor) for name, tensor in program.named_parameters()}
    return ArtefactContents(
        kind=kinds.get("", "ExportedProgram"),
        modules=modules,
        arguments=_arguments(program),
        parameters=parameters,
    )


def _arguments(program: torch.export.ExportedProgram) -> tuple[Argument, ...]:
    signature = program.module_call_graph[0].signature
    names = list(signature.forward_arg_names or []) if signature is not None else []
    return tuple(_argument(program, name, place) for place, name in enumerate(names))


def _argument(program: torch.export.ExportedProgram, name: str, place: int) -> Argument:
    users = program.graph_signature.user_inputs
    node = next((n for n in program.graph.nodes if place < len(users) and n.name == users[place]), None)
    value = None if node is None else node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return Argument(name=name)
    shape = tuple(int(str(size)) if str(size).isdigit() else str(size) for size in value.shape)
    return Argument(name=name, dtype=str(value.dtype).removeprefix("torch."), shape=shape)
