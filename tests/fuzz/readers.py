"""What each kind of file is read by: all that it holds, as values to compare, and whether something is said to be
missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from layertap.compare import diff
from layertap.compare.align.mapping import read_rules
from layertap.formats import open_run
from layertap.report.screen import plain_text
from layertap.report.show import run_rows, run_view
from layertap.store import Run
from layertap.testing import load_golden
from layertap.watching.config import read_config
from layertap.weights.sources import open_weights

Found = tuple[Any, bool]


def whole(run: Run) -> Found:
    """All that a run holds; it is shown as well."""
    held = []
    for record in run.records():
        tensor = b"" if record.kept == "stats" else run.kept_bytes(record).tobytes()
        key = str(record.site), record.step, record.shape, record.dtype, record.fingerprint
        held.append((*key, repr(record.statistics), tensor))
    plain_text(run_view(run, run_rows(run)))
    _ = str(run), str(run.receipt), [str(run[site]) for site in run.sites]
    return sorted(held), bool(run.problems)


def of_run(folder: Path) -> Found:
    found = whole(Run(folder / "run"))
    str(diff(folder / "reference", folder / "run"))
    return found


def of_checkpoint(folder: Path) -> Found:
    entries = open_weights(folder / "checkpoint").entries
    held = [
        (name, entry.shape, str(entry.dtype), [part.numpy().tobytes() for part in entry.blocks()])
        for name, entry in sorted(entries.items())
    ]
    return held, False


def opened(*parts: str) -> Callable[[Path], Found]:
    return lambda folder: whole(open_run(folder.joinpath(*parts)))


def texts(kind: str, read: Callable[[Path], Any]) -> Callable[[Path], Found]:
    """Of texts nothing can tell what they said before; what counts is how they are refused."""
    return lambda folder: ([str(read(path)) for path in sorted((folder / kind).iterdir())], True)


READERS: dict[str, Callable[[Path], Found]] = {
    "run": of_run,
    "golden": lambda folder: whole(load_golden(folder / "golden" / "g.layertap")),
    **{kind: opened(kind) for kind in ("layers", "monitor", "neuron", "msprobe", "sglang", "passes", "npy")},
    "npz": opened("npz", "io.npz"),
    "safetensors": opened("safetensors", "states.safetensors"),
    "polygraphy": opened("polygraphy", "results.json"),
    "nested": opened("nested", "nested.pt"),
    "checkpoint": of_checkpoint,
    "mapping": texts("mapping", read_rules),
    "watch": texts("watch", read_config),
}
CHECKED = ("run", "golden")
"""What carries checksums of its own: never other data."""
