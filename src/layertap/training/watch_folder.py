"""Where a watch writes: its folder, or one beside it, and what was recorded there before."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from layertap.errors import LayertapError
from layertap.store import Run
from layertap.training.claim import Claim


def claim_folder(path: Path, rank: int, model: str) -> Claim:
    """Takes a folder for this process; where it is taken, `path-Model` (a second model) or `path-pid4711`."""

    def beside(folder: Path, ours: bool) -> Iterator[Path]:
        name = f"{folder.name}-{model}" if ours else f"{folder.name}-pid{os.getpid()}"
        return (folder.with_name(name if number == 1 else f"{name}-{number}") for number in itertools.count(1))

    return Claim(path, rank, beside)


def last_step(path: Path) -> int | None:
    """The last step that is recorded in a folder already."""
    try:
        steps = Run(path).index.steps()
    except LayertapError:
        return None
    return int(steps[-1]) if len(steps) else None
