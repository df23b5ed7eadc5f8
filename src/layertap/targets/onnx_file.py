"""`.onnx`: torch's exporter (`dynamo=True`) leaves the module path on every node; ONNX Runtime runs it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from layertap.errors import MissingExtra, TargetError
from layertap.site import Site
from layertap.targets.reader import Argument, Contents, Ran, Reader, bind
from layertap.targets.scopes import Node, Scopes
from layertap.targets.trust import floor_of, largest_difference
from layertap.words import say

_SCOPES = "pkg.torch.onnx.name_scopes"
_CLASSES = "pkg.torch.onnx.class_hierarchy"
_FX = "pkg.torch.onnx.fx_node"
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
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


class Onnx(Reader):
    """A loaded ONNX model, with one session of ONNX Runtime for each set of taps."""

    format = "ONNX"

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        self._onnx, self._runtime = libraries(name)
        try:
            self.model = self._onnx.load(str(path), load_external_data=False)
        except Exception as error:
            raise TargetError(f"{name} cannot be read as ONNX: {type(error).__name__}: {error}") from error
        graph = self.model.graph
        if not graph.node:
            raise TargetError(f"{name} holds no graph: it is empty, or no ONNX file")
        check_weights(graph, path, name)
        initializers = {tensor.name for tensor in graph.initializer}
        nodes = list(_nodes(graph, initializers))
        if not any(node.scope for node in nodes):
            raise TargetError(
                f"{name}: its nodes carry no module paths ({_SCOPES}), so no module can be told from another; export "
                "it with torch.onnx.export(model, …, dynamo=True), and keep the metadata in later tools"
            )
        inputs = [value for value in graph.input if value.name not in initializers]
        self._scopes = Scopes(nodes, [value.name for value in inputs], [value.name for value in graph.output])
        self.contents = Contents(
            kind=_kind(graph),
            modules=_modules(graph),
            arguments=tuple(self._argument(value) for value in inputs),
            parameters=weights_of(self._onnx, graph),
        )
        self._scopes.fill(self.contents)
        self._sessions: dict[tuple[frozenset[str], bool], Any] = {}

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: frozenset[str]) -> Ran:
        return self._run(args, kwargs, wanted, optimised=True)

    def _run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: frozenset[str], optimised: bool) -> Ran:
        session = self._session(wanted, optimised)
        given = bind(self.contents.arguments, args, kwargs)
        missing = [str(argument) for argument in self.contents.arguments if argument.name not in given]
        if missing:
            raise TypeError(f"input {', '.join(missing)} is missing")
        feeds = {name: ort_value(self._runtime, value) for name, value in given.items()}
        names = [value.name for value in session.get_outputs()]
        found = dict(zip(names, map(tensor_of, session.run_with_ort_values(names, feeds)), strict=True))
        own = [found[value.name] for value in self.model.graph.output]
        output = own[0] if len(own) == 1 else {v.name: t for v, t in zip(self.model.graph.output, own, strict=True)}
        calls = [
            (call.path, {leaf: found[value] for leaf, value in zip(call.leaves, call.values, strict=True)})
            for call in self._scopes.calls
            if call.path in wanted
        ]
        return Ran(output=output, calls=calls)

    def save(self, path: Path, wanted: frozenset[str]) -> str:
        model = self._tapped(wanted)
        if path.parent.resolve() != self._path.parent.resolve():
            self._onnx.load_external_data_for_model(model, str(self._path.parent))
        self._onnx.save(model, str(path))
        return "each tap is an output of its own, named as the value in the graph; metadata layertap.taps has its site"

    def cross_check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: frozenset[str]) -> list[str]:
        """ONNX Runtime fuses across modules: the same taps without any of its optimisations must agree."""
        one, two = (self._run(args, kwargs, wanted, optimised=optimised) for optimised in (False, True))
        floor = floor_of(one.output, len(wanted), two.computes)
        errors = [(largest_difference(a, b)[0], path) for (path, a), (_, b) in zip(one.calls, two.calls, strict=True)]
        worst, where = max([*errors, (largest_difference(one.output, two.output)[0], "the output")])
        if worst == 0:
            return [say("ORT_DISABLE_ALL: without ONNX Runtime's optimisations every capture is bit-identical")]
        if worst <= floor:
            return [
                say(
                    "ORT_DISABLE_ALL: without ONNX Runtime's optimisations all captures agree to {error} of their size",
                    error=f"{worst:.2g}",
                )
            ]
        return [
            say(
                "ORT_DISABLE_ALL: ONNX Runtime's optimisations change {where} by {error} of its length, {ratio} × the "
                "modelled floor",
                where=where,
                error=f"{worst:.2g}",
                ratio=f"{worst / floor if floor else float('inf'):.2g}",
            )
        ]

    def _session(self, wanted: frozenset[str], optimised: bool) -> Any:
        key = wanted, optimised
        if key not in self._sessions:
            options = self._runtime.SessionOptions()
            options.log_severity_level = 3
            level = self._runtime.GraphOptimizationLevel
            options.graph_optimization_level = level.ORT_ENABLE_ALL if optimised else level.ORT_DISABLE_ALL
            source: Any = str(self._path)
            if wanted:
                # Weights beside the file stay there: with them a large model would not fit into one message.
                options.add_session_config_entry(_WEIGHTS_FOLDER, str(self._path.parent.resolve()))
                source = self._tapped(wanted).SerializeToString()
            providers = ["CPUExecutionProvider"]
            self._sessions[key] = self._runtime.InferenceSession(source, options, providers=providers)
        return self._sessions[key]

    def _tapped(self, wanted: frozenset[str]) -> Any:
        model = self._onnx.ModelProto()
        model.CopyFrom(self.model)
        known = {value.name for value in model.graph.output}
        names: dict[str, list[str]] = {}
        for call in self._scopes.calls:
            for leaf, value in zip(call.leaves, call.values, strict=True) if call.path in wanted else ():
                names.setdefault(value, []).append(str(Site(path=call.path, leaf=leaf, call=call.number)))
                if value not in known:
                    known.add(value)
                    model.graph.output.append(self._onnx.helper.make_empty_tensor_value_info(value))
        entry = model.metadata_props.add()
        entry.key = "layertap.taps"
        entry.value = "\n".join(f"{value}\t{' '.join(sites)}" for value, sites in names.items())
        return model

    def _argument(self, value: Any) -> Argument:
        kind = value.type.tensor_type
        shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in kind.shape.dim)
        dtype = self._onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
        return Argument(name=value.name, dtype=dtype, shape=shape)


def weights_of(onnx: Any, graph: Any) -> dict[str, torch.Tensor]:
    """The initialisers that have the name of a parameter, without their data."""
    found = {}
    for tensor in graph.initializer:
        if "." in tensor.name:
            name = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).name
            dtype = getattr(torch, name, torch.float32)
            found[tensor.name] = torch.empty(tuple(tensor.dims), dtype=dtype, device="meta")
    return found


def check_weights(graph: Any, path: Path, name: str) -> None:
    """Weights may lie in files of their own, which are easily left behind, or may name any file of this machine."""
    # A download may be a link into a store of files by content: then its weights lie in that store too.
    folders = {path.parent.resolve(), path.resolve().parent}
    for file in dict.fromkeys(_locations(graph)):
        weights = path.parent / file
        within = any(folder in weights.resolve().parents for folder in folders)
        if not within or Path(file).is_absolute() or ".." in Path(file).parts:
            raise TargetError(f"{name}: its weights are said to lie in {file!r}, outside its folder; that is refused")
        if not weights.is_file():
            raise TargetError(f"{name}: its weights lie in {file}, which is not beside it; copy both files together")


def _locations(graph: Any) -> Iterator[str]:
    """The files that tensors of a graph, and of the graphs in its loops and branches, are said to lie in."""
    tensors = [*graph.initializer, *(part for one in graph.sparse_initializer for part in (one.values, one.indices))]
    for node in graph.node:
        for attribute in node.attribute:
            tensors += [attribute.t, *attribute.tensors]
            for below in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from _locations(below)
    for tensor in tensors:
        yield from (entry.value for entry in tensor.external_data if entry.key == "location")


def _nodes(graph: Any, initializers: set[str]) -> Iterator[Node]:
    shapes: set[str] = set()
    constants = set(initializers)
    for node in graph.node:
        meta = {entry.key: entry.value for entry in node.metadata_props}
        rules = [rule for rule in meta.get(_RULE, "").split(", ") if rule and not rule.startswith(_MERGES_NOTHING)]
        scope = _scope(meta)
        read = [name for name in node.input if name]
        moving = [name for name in read if name not in constants]
        if node.op_type == "Constant" or (read and not moving):
            constants.update(node.output)
        hidden = node.op_type in _SHAPES or (
            node.op_type in _SHAPE_ARITHMETIC and bool(moving) and all(name in shapes for name in moving)
        )
        if hidden:
            shapes.update(node.output)
        yield Node(
            scope=tuple(path for path in scope if path),
            inputs=moving,
            outputs=[name for name in node.output if name],
            parameters=[name for name in read if name in initializers],
            hidden=hidden or node.op_type == "Constant",
            fused=", ".join(rules),
            absorbed=_absorbed(rules, node),
            made_by=_defined(meta.get(_FX)),
            reads=frozenset(re.findall(r"%(\w+)", meta[_FX].partition("=")[2])) if _FX in meta else None,
            known=_SCOPES in meta,
        )


def _absorbed(rules: list[str], node: Any) -> str:
    """The module of the convolution that a normalisation was merged with: the one whose weight is left."""
    if len(rules) != 1 or not rules[0].startswith(_MERGES_ONE):
        return ""
    owner, _, own = str(node.input[1]).rpartition(".")
    return owner if own == "weight" else ""


def _defined(text: str | None) -> str:
    """The name that a line of the original program gives its result: `%relu : [num_users=1] = call_function…`."""
    found = re.match(r"%(\w+)", text or "")
    return found[1] if found else ""


def _modules(graph: Any) -> dict[str, str]:
    modules: dict[str, str] = {"": _kind(graph)}
    for node in graph.node:
        meta = {entry.key: entry.value for entry in node.metadata_props}
        for path, kind in zip(_scope(meta), _listed(meta.get(_CLASSES)), strict=False):
            modules.setdefault(path, kind.rpartition(".")[2])
    # A module that lost its nodes may still have weights.
    for tensor in graph.initializer:
        path = tensor.name.rpartition(".")[0]
        if path and any(other.startswith(f"{path.split('.')[0]}") for other in modules if other):
            modules.setdefault(path, "Module")
    return modules


def _kind(graph: Any) -> str:
    for node in graph.node:
        meta = {entry.key: entry.value for entry in node.metadata_props}
        if _scope(meta) and _listed(meta.get(_CLASSES)):
            return _listed(meta[_CLASSES])[0].rpartition(".")[2]
    return "ONNX"


def _scope(meta: Mapping[str, str]) -> list[str]:
    """The paths of the modules that a node is in, the root's first; none for what the exporter put in of its own."""
    *paths, _ = _listed(meta.get(_SCOPES)) or [""]  # the last is the operation's own name
    return paths if paths[:1] == [""] else []


def _listed(text: str | None) -> list[str]:
    """A list as the exporter writes it: Python's own notation."""
    try:
        found = ast.literal_eval(text) if text else []
    except (ValueError, SyntaxError):
        return []
    return [str(item) for item in found] if isinstance(found, list) else []


def ort_value(runtime: Any, value: Any) -> Any:
    """A tensor for ONNX Runtime."""
    tensor = value.detach().cpu() if isinstance(value, torch.Tensor) else torch.as_tensor(value)
    if tensor.dtype == torch.bfloat16:
        bits = tensor.view(torch.uint16).numpy()
        return runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, 16)  # TensorProto.BFLOAT16
    return runtime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(tensor.numpy()))


def tensor_of(value: Any) -> torch.Tensor:
    """A tensor from ONNX Runtime."""
    if "bfloat16" in value.data_type():
        return torch.utils.dlpack.from_dlpack(value._ortvalue.to_dlpack())
    return torch.from_numpy(value.numpy())


def libraries(name: str) -> tuple[Any, Any]:
    """onnx and onnxruntime."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise MissingExtra(f"{name} needs onnx and onnxruntime: pip install 'layertap[onnx]'") from error
    return onnx, onnxruntime
