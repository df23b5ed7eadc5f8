"""A file that was compiled with baked taps, and has its layout with it: any format, however opaque, shows those sites.

One small runner for each format gives the flat outputs; `Layout.split` does the rest, in this process, without the
model's source.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from layertap.errors import LayertapError, MissingExtra, TargetError
from layertap.messages import tr
from layertap.result import Note
from layertap.site import Site
from layertap.store.layout import Layout
from layertap.targets.opaque import no_program, records_of
from layertap.targets.reader import ArtefactContents, Ran, Reader
from layertap.targets.target import error_text

_ABSENT = tr("bake.no_tap")
_WRAPPER = "model."
"""What is before the names of the weights: the model is a child of what was compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """A loaded file of one format."""

    run: Callable[[tuple[Any, ...], Mapping[str, Any]], Any]
    """Inputs → the flat outputs."""
    parameters: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """As the file names them; on the meta device where the runtime holds the data."""
    computes: frozenset[str] = frozenset()
    """The coarser dtypes in which the runtime states that it computes."""
    notes: tuple[str, ...] = ()


class Baked(Reader):
    """A file whose taps were there before it was compiled."""

    can_do_without = False

    def __init__(self, path: Path, name: str, layout: Layout, config: Mapping[str, Any]) -> None:
        self._layout = layout
        form = format_of(path, name)
        try:
            self._runner = _LOADERS[form](path, name, config)
        except LayertapError:
            raise
        except Exception as error:
            raise TargetError(tr("targets.baked_not_loaded", name=name, error=error_text(error))) from error
        self.format = Note("targets.with_baked_taps", form=form)
        self.contents = baked_contents(layout)
        for weight, tensor in self._runner.parameters.items():
            self._know(weight.removeprefix(_WRAPPER), tensor)

    def _know(self, weight: str, tensor: torch.Tensor) -> None:
        """A weight's dtype belongs to the floor, also where its module has no tap."""
        module = weight.rpartition(".")[0]
        if module not in self.contents.modules:
            self.contents.modules[module] = "Module"
            self.contents.lost[module] = _ABSENT
        self.contents.parameters = {**self.contents.parameters, weight: tensor}

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: frozenset[str]) -> Ran:
        output, taps = self._layout.split(self._runner.run(args, kwargs))
        calls: dict[tuple[str, int], dict[str, torch.Tensor]] = {}
        for site, value in taps.items():
            if site.path in wanted and site.role == "output" and isinstance(value, torch.Tensor):
                calls.setdefault((site.path, site.call), {})[site.leaf] = value
        return Ran(
            output=output,
            calls=[(path, values) for (path, _), values in calls.items()],
            notes=list(self._runner.notes),
            computes=self._runner.computes,
        )

    def save(self, path: Path, wanted: frozenset[str]) -> str:
        raise TargetError(tr("targets.taps_already"))


def baked_contents(layout: Layout) -> ArtefactContents:
    """What a layout says of the file that it belongs to."""
    contents = ArtefactContents(kind=layout.model, modules={"": layout.model}, lost=_lost(layout), absent=_ABSENT)
    for tap in layout.taps:
        contents.modules.setdefault(Site.parse(tap.site).path, tap.kind)
    for path in contents.lost:
        contents.modules.setdefault(path, "Module")
    contents.remarks.append(Note("targets.baked_drift_unknown"))
    return contents


def _lost(layout: Layout) -> dict[str, str]:
    lost = {}
    shown = {Site.parse(tap.site).path for tap in layout.taps if _shown(tap)}
    for tap in layout.taps:
        path = Site.parse(tap.site).path
        if path not in shown:
            lost[path] = Note("targets.baked_as", level=tap.level, role=Site.parse(tap.site).role)
    return {
        **lost,
        **{Site.parse(site).path: why for site, why in layout.silent.items() if Site.parse(site).path not in shown},
    }


def _shown(tap: Any) -> bool:
    return bool(tap.level == "tensor" and Site.parse(tap.site).role == "output")


def format_of(path: Path, name: str) -> str:
    """What a file with a layout is, by its name and its members."""
    by_name = {".onnx": "ONNX", ".xml": "OpenVINO", ".vmfb": "IREE"}
    if path.suffix in by_name:
        return by_name[path.suffix]
    records = [f"/{record}" for record in records_of(path)]
    by_member = {"/data/aotinductor/": "AOTInductor", "/code/": "TorchScript", "/models/": "torch.export"}
    for member, form in by_member.items():
        if any(member in record for record in records):
            return form
    raise no_program(path, name)


def _aoti(path: Path, name: str, config: Mapping[str, Any]) -> Runner:
    package = torch._inductor.aoti_load_package(str(path))
    return Runner(run=lambda args, kwargs: package(*args, **kwargs))


def _torchscript(path: Path, name: str, config: Mapping[str, Any]) -> Runner:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        loaded = torch.jit.load(path, map_location="cpu")
    return Runner(run=lambda args, kwargs: loaded(*args, **kwargs), parameters=_data(loaded.named_parameters()))


def _exported(path: Path, name: str, config: Mapping[str, Any]) -> Runner:
    from layertap.targets.exported import as_exported

    program = torch.export.load(path)
    module = program.module()

    def run(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        by_place, by_name = as_exported(program, args, kwargs)
        return module(*by_place, **by_name)

    return Runner(run=run, parameters=_data(program.named_parameters()))


def _onnx(path: Path, name: str, config: Mapping[str, Any]) -> Runner:
    from layertap.targets.onnx_file import check_weights, libraries, ort_value, tensor_of, weights_of

    onnx, runtime = libraries(name)
    graph = onnx.load(str(path), load_external_data=False).graph
    check_weights(graph, path, name)
    weights = weights_of(onnx, graph)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]

    def run(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        feeds = {key: ort_value(runtime, value) for key, value in given.items()}
        return [tensor_of(value) for value in session.run_with_ort_values(None, feeds)]

    return Runner(run=run, parameters=weights)


def _openvino(path: Path, name: str, config: Mapping[str, Any]) -> Runner:
    from layertap.targets.openvino_ir import check_ir, computed_in, library, weights_of

    check_ir(path, name)
    core = library(name).Core()
    model = core.read_model(path)
    compiled = core.compile_model(model, "CPU", dict(config))
    computes, notes = computed_in(compiled, config)

    def run(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        feeds: dict[int | str, Any] = {place: _numpy(value) for place, value in enumerate(args)}
        feeds |= {key: _numpy(value) for key, value in kwargs.items()}
        result = compiled(feeds)
        return [torch.from_numpy(result[port].copy()) for port in compiled.outputs]

    return Runner(run=run, parameters=dict(weights_of(model)), computes=computes, notes=tuple(notes))


def _iree(path: Path, name: str, config: Mapping[str, Any]) -> Runner:
    try:
        from iree import runtime
    except ImportError as error:
        raise MissingExtra(tr("targets.needs_iree", name=name)) from error
    config = runtime.Config("local-sync")
    context = runtime.SystemContext(config=config)
    module = runtime.VmModule.mmap(context.instance, str(path))
    context.add_vm_module(module)
    main = context.modules[module.name].main

    def run(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if kwargs:
            raise TypeError(tr("targets.vmfb_by_place", kwargs=", ".join(kwargs)))
        result = main(*(_numpy(value) for value in args))
        several = result if isinstance(result, (tuple, list)) else (result,)
        return [torch.from_numpy(value.to_host().copy()) for value in several]

    return Runner(run=run)


_LOADERS: dict[str, Callable[[Path, str, Mapping[str, Any]], Runner]] = {
    "ONNX": _onnx,
    "OpenVINO": _openvino,
    "IREE": _iree,
    "AOTInductor": _aoti,
    "TorchScript": _torchscript,
    "torch.export": _exported,
}


def _data(parameters: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in parameters}


def _numpy(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
