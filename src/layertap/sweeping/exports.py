"""One layer's input and output in every mode: as .npz with statistics as JSON beside it, and as histograms."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from layertap.errors import BadArgument, MissingExtra
from layertap.formats import export
from layertap.messages import tr
from layertap.site import Record
from layertap.store import Run
from layertap.sweeping.result import Sweep

BINS = 100
_PANEL = (420, 260)
_MARGIN = 44


def write_npz(sweep: Sweep, path: str | os.PathLike[str], names: Mapping[str, str] | None = None) -> str:
    """Writes `mode_{mode}_input` and `mode_{mode}_output` of one layer; returns what has no place there, in words."""
    runs = _runs(sweep)
    chosen = dict(names or _input_and_output(runs[sweep.reference] if sweep.reference in runs else _any(runs)))
    file = Path(path)
    file = file if file.suffix == ".npz" else file / "first_layer_io_all_modes.npz"
    return str(export(runs, file, "npz", exists="replace", names=chosen))


def first_layer(records: Sequence[Record]) -> str:
    """The first module that was recorded with an input and an output of floating-point numbers.

    >>> first_layer([])
    ''
    """
    roles: dict[str, set[str]] = {}
    for record in records:
        if "float" in record.dtype:
            roles.setdefault(record.site.path, set()).add(record.site.role)
    paths = list(roles)
    return next((path for path in paths if {"input", "output"} <= roles[path]), paths[0] if paths else "")


def _input_and_output(run: Run) -> dict[str, str]:
    """The first leaf of the first layer's input and output: of a tuple that is the residual stream."""
    records = [record for record in run.records() if record.asked and record.step == 0]
    path = first_layer(records)
    found: dict[str, str] = {}
    for record in records:
        role = record.site.role
        if (
            record.site.path == path
            and record.site.call == 0
            and role not in found.values()
            and record.kept == "tensor"
        ):
            found[str(record.site)] = role
    if not found:
        raise BadArgument(tr("sweeping.nothing_kept", name=run.name))
    return found


def write_png(sweep: Sweep, path: str | os.PathLike[str], site: str | None = None) -> None:
    """Draws, for each mode, how its values differ from the reference's at one site."""
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise MissingExtra(tr("sweeping.pillow")) from error
    runs = _runs(sweep)
    if sweep.reference not in runs or len(runs) < 2:
        raise BadArgument(tr("sweeping.histogram_runs"))
    site = site or next(
        name for name, role in reversed(_input_and_output(runs[sweep.reference]).items()) if role == "output"
    )
    reference = runs[sweep.reference][site].at(step=0).numpy().astype(np.float64)
    panels = []
    for name, run in runs.items():
        if name == sweep.reference or site not in run:
            continue
        values = run[site].at(step=0).numpy().astype(np.float64)
        if values.shape == reference.shape:
            panels.append((name, (values - reference).reshape(-1)))
    columns = min(3, max(1, math.ceil(math.sqrt(len(panels)))))
    size = (columns * _PANEL[0], max(1, math.ceil(len(panels) / columns)) * _PANEL[1])
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    for place, (name, difference) in enumerate(panels):
        corner = (place % columns * _PANEL[0], place // columns * _PANEL[1])
        _panel(draw, corner, f"{name} - {sweep.reference}", site, difference)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    image.save(Path(path), format="PNG")


def _panel(draw: Any, corner: tuple[int, int], title: str, site: str, difference: npt.NDArray[Any]) -> None:
    left, top = corner[0] + _MARGIN, corner[1] + _MARGIN
    width, height = _PANEL[0] - 2 * _MARGIN, _PANEL[1] - 2 * _MARGIN
    finite = difference[np.isfinite(difference)]
    text = f"{title}   {site}"
    mse = float(np.square(finite).mean()) if len(finite) else math.nan
    below = f"MSE {mse:.6e}  MAE {float(np.abs(finite).mean()) if len(finite) else math.nan:.6f}"
    if len(finite) < len(difference):
        below += tr("sweeping.not_finite", value=len(difference) - len(finite))
    draw.text((left, corner[1] + 8), text, fill="black")
    draw.text((left, corner[1] + 24), below, fill="gray")
    if not len(finite):
        return
    most = float(np.abs(finite).max()) or 1.0
    counts, _ = np.histogram(finite, bins=BINS, range=(-most, most))
    for number, count in enumerate(counts):
        x = left + number * width / BINS
        if count:
            draw.rectangle(
                (x, top + height - count / counts.max() * height, x + width / BINS, top + height), fill="#3572b0"
            )
    draw.line((left, top + height, left + width, top + height), fill="black")
    for value, x in ((-most, left), (0.0, left + width / 2), (most, left + width)):
        draw.text((x - 16, top + height + 6), f"{value:.3g}", fill="black")
    draw.text((corner[0] + 4, top - 4), str(counts.max()), fill="black")


def _runs(sweep: Sweep) -> dict[str, Run]:
    found = {name: mode.run for name, mode in sweep.modes.items()}
    runs = {name: run for name, run in found.items() if run is not None}
    if not runs:
        raise BadArgument(tr("sweeping.nothing_to_write"))
    return runs


def _any(runs: Mapping[str, Run]) -> Run:
    return next(iter(runs.values()))
