"""A run in the layout of another tool."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from layertap.errors import BadArgument, RunExists
from layertap.formats.detect import layout_of
from layertap.formats.layers import is_layers_file, write_layers
from layertap.formats.monitor import is_monitor_file, write_monitor
from layertap.formats.npz import FILE, stats_name, write_npz
from layertap.formats.staging import Exported, LeftOut, Progress, Staging
from layertap.messages import tr
from layertap.store.run import Run

__all__ = ["LAYOUTS", "Exported", "LeftOut", "export"]

LAYOUTS = ("layers", "monitor", "npz")
_MINE = {"layers": is_layers_file, "monitor": is_monitor_file}


def export(
    run: Run | Mapping[str, Run],
    path: str | os.PathLike[str],
    layout: Literal["layers", "monitor", "npz"] = "layers",
    *,
    exists: Literal["error", "replace"] = "error",
    names: Mapping[str, str] | None = None,
    step: int | None = None,
    mode: str | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Writes a run in one of the three layouts, and says what has no place there.

        export(run, "full_model", "layers")                          # embedding, layer_1 ..., final_norm, logits
        export(run, "outputs", "monitor", names={"fc": "hidden"})    # path -> alias
        export({"fp32": a, "2-1": b}, "io.npz", "npz")               # or one run, with mode="fp32"
        print(export(run, "full_model"))

    `names` (path -> the layout's name) wins over names found by rule. Layouts of one step take the first, or `step`.
    Files are written under temporary names and renamed together; `exists="replace"` also removes what an older export
    left in the folder. Every value stays as it is, to the bit; only .npz has no bfloat16 and widens it to float32.
    """
    if layout not in LAYOUTS:
        raise BadArgument(tr("formats.layout", layout=layout, value=", ".join(map(repr, LAYOUTS))))
    if exists not in ("error", "replace"):
        raise BadArgument(tr("formats.exists", exists=exists))
    if layout == "npz":
        return _npz(run, Path(path), exists, names or {}, step, mode, progress)
    if not isinstance(run, Run):
        raise BadArgument(tr("formats.one_run", layout=layout, count=len(run)))
    folder = Path(path)
    stale = _stale(folder, layout, exists)
    with Staging(folder, layout, progress) as out:
        if layout == "layers":
            write_layers(run, out, names=names or {}, step=step)
        else:
            write_monitor(run, out, names=names or {})
        out.commit(stale)
    return out.done(folder)


def _npz(
    run: Run | Mapping[str, Run],
    path: Path,
    exists: str,
    names: Mapping[str, str],
    step: int | None,
    mode: str | None,
    progress: Progress | None,
) -> Exported:
    file = path if path.suffix == ".npz" else path / FILE
    if isinstance(run, Run):
        runs: Mapping[str, Run] = {mode or str(run.info.get("mode") or "reference"): run}
    else:
        runs = run
    if not runs:
        raise BadArgument(tr("formats.run_expected"))
    for other in runs:
        if not other or "/" in other or "\\" in other:
            raise BadArgument(tr("formats.mode_name", other=other))
    for there in (file, file.with_name(stats_name(file.name))):
        if exists == "error" and there.exists():
            raise RunExists(tr("formats.already", there=there))
    with Staging(file.parent, "npz", progress, whole=False) as out:
        write_npz(runs, out, file.name, names=names, step=step)
        out.commit()
    return out.done(file)


def _stale(folder: Path, layout: str, exists: str) -> list[str]:
    """The files of an older export, which this one replaces."""
    found = layout_of(folder)
    if found not in (None, layout):
        what = tr("formats.a_run") if found == "run" else tr("formats.files_of", found=found)
        raise RunExists(tr("formats.mixed", folder=folder, what=what))
    stale = [name for name in sorted(os.listdir(folder)) if _MINE[layout](name)] if folder.is_dir() else []
    if stale and exists == "error":
        raise RunExists(tr("formats.already_files", folder=folder, count=len(stale), layout=layout, stale=stale[0]))
    return stale
