"""Whatever holds recorded tensors, as a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from layertap.errors import BadArgument, NotARun
from layertap.files import reading
from layertap.formats.files import LOADERS, is_tensor_file, read_files, read_runner
from layertap.formats.layers import is_layers_file, read_layers
from layertap.formats.monitor import is_monitor_file, read_monitor
from layertap.formats.msprobe import is_msprobe, read_msprobe
from layertap.formats.neuron import is_neuron_file, read_neuron
from layertap.formats.npz import read_npz
from layertap.formats.polygraphy import check_runner
from layertap.formats.sglang import is_dump_file, is_passes, read_dumper, read_passes
from layertap.formats.values import read_values
from layertap.messages import tr
from layertap.store.memory import MemoryWriter
from layertap.store.run import Run
from layertap.store.runfile import run_files
from layertap.store.shards import list_shards
from layertap.store.storage import is_url

_READERS: dict[str, Callable[[Path], Run]] = {
    "layers": read_layers,
    "monitor": read_monitor,
    "neuron": read_neuron,
    "msprobe": read_msprobe,
    "dumper": read_dumper,
    "passes": read_passes,
    "files": read_files,
}


COMPILED = (".pt2", ".onnx", ".xml", ".vmfb", ".neff", ".ts", ".torchscript")
"""Ends of names of models, which have to be run before there is something to compare."""


def open_run(source: Run | MemoryWriter | str | os.PathLike[str] | Mapping[str, Any] | Sequence[Any]) -> Run:
    """Opens a run, what another tool left, or tensors themselves, whichever it is.

    open_run("runs/a"); open_run("gpu_reference/full_model"); open_run("first_layer_io_all_modes.npz#2-1")
    open_run({"layers.0": tensor, "layers.1": tensor}); open_run(outputs.hidden_states)
    """
    if isinstance(source, Run):
        return source
    if isinstance(source, MemoryWriter):
        return Run(source)
    if not isinstance(source, (str, os.PathLike)):
        return read_values(source)
    if isinstance(source, str) and is_url(source):
        return Run(source)
    with reading(str(source), tr("formats.not_its_name"), NotARun):
        run = _open(Path(source))
        run.source = str(source)
        return run


def _open(path: Path) -> Run:
    if path.is_dir():
        return _folder(path)
    if path.is_file():
        if path.suffix == ".npz":
            return read_npz(path)
        if path.suffix == ".json":
            check_runner(path)
        if path.suffix.lower() in LOADERS:
            return read_files(path)
        if path.suffix.lower() in COMPILED:
            raise NotARun(tr("formats.compiled", path=path))
        raise NotARun(
            tr(
                "formats.single",
                path=path,
                suffix=path.suffix or tr("formats.no_suffix"),
                understood=tr("formats.understood"),
            )
        )
    before, sign, mode = str(path).rpartition("#")
    if sign and Path(before).is_file():
        return read_runner(Path(before), mode) if before.endswith(".json") else read_npz(before, mode)
    there = tr("formats.irregular") if path.exists() else tr("formats.missing")
    named = before if sign and not path.exists() else path
    raise NotARun(tr("formats.not_there", path=named, there=there, understood=tr("formats.understood")))


def layout_of(folder: Path) -> str | None:
    """What a folder holds: "run", "layers", "monitor", "neuron", "msprobe", "dumper", "passes", "files", or None.

    Names decide, and a run of layertap's own comes first; plain files come last.
    """
    if not folder.is_dir():
        return None
    if run_files(folder) or list_shards(folder):
        return "run"
    names = os.listdir(folder)
    found = [
        layout
        for layout, mine in (("layers", is_layers_file), ("monitor", is_monitor_file), ("neuron", is_neuron_file))
        if any(mine(name) for name in names)
    ]
    if len(found) > 1:
        raise BadArgument(tr("formats.two_layouts", folder=folder, found=" and ".join(found)))
    if found:
        return found[0]
    if is_msprobe(folder):
        return "msprobe"
    if any(map(is_dump_file, names)):
        return "dumper"
    if is_passes(folder):
        return "passes"
    return "files" if any(is_tensor_file(name, folder) for name in names) else None


def _folder(folder: Path) -> Run:
    layout = layout_of(folder)
    if layout == "run":
        return Run(folder)
    if layout is not None:
        return _READERS[layout](folder)
    names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    arrays = [name for name in names if name.endswith(".npz")]
    there = (
        tr("formats.empty")
        if not names
        else tr("formats.contains", value=", ".join(names[:5]), value2=" ..." if len(names) > 5 else "")
    )
    hint = tr("formats.give_file", value=folder / arrays[0]) if arrays else ""
    raise NotARun(tr("formats.no_run", folder=folder, there=there, hint=hint, understood=tr("formats.understood")))
