"""What each kind of file is read by: all that it holds, as values to compare, and whether something is said to be
missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fuzz.programs import net
from layertap.compare import diff
from layertap.compare.align.mapping import read_rules
from layertap.formats import open_run
from layertap.report.documents.run import run_document
from layertap.report.page import html_of
from layertap.report.screen import plain_text
from layertap.report.show import run_rows, run_view
from layertap.report.steps import losses
from layertap.store import Run
from layertap.sweeping.definition import read_definition
from layertap.sweeping.running import read_sweep
from layertap.targets import open_target
from layertap.targets.inputs import make_inputs
from layertap.testing import load_golden
from layertap.watching.config import read_config
from layertap.watching.trigger_report import read_reports
from layertap.weights import audit, load_pruned
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


def weights(*parts: str) -> Callable[[Path], Found]:
    def read(folder: Path) -> Found:
        entries = open_weights(folder.joinpath(*parts)).entries
        held = [
            (name, entry.shape, str(entry.dtype), [part.numpy().tobytes() for part in entry.blocks()])
            for name, entry in sorted(entries.items())
        ]
        return held, False

    return read


def of_fingerprints(folder: Path) -> Found:
    """Of a file that holds no weights: what an audit says of it is what counts."""
    audit(net(), folder / "fingerprints" / "model.json")
    return None, True


def described(name: str) -> Callable[[Path], Found]:
    """A program is described, never run; its tree and its inputs are what is read."""
    return lambda folder: ([str(open_target(folder / name).describe())], False)


def of_watched(folder: Path) -> Found:
    """A run with what a training leaves beside it; its page is made as well."""
    run = Run(folder / "watched" / "run")
    found, told = whole(run)
    reports = read_reports(folder / "watched" / "run")
    html_of(run_document(run, reports))
    return (found, losses(run), [str(report) for report in reports]), told


def of_pruned(folder: Path) -> Found:
    model = load_pruned(folder / "pruning", net(), inputs=(torch.ones(1, 4),))
    return [(name, value.numpy().tobytes()) for name, value in sorted(model.state_dict().items())], False


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
    "checkpoint": weights("checkpoint"),
    "torchfile": weights("torchfile", "pytorch_model.bin"),
    "distributed": weights("distributed"),
    "gguf": weights("gguf", "net.gguf"),
    "fingerprints": of_fingerprints,
    "torchscript": described("torchscript/net.pt"),
    "exported": described("exported/net.pt2"),
    "watched": of_watched,
    "sweep": lambda folder: ([str(read_sweep(folder / "sweep"))], True),
    "modes": texts("modes", read_definition),
    "inputs": texts("inputs", lambda path: make_inputs(open_target(net()), input=path)),
    "pruning": of_pruned,
    "mapping": texts("mapping", read_rules),
    "watch": texts("watch", read_config),
}
CHECKED = ("run", "golden")
"""What carries checksums of its own: never other data."""
