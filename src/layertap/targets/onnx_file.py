"""`.onnx`: torch's exporter (`dynamo=True`) leaves the module path on every node; ONNX Runtime runs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from layertap.errors import MissingExtra, TargetError
from layertap.messages import tr
from layertap.result import Note
from layertap.site import Site
from layertap.targets.onnx_scopes import INTEGERS, kind_of, read_graph
from layertap.targets.reader import Argument, ArtefactContents, Ran, Reader, bind
from layertap.targets.scopes import Scopes
from layertap.targets.trust import floor_of, largest_difference

LARGEST = 256 << 20
"""Bytes of a model that is copied once to find out the dtypes of its values."""
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


class Onnx(Reader):
    """A loaded ONNX model, with one session of ONNX Runtime for each set of taps."""

    format = "ONNX"

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        self._onnx, self._runtime = libraries(name)
        try:
            self.model = self._onnx.load(str(path), load_external_data=False)
        except Exception as error:
            raise TargetError(tr("onnx.unreadable", name=name, name2=type(error).__name__, error=error)) from error
        graph = self.model.graph
        if not graph.node:
            raise TargetError(tr("onnx.no_graph", name=name))
        check_weights(graph, path, name)
        found = read_graph(self._typed(graph))
        if not found.nodes:
            raise TargetError(tr("onnx.no_operation", name=name))
        initializers = {tensor.name for tensor in graph.initializer}
        inputs = [value for value in graph.input if value.name not in initializers]
        self._scopes = Scopes(found.nodes, [value.name for value in inputs], [value.name for value in graph.output])
        self.contents = ArtefactContents(
            kind=kind_of(graph),
            modules=found.modules,
            arguments=tuple(self._argument(value) for value in inputs),
            parameters=weights_of(self._onnx, graph),
            remarks=found.remarks,
        )
        self._scales = found.scales
        for call in self._scopes.calls:
            if any(value in found.integers and value not in found.scales for value in call.values):
                found.lost[call.path] = Note(INTEGERS)
        self._scopes.calls = [call for call in self._scopes.calls if call.path not in found.lost]
        self.contents.lost.update(found.lost)
        self._scopes.fill(self.contents)
        self._computes = frozenset({"int8"} if found.quantised else ())
        self._sessions: dict[tuple[frozenset[str], bool], Any] = {}

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: frozenset[str]) -> Ran:
        return self._run(args, kwargs, wanted, optimised=True)

    def _run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: frozenset[str], optimised: bool) -> Ran:
        session = self._session(wanted, optimised)
        given = bind(self.contents.arguments, args, kwargs)
        missing = [str(argument) for argument in self.contents.arguments if argument.name not in given]
        if missing:
            raise TypeError(tr("inputs.missing", missing=", ".join(missing)))
        feeds = {name: ort_value(self._runtime, value) for name, value in given.items()}
        names = [value.name for value in session.get_outputs()]
        found = dict(zip(names, map(tensor_of, session.run_with_ort_values(names, feeds)), strict=True))
        own = [found[value.name] for value in self.model.graph.output]
        output = own[0] if len(own) == 1 else {v.name: t for v, t in zip(self.model.graph.output, own, strict=True)}
        calls = [
            (call.path, {leaf: found[self._tap(value)] for leaf, value in zip(call.leaves, call.values, strict=True)})
            for call in self._scopes.calls
            if call.path in wanted
        ]
        return Ran(output=output, calls=calls, computes=self._computes)

    def save(self, path: Path, wanted: frozenset[str]) -> str:
        model = self._tapped(wanted)
        if path.parent.resolve() != self._path.parent.resolve():
            self._onnx.load_external_data_for_model(model, str(self._path.parent))
        self._onnx.save(model, str(path))
        return Note("onnx.tap_outputs")

    def cross_check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: frozenset[str]) -> list[str]:
        """ONNX Runtime fuses across modules: the same taps without any of its optimisations must agree."""
        one, two = (self._run(args, kwargs, wanted, optimised=optimised) for optimised in (False, True))
        floor = floor_of(one.output, len(wanted), two.computes)
        errors = [(largest_difference(a, b)[0], path) for (path, a), (_, b) in zip(one.calls, two.calls, strict=True)]
        worst, where = max([*errors, (largest_difference(one.output, two.output)[0], Note("onnx.the_output"))])
        if worst == 0:
            return [Note("onnx.cross_identical")]
        if worst <= floor:
            return [
                Note(
                    "onnx.cross_agree",
                    error=f"{worst:.2g}",
                )
            ]
        return [
            Note(
                "onnx.cross_differ",
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
                name = self._tap(value)
                names.setdefault(name, []).append(str(Site(path=call.path, leaf=leaf, call=call.number)))
                if name in known:
                    continue
                known.add(name)
                if name != value:
                    read = [value, *self._scales[value]]
                    model.graph.node.append(self._onnx.helper.make_node("DequantizeLinear", read, [name]))
                model.graph.output.append(self._onnx.helper.make_empty_tensor_value_info(name))
        entry = model.metadata_props.add()
        entry.key = "layertap.taps"
        entry.value = "\n".join(f"{value}\t{' '.join(sites)}" for value, sites in names.items())
        return model

    def _typed(self, graph: Any) -> Any:
        """The graph with the dtypes of its values, which some exporters leave out; as it is where that is too large."""
        if graph.value_info or self.model.ByteSize() > LARGEST:
            return graph
        try:
            return self._onnx.shape_inference.infer_shapes(self.model).graph
        except Exception:  # noqa: BLE001  operators of other domains; then a cast that does nothing is not known as one
            return graph

    def _tap(self, value: str) -> str:
        """What is made an output to see a value: the value itself, or the floats that its integers represent."""
        return f"{value}/layertap" if value in self._scales else value

    def _argument(self, value: Any) -> Argument:
        kind = value.type.tensor_type
        shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in kind.shape.dim)
        dtype = self._onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
        return Argument(name=value.name, dtype=dtype, shape=shape)


def weights_of(onnx: Any, graph: Any) -> dict[str, torch.Tensor]:
    """The initialisers that have the name of a parameter, or that a quantiser rounded, without their data."""
    found = {}
    for tensor in graph.initializer:
        rounded = tensor.name.endswith("_quantized")
        if "." in tensor.name or rounded:
            dtype = getattr(torch, onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).name, torch.float32)
            if rounded and not dtype.is_floating_point:
                dtype = torch.int8  # of either sign, and of 4 bits too: the coarsest rounding that is distinguished
            # One without a module's name belongs to the file as a whole.
            name = tensor.name if "." in tensor.name else tensor.name.strip("/").replace("/", "_")
            found[name] = torch.empty(tuple(tensor.dims), dtype=dtype, device="meta")
    return found


def check_weights(graph: Any, path: Path, name: str) -> None:
    """Weights may lie in files of their own, which are easily left behind, or may name any file of this machine."""
    # A download may be a link into a store of files by content: then its weights lie in that store too.
    folders = {path.parent.resolve(), path.resolve().parent}
    for file in dict.fromkeys(_locations(graph)):
        weights = path.parent / file
        within = any(folder in weights.resolve().parents for folder in folders)
        if not within or Path(file).is_absolute() or ".." in Path(file).parts:
            raise TargetError(tr("onnx.weights_outside", name=name, file=file))
        if not weights.is_file():
            raise TargetError(tr("onnx.weights_missing", name=name, file=file))


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
        raise MissingExtra(tr("onnx.needs", name=name)) from error
    return onnx, onnxruntime
