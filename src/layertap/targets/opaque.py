"""Files in which no layer can be seen: what they are, why, and the line to run before compiling."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from layertap.errors import TargetError
from layertap.files import open_regular

BAKE = 'tapped = lt.bake(model, sites="…"), then compile tapped instead of model; output, taps = tapped.split(raw)'
_OPAQUE = {
    ".vmfb": (
        "IREE bytecode",
        "it holds the device's code and its outputs only; no module or operator has a name in it",
    ),
    ".neff": (
        "a Neuron executable (NEFF)",
        "it holds the device's instructions and its outputs only; no module has a name in it",
    ),
    ".so": ("a shared library (AOTInductor)", "it holds machine code and its outputs only"),
    ".engine": ("a TensorRT engine", "it holds fused device code and its outputs only"),
    ".plan": ("a TensorRT engine", "it holds fused device code and its outputs only"),
}


def opaque(path: Path, name: str) -> TargetError | None:
    """The error for a file of which only the outputs can be seen; None if it may be another kind."""
    if path.suffix in _OPAQUE:
        return _error(name, *_OPAQUE[path.suffix])
    records = records_of(path)
    if any("/data/aotinductor/" in f"/{record}" for record in records) and not any(
        re.search(r"(^|/)models/.*\.json$", record) for record in records
    ):
        what = "it holds machine code and its outputs only; no module has a name in it"
        return _error(name, "a package of AOTInductor binaries", what)
    return None


def frozen_torchscript(name: str) -> TargetError:
    """Freezing inlines every module into one graph and forgets their names."""
    why = (
        "freezing made one graph of it and dropped the names of its modules; open the file from before torch.jit.freeze"
    )
    return _error(name, "frozen TorchScript", why)


def foreign_device(name: str, text: str) -> TargetError | None:
    """The error for TorchScript that wraps another device's binary, from what `torch.jit.load` says."""
    found = re.search(r"__torch__\.torch\.classes\.([\w.]+)", text)
    if found is None:
        return None
    holder = found[1]
    if "neuron" in holder.lower():
        return TargetError(
            f"{name} is TorchScript around a Neuron executable (class {holder}): its layers are inside the NEFF and "
            "cannot be seen, and this process has no torch_neuronx to run it. Before compiling: "
            "layertap.targets.neuron.prepare(neuron_config, sites); then layertap.targets.neuron.run(app, …) records it"
        )
    return TargetError(
        f"{name} needs the class torch.classes.{holder}, which this process does not have; import the library that "
        f"registers it first. What runs inside that class cannot be seen. Before compiling: {BAKE}"
    )


def no_program(path: Path, name: str) -> TargetError:
    """The error for a file that is neither TorchScript nor of torch.export, from its first bytes and its records."""
    way_out = "open the model that they belong to: file.py:factory or hf:PATH"
    if any(record.endswith("data.pkl") for record in records_of(path)):
        return TargetError(
            f"{name} holds weights, or a pickled model (torch.save), not a program that can be run; {way_out}"
        )
    with path.open("rb") as file:
        start = file.read(2)
    if not start:
        return TargetError(f"{name} is empty")
    text = f"{name} is no file of torch.jit.save or torch.export.save"
    if start == b"PK" and not records_of(path):
        return TargetError(f"{text}: an archive that is damaged, or not all there; copy it again")
    if start[0] == 0x80:
        return TargetError(f"{text}: a pickle, which is not opened, since it could run code; {way_out}")
    return TargetError(text)


def records_of(path: Path) -> list[str]:
    """The names in an archive; none for a file that is no archive."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):  # a name that cannot be one is a ValueError
        return []


def _error(name: str, what: str, why: str) -> TargetError:
    return TargetError(f"{name} is {what}: its layers cannot be seen, since {why}. Before compiling: {BAKE}")
