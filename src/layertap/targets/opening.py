"""Reads a spec and hands it to the file that can open it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layertap.errors import BadArgument, NotARun, TargetError
from layertap.messages import tr
from layertap.result import Note
from layertap.store.layout import Layout
from layertap.targets.file import factories_in, open_file
from layertap.targets.hf import open_hf
from layertap.targets.opaque import foreign_device, no_program, opaque, records_of
from layertap.targets.target import Inputs, Target

_KINDS = "targets.kinds"
ARTEFACTS = (".pt", ".pth", ".ts", ".pt2", ".onnx", ".xml")
"""How a compiled file's name may end."""


def open_target(
    spec: str | os.PathLike[str] | Any,
    *,
    config: Mapping[str, Any] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Target:
    """Opens `file.py:factory`, `hf:PATH`, or a compiled file: TorchScript, `.pt2`, `.onnx`, OpenVINO's `.xml`.

    A model, a ScriptModule, an ExportedProgram or an app of NxD Inference in memory is taken as it is. `config` is for
    OpenVINO's compiler, for instance `{"INFERENCE_PRECISION_HINT": "f32"}`; `arguments` are the factory's, by name.

    >>> open_target("resnet50")
    Traceback (most recent call last):
    layertap.errors.TargetError: 'resnet50' is not a target; expected file.py:factory (a function that returns ...
    """
    if config and Path(str(spec)).suffix != ".xml":
        raise BadArgument(tr("targets.config", dict=dict(config), spec=spec))
    if not isinstance(spec, (str, os.PathLike)):
        return _in_memory(spec)
    text = os.fspath(spec)
    if arguments and not text.rpartition(":")[0].endswith(".py"):
        raise BadArgument(tr("targets.arguments", arguments=dict(arguments), text=text))
    if text.startswith("hf:"):
        return open_hf(Path(text.removeprefix("hf:")).expanduser(), text)
    name, colon, factory = text.rpartition(":")
    if colon and name.endswith(".py"):
        return open_file(Path(name).expanduser(), factory, text, arguments or {})
    path = Path(text).expanduser()
    if path.is_file():
        layout = layout_of(path)
        if layout is not None:
            return _baked(path, text, layout, config or {})
        error = opaque(path, text)
        if error is not None:
            raise error
    if path.suffix in ARTEFACTS or records_of(path):  # whatever it is called, an archive can be looked into
        return _open_artefact(path, text, config or {})
    raise TargetError(tr("targets.no_target", text=text, way_out=_way_out(text)))


def layout_of(path: Path) -> Layout | None:
    """The layout of baked taps, inside or beside a file; None for a file without."""
    try:
        return Layout.load(path)
    except NotARun:
        return None


def _open_artefact(path: Path, name: str, config: Mapping[str, Any]) -> Target:
    if path.is_dir():
        raise TargetError(tr("targets.is_folder", name=name))
    if not path.is_file():
        raise TargetError(tr("targets.no_file", name=name, path=path, cwd=Path.cwd()))
    if path.suffix == ".onnx":
        from layertap.targets.onnx_file import Onnx

        return _target(Onnx(path, name), name)
    if path.suffix == ".xml":
        from layertap.targets.openvino_ir import OpenVino

        return _target(OpenVino(path, name, config), name)
    records = records_of(path)
    if any(re.search(r"(^|/)models/.*\.json$", record) for record in records):
        return _program(path, name)
    if any(re.search(r"(^|/)code/", record) for record in records):
        from layertap.targets.compiled import CompiledTarget, Outline
        from layertap.targets.outline_script import script_contents

        return CompiledTarget(
            Outline("TorchScript", script_contents(path, name)), name, lambda: _torchscript(path, name)
        )
    raise no_program(path, name)


def _program(path: Path, name: str) -> Target:
    from layertap.targets.archive import Archive, load_tensors, refuse_pickles
    from layertap.targets.compiled import CompiledTarget, Outline
    from layertap.targets.outline_program import missing_operators, program_contents

    archive = Archive(path, name)
    refuse_pickles(archive, name)

    def load() -> Any:
        from layertap.targets.exported import ExportedFile

        missing = missing_operators(path, name)
        if missing:
            raise TargetError(tr("targets.needs", name=name, missing=_unknown(missing)))
        return ExportedFile(path, name)

    def samples() -> Inputs | None:
        found = archive.find(r"data/sample_inputs/.*\.pt")
        return _parted(load_tensors(archive, found[0], name)) if found else None

    contents = program_contents(path, name)
    missing = missing_operators(path, name)
    if missing:
        contents.remarks.append(Note("targets.needs_operator", unknown=_unknown(missing)))
    return CompiledTarget(Outline("torch.export", contents), name, load, samples)


def _unknown(operators: list[str]) -> str:
    """Operators that are not registered, and how to register them."""
    shown = ", ".join(operators[:4]) + (
        Note("targets.and_more", count=len(operators) - 4) if len(operators) > 4 else ""
    )
    known = {"transformers": "transformers.integrations.moe", "torchvision": "torchvision", "torchao": "torchao"}
    namespace = operators[0].partition("::")[0]
    module = known.get(namespace, "NAME")
    where = "" if namespace in known else Note("targets.where_name")
    return Note("targets.operator", shown=shown, module=module, where=where)


def _baked(path: Path, name: str, layout: Layout, config: Mapping[str, Any]) -> Target:
    from layertap.targets.archive import Archive, refuse_pickles
    from layertap.targets.baked_file import Baked, baked_contents, format_of
    from layertap.targets.compiled import CompiledTarget, Outline

    form = format_of(path, name)
    if form == "torch.export":
        refuse_pickles(Archive(path, name), name)
    if form in ("ONNX", "OpenVINO"):  # these are data: opening them runs nothing
        return _target(Baked(path, name, layout, config), name)
    outline = Outline(Note("targets.with_baked_taps", form=form), baked_contents(layout))
    return CompiledTarget(outline, name, lambda: Baked(path, name, layout, config))


def _torchscript(path: Path, name: str) -> Any:
    from layertap.targets.torchscript import TorchScript

    try:
        return TorchScript(path, name)
    except RuntimeError as error:
        known = foreign_device(name, str(error))
        first = str(error).strip().partition("\n")[0]
        raise known or TargetError(tr("targets.jit_load", name=name, first=first)) from error


def _in_memory(spec: Any) -> Target:
    torch = sys.modules.get("torch")  # whoever holds a model has imported it
    name = type(spec).__name__
    if torch is not None and isinstance(spec, torch.jit.ScriptModule):
        from layertap.targets.torchscript import TorchScript

        return _target(TorchScript(spec, name), name)
    if torch is not None and isinstance(spec, torch.export.ExportedProgram):
        from layertap.targets.exported import ExportedFile

        return _target(ExportedFile(spec, name), name, _examples(spec))
    if hasattr(spec, "models") and hasattr(spec, "neuron_config"):
        from layertap.targets.neuron import open_app

        return open_app(spec)
    if torch is not None and isinstance(spec, torch.nn.Module):
        return Target(model=spec, name=name)
    raise TargetError(tr("targets.no_target_object", name=name, KINDS=tr(_KINDS)))


def _target(reader: Any, name: str, inputs: Inputs | None = None) -> Target:
    from layertap.targets.shadow import as_model

    return Target(model=as_model(reader), inputs=inputs, name=name)


def _examples(program: Any) -> Inputs | None:
    """The inputs with which the program was exported, which travel with it."""
    return _parted(program.example_inputs)


def _parted(examples: Any) -> Inputs | None:
    if not isinstance(examples, tuple) or len(examples) != 2:
        return None
    args, kwargs = examples
    if kwargs and not args:
        return dict(kwargs)
    return tuple(args) if args and not kwargs else None


def _way_out(text: str) -> str:
    path = Path(text).expanduser()
    if path.suffix == ".py":
        names = factories_in(path) if path.is_file() else []
        return Note("targets.name_factory", text=text, names=names[0] if names else "NAME") + (
            Note("targets.file_has", names=", ".join(names)) if names else ""
        )
    if (path / "config.json").is_file():
        return Note("targets.looks_hf", text=text)
    return tr("targets.expected", KINDS=tr(_KINDS))
