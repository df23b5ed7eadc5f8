"""Files in which no layer can be seen: what they are, why, and the line to run before compiling."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from layertap.errors import TargetError
from layertap.files import open_regular
from layertap.messages import tr

BAKE = "opaque.bake"
_OPAQUE = {
    ".vmfb": (
        "opaque.is_vmfb",
        "opaque.iree",
    ),
    ".neff": (
        "opaque.is_neff",
        "opaque.neff",
    ),
    ".so": ("opaque.is_so", "opaque.machine_code"),
    ".engine": ("opaque.is_engine", "opaque.device_code"),
    ".plan": ("opaque.is_engine", "opaque.device_code"),
}


def opaque(path: Path, name: str) -> TargetError | None:
    """The error for a file of which only the outputs can be seen; None if it may be another kind."""
    if path.suffix in _OPAQUE:
        return _error(name, *map(tr, _OPAQUE[path.suffix]))
    records = records_of(path)
    if any("/data/aotinductor/" in f"/{record}" for record in records) and not any(
        re.search(r"(^|/)models/.*\.json$", record) for record in records
    ):
        what = tr("opaque.no_module_names")
        return _error(name, tr("opaque.is_package"), what)
    return None


def frozen_torchscript(name: str) -> TargetError:
    """Freezing inlines every module into one graph and forgets their names."""
    why = tr("opaque.frozen")
    return _error(name, tr("opaque.frozen_script"), why)


def foreign_device(name: str, text: str) -> TargetError | None:
    """The error for TorchScript that wraps another device's binary, from what `torch.jit.load` says."""
    found = re.search(r"__torch__\.torch\.classes\.([\w.]+)", text)
    if found is None:
        return None
    holder = found[1]
    if "neuron" in holder.lower():
        return TargetError(tr("opaque.around_neff", name=name, holder=holder))
    return TargetError(tr("opaque.needs_class", name=name, holder=holder, BAKE=tr(BAKE)))


def no_program(path: Path, name: str) -> TargetError:
    """The error for a file that is neither TorchScript nor of torch.export, from its first bytes and its records."""
    way_out = tr("opaque.open_model")
    if any(record.endswith("data.pkl") for record in records_of(path)):
        return TargetError(tr("opaque.weights", name=name, way_out=way_out))
    with path.open("rb") as file:
        start = file.read(2)
    if not start:
        return TargetError(tr("opaque.empty", name=name))
    text = tr("opaque.no_file_of", name=name)
    if start == b"PK" and not records_of(path):
        return TargetError(tr("opaque.damaged", text=text))
    if start[0] == 0x80:
        return TargetError(tr("opaque.pickle", text=text, way_out=way_out))
    return TargetError(text)


def records_of(path: Path) -> list[str]:
    """The names in an archive; none for a file that is no archive."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):  # a name that cannot be one is a ValueError
        return []


def _error(name: str, what: str, why: str) -> TargetError:
    return TargetError(tr("opaque.invisible", name=name, what=what, why=why, BAKE=tr(BAKE)))
