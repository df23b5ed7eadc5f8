"""What is known of the chosen site, on one side or both: the data behind its panel, and its JSON form."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from layertap.errors import SiteNotFound
from layertap.messages import tr
from layertap.view.page import sites_and_verdict
from layertap.view.query import Query
from layertap.view.sides import Session
from layertap.view.site_tables import ComparedSites
from layertap.view.tensors import Array, Kept, Plane, flat_place, kept, largest, minus, step_records

if TYPE_CHECKING:
    from layertap.compare import Row

WORST = 12
"""Places that are listed."""


@dataclass(frozen=True)
class Chosen:
    """The site of an address."""

    query: Query
    step: int | None
    a: Kept | None
    b: Kept | None
    row: Row | None

    @property
    def either(self) -> Kept:
        found = self.a or self.b
        assert found is not None
        return found

    @cached_property
    def plane(self) -> Plane:
        """What the maps show."""
        window = tuple(int(part) for part in self.query.given.get("window", "").split(",") if part.strip().isdigit())
        one = self.a if self.a is not None and self.a.values is not None else self.b or self.either
        shape = one.values.shape if one.values is not None else one.record.shape
        return Plane.of(shape, self.query.index, window)

    @cached_property
    def difference(self) -> npt.NDArray[np.float64] | None:
        """B - A, where both tensors were kept in one shape."""
        if self.a is None or self.b is None or self.a.values is None or self.b.values is None:
            return None
        return minus(self.b.values, self.a.values) if self.a.values.shape == self.b.values.shape else None

    def sides(self) -> list[tuple[str, Kept]]:
        return [(name, one) for name, one in (("A", self.a), ("B", self.b)) if one is not None]

    def maps(self) -> dict[str, Array]:
        """The planes to draw, each under its letter; `d` is B - A."""
        found: dict[str, Array] = {}
        for name, one in (("a", self.a), ("b", self.b)):
            if one is not None and one.values is not None and one.values.shape == self.plane.shape:
                found[name] = one.values
        if self.difference is not None:
            found["d"] = self.difference
        return found


def chosen(session: Session, query: Query) -> Chosen:
    """Finds the site on both sides; a SiteNotFound where neither has it."""
    if query.b is None:
        side = session.sides[query.a]
        with side.lock:
            step = _step(side.run.index, query)
        return Chosen(query, step, kept(side, query.site, step), None, None)
    site_table, _ = sites_and_verdict(session, query)
    row = site_table.row(query.site) if isinstance(site_table, ComparedSites) else None
    names = (query.site, query.site) if row is None else (str(row.site), str(row.candidate_site))
    step = row.step if row is not None else (site_table.step if site_table is not None else query.step)
    found = [_maybe(session, number, name, step) for number, name in zip((query.a, query.b), names, strict=True)]
    if found == [None, None]:
        raise SiteNotFound(tr("view.no_site", site=query.site))
    return Chosen(query, step, found[0], found[1], row)


def site_dict(session: Session, query: Query) -> dict[str, Any]:
    """The JSON form of a site's panel."""
    one = chosen(session, query)
    found: dict[str, Any] = {"site": query.site, "step": one.step}
    if one.row is not None:
        found |= {"verdict": one.row.verdict, "why": one.row.why, "candidate_site": str(one.row.candidate_site)}
        found |= {name: getattr(one.row, name) for name in ("error", "floor", "ratio", "jump", "estimated", "rung")}
        found["difference"] = None if one.row.difference is None else asdict(one.row.difference)
    for name, side in one.sides():
        record = side.record
        found[name.lower()] = {
            "run": side.side.name,
            "site": str(record.site),
            "kind": record.kind,
            "shape": record.shape,
            "dtype": record.dtype,
            "device": record.device,
            "step": record.step,
            "rank": record.rank,
            "phase": record.phase,
            "statistics": asdict(record.statistics),
            "fingerprint": f"{record.fingerprint:016x}",
            "kept": record.kept,
            "why_no_tensor": side.why,
            "steps": [
                {"step": other.step, "mean": stats.mean, "std": stats.std, "abs_max": stats.abs_max, "l2": stats.l2}
                | {"nan": stats.nan, "inf": stats.pos_inf + stats.neg_inf}
                for other in step_records(side.side, str(record.site))[:2000]
                for stats in (other.statistics,)
            ],
        }
    found["worst"] = worst(one)
    return found


def worst(one: Chosen) -> list[dict[str, Any]]:
    """The places of the largest differences, or of the largest values where there is one side."""
    subject: Array | None = one.difference
    if subject is None:
        subject = next((side.values for _, side in one.sides() if side.values is not None), None)
    if subject is None:
        return []
    found = []
    for flat in largest(subject, WORST):
        place = flat_place(flat, subject.shape)
        line: dict[str, Any] = {"index": list(place)}
        for name, side in one.sides():
            if side.values is not None and side.values.shape == subject.shape:
                line[name.lower()] = float(side.values[place])
        if one.difference is not None:
            line["difference"] = float(one.difference[place])
        found.append(line)
    return found


def cell(one: Chosen, row: int, column: int, rows: int, columns: int) -> dict[str, Any]:
    """The value behind a pixel of a map of `rows` by `columns` pixels: the largest that it represents."""
    plane = one.plane
    maps = one.maps()
    if not maps or not plane.height or not plane.width:
        return {}
    top, bottom = _span(row, rows, plane.height)
    left, right = _span(column, columns, plane.width)
    name = "d" if "d" in maps else next(iter(maps))
    part = plane.cut(maps[name])[top:bottom, left:right]
    (flat,) = largest(part, 1)
    inside = flat_place(flat, part.shape)
    place = plane.place(top + inside[0], left + inside[1])
    return {"index": list(place), "of": int(part.size), **{key: float(values[place]) for key, values in maps.items()}}


def _span(place: int, pixels: int, length: int) -> tuple[int, int]:
    pixels = max(1, min(pixels, length))
    place = min(max(place, 0), pixels - 1)
    starts = np.linspace(0, length, pixels, endpoint=False).astype(np.int64) if length > pixels else np.arange(length)
    return int(starts[place]), int(starts[place + 1]) if place + 1 < len(starts) else length


def _maybe(session: Session, number: int | None, site: str, step: int | None) -> Kept | None:
    if number is None:
        return None
    try:
        return kept(session.sides[number], site, step)
    except SiteNotFound:
        try:
            return kept(session.sides[number], site, None)
        except SiteNotFound:
            return None


def _step(index: Any, query: Query) -> int | None:
    rows = index.find(query.site)
    steps = sorted({int(step) for step in index.values("step", rows)}) if len(rows) else []
    return query.step if query.step in steps else (steps[-1] if steps else None)
