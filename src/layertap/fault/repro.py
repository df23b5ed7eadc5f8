"""The culprit in a folder of its own: the module on both sides, what it was given, both outputs, and a script."""

from __future__ import annotations

import copy
import itertools
import json
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from layertap.errors import LayertapError
from layertap.fault.result import ModuleRow
from layertap.messages import tr

SIDES = ("candidate", "reference")
COPIED = 32 << 20
"""Modules of no more bytes than this are copied with the finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """What is needed to show one fault again, without the rest of the models."""

    row: ModuleRow
    reference: weakref.ref[nn.Module] | None
    candidate: weakref.ref[nn.Module] | None
    """Weak, so that a finding keeps no model alive."""
    arguments: tuple[Any, Any] | None
    """What the candidate's module is called with: the reference's values."""
    right: dict[str, torch.Tensor]
    """What the reference's returned."""
    cause: str
    evidence: tuple[str, ...]

    def module(self, side: str) -> nn.Module | None:
        """The module of a side, if it is still there."""
        handle: weakref.ref[nn.Module] | None = getattr(self, side)
        return None if handle is None else handle()


class ReproWriter:
    """Writes the folder when it is wanted; only in this process, so pickled it is None."""

    def __init__(self, witness: Witness) -> None:
        self.witness = witness
        # Small modules are copied, so that the folder can be written when the models are gone.
        self.copies = {side: _copied(witness.module(side)) for side in SIDES}
        self.devices = {side: _device(witness.module(side)) for side in SIDES}

    def __call__(self, path: Path) -> Path:
        return self._write(self.witness, path)

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, ()

    def _write(self, witness: Witness, path: Path) -> Path:
        if witness.candidate is None or witness.arguments is None:
            raise LayertapError(tr("repro.never_called", path=witness.row.path or tr("fault.model")))
        for side in SIDES:
            if getattr(witness, side) is not None and witness.module(side) is None and self.copies[side] is None:
                raise LayertapError(tr("repro.models_gone"))
        if path.exists() and any(path.iterdir() if path.is_dir() else [path]):
            raise LayertapError(tr("repro.exists", path=path))
        path.mkdir(parents=True, exist_ok=True)
        torch.save(witness.arguments, path / "arguments.pt")
        torch.save(witness.right, path / "expected.pt")
        saved = {side: self._save(side, path) for side in SIDES}
        about = {
            "module": witness.row.path,
            "class": witness.row.kind,
            "cause": witness.cause,
            "evidence": list(witness.evidence),
            "local": witness.row.local,
            "floor": witness.row.floor,
            "saved": saved,
            "device": self.devices,
            "torch": torch.__version__,
        }
        (path / "about.json").write_text(json.dumps(about, indent=2), encoding="utf-8")
        (path / "repro.py").write_text(SCRIPT, encoding="utf-8")
        return path

    def _save(self, side: str, path: Path) -> str:
        live = self.witness.module(side)
        return _save(side, path, self.copies[side] if live is None else live, self.witness)


def _nothing() -> None:
    """What a writer is in another process."""


def _copied(module: nn.Module | None) -> nn.Module | None:
    """A copy of a module, on its device; None where it is large or cannot be copied. It is pickled when it is wanted:
    that takes as long as running the model several times."""
    tensors = () if module is None else itertools.chain(module.parameters(), module.buffers())
    if module is None or sum(tensor.nbytes for tensor in tensors) > COPIED:
        return None
    try:
        return copy.deepcopy(module)
    except Exception:  # noqa: BLE001  a module refuses with what it likes; then the live one is needed
        return None


def _save(side: str, path: Path, module: nn.Module | None, witness: Witness) -> str:
    """As a pickled module where its class can be found again, else as an exported program, which needs no class."""
    assert witness.arguments is not None
    if module is None:
        return "absent"
    try:
        torch.save(module, path / f"{side}.pt")
        torch.load(path / f"{side}.pt", weights_only=False, map_location="cpu")
    except Exception as error:  # noqa: BLE001  pickle fails with what it likes; there is a second way
        (path / f"{side}.pt").unlink(missing_ok=True)
        args, kwargs = witness.arguments
        try:
            torch.export.save(torch.export.export(module, args, kwargs, strict=False), path / f"{side}.pt2")
        except Exception as second:  # noqa: BLE001  the same of export
            (path / f"{side}.pt2").unlink(missing_ok=True)
            return tr("repro.not_saved", line=_line(error), line2=_line(second))
        return "exported"
    return "pickled"


def _device(module: nn.Module | None) -> str:
    tensors = () if module is None else itertools.chain(module.parameters(), module.buffers())
    return str(next((tensor.device for tensor in tensors), "cpu"))


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


SCRIPT = '''"""Shows one module's fault again: python repro.py"""

import contextlib
import copy
import importlib
import json
from pathlib import Path

import torch

here = Path(__file__).parent
about = json.loads((here / "about.json").read_text())
args, kwargs = torch.load(here / "arguments.pt", weights_only=False, map_location="cpu")
expected = torch.load(here / "expected.pt", weights_only=False, map_location="cpu")


def place(side):
    """The device that this side ran on, if this machine has it."""
    name = about["device"][side]
    try:
        with contextlib.suppress(ImportError):
            importlib.import_module(f"torch_{name.split(':')[0]}")  # torch_xla, torch_npu
        torch.empty(1, device=name)
    except Exception:
        print(f"{side}: ran on {name}, which is not here; now on the CPU")
        return "cpu"
    return name


def load(side):
    if (here / f"{side}.pt").exists():
        return torch.load(here / f"{side}.pt", weights_only=False, map_location="cpu").to(place(side))
    if (here / f"{side}.pt2").exists():
        return torch.export.load(here / f"{side}.pt2").module()
    print(f"{side}: {about['saved'][side]}")
    return None


def first(value):
    if isinstance(value, torch.Tensor):
        return value
    parts = value.values() if isinstance(value, dict) else value
    return next(first(part) for part in parts if part is not None)


def cast(value, dtype, device):
    """A copy for one side: a cache among the arguments is written into."""
    if isinstance(value, torch.Tensor):
        return value.to(device, dtype if value.is_floating_point() else value.dtype, copy=True)
    if isinstance(value, (tuple, list)):
        return type(value)(cast(part, dtype, device) for part in value)
    if isinstance(value, dict):
        return {key: cast(part, dtype, device) for key, part in value.items()}
    if not isinstance(value, type) and hasattr(value, "__dict__"):
        value = copy.copy(value)
        vars(value).update({name: cast(part, dtype, device) for name, part in vars(value).items()})
    return value


def error(found, right):
    found, right = found.cpu().double(), right.double()
    return ((found - right).norm() / right.norm()).item()


print(f"{about['module'] or 'the model'} ({about['class']}): {about['cause']}: {'; '.join(about['evidence'])}")
right = next(iter(expected.values()))
for side in ("reference", "candidate"):
    module = load(side)
    if module is None:
        continue
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), right.dtype)
    device = next((p.device for p in module.parameters()), "cpu")
    with torch.no_grad():
        found = first(module(*cast(args, dtype, device), **cast(kwargs, dtype, device)))
    print(f"{side}: relative error {error(found, right):.3g} against what the reference returned")
print(f"rounding explains {about['floor']:.3g}")
'''
