"""The first layer's input and output in every mode, as a screen: ten values and four statistics, six decimals each."""

from __future__ import annotations

from collections.abc import Iterator

from layertap.messages import tr
from layertap.site import Record
from layertap.store import Run
from layertap.sweeping.exports import first_layer
from layertap.sweeping.result import Sweep

WIDTH = 98


def screen_text(sweep: Sweep, path: str | None = None) -> str:
    """`MODE x` banners with INPUT and OUTPUT of one module; of the first that was recorded when none is named."""
    return "\n".join(
        line for mode in sweep.modes.values() if mode.run is not None for line in _mode(mode.name, mode.run, path)
    )


def _mode(name: str, run: Run, path: str | None) -> Iterator[str]:
    records = [record for record in run.records() if record.asked and record.step == 0]
    if path is None:
        path = first_layer(records)
    yield from ("=" * WIDTH, f"MODE {name}", "=" * WIDTH)
    for role in ("input", "output"):
        for record in records:
            if record.site.path == path and record.site.role == role and record.site.call == 0:
                yield from _block(role, record)
    yield ""


def _block(role: str, record: Record) -> Iterator[str]:
    found = record.statistics
    leaf = f".{record.site.leaf}" if record.site.leaf else ""
    yield ""
    yield tr("sweep.role_shape", role=role.upper(), leaf=leaf, shape=list(record.shape))
    yield tr("sweep.first_values", value=[f"{value:.6f}" for value in found.first])
    yield tr("sweep.mean", mean=found.mean)
    yield tr("sweep.std", std=found.std)
    yield tr("sweep.range", min=found.min, max=found.max)
