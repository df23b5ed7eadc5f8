"""Pairs of which nothing but statistics and sketches was kept, measured by columns: a long training has millions.

What is found is what `measure_pair` finds for each of them; the rest of a block, of which more is to be known, goes
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from layertap.compare.align import LEFT_OVER
from layertap.compare.align.pairs import BLOCK, Pairs
from layertap.compare.result import Pair
from layertap.judge.measured import Measured
from layertap.measure.definition import BUCKETS
from layertap.site import Site
from layertap.store.index import as_arrow, encoded, integers_of

_COLUMNS = ("kind", "l2", "nan", "pos_inf", "neg_inf", "placements")
_AT_ONCE = 256
"""Sketches that are subtracted at a time: twice this many in float64 stay in the cache."""

Flags = npt.NDArray[np.bool_]
Measure = Callable[[Iterable[tuple[Pair, bool]]], Iterator[tuple[Pair, Measured]]]
"""Measures pairs in their order; with each comes whether it is known to be bit-identical."""
Names = tuple[Site, Site, str, str]


@dataclass(frozen=True, slots=True)
class Estimates:
    """One block of pairs."""

    errors: list[float | None]
    """The relative L2 error; None where sketches are not all there is."""
    same: list[bool]
    """Which are known to be bit-identical."""
    moments: list[tuple[int, int, int, int]]
    """Step, rank, depth and order of the reference's record."""
    names: Callable[[int], Names]
    """Site, candidate's site, kind, and how they were paired."""
    measured: Callable[[int], tuple[Pair, Measured]]
    """A pair of which more is to be known; to be asked for in order."""


def blocks_of(pairs: Pairs, measure: Measure) -> Iterator[Estimates]:
    """All pairs in order, block by block."""
    for begin in range(0, len(pairs), BLOCK):
        yield _block(pairs[begin : begin + BLOCK], measure)


def _block(pairs: Pairs, measure: Measure) -> Estimates:
    same, usable = pairs.identical(), _usable(pairs)
    tables = [pairs.columns(side, _COLUMNS) for side in (0, 1)] if usable.any() else []
    kinds: tuple[list[str], list[int]] = ([""], [0] * len(pairs))
    errors = np.zeros(len(pairs))
    if tables:
        names, codes = encoded(tables[0].column("kind"))
        kinds = names, codes.tolist()
        counts = [[integers_of(table.column(name)) for name in ("nan", "pos_inf", "neg_inf")] for table in tables]
        ours, theirs = (sum(count[1:], count[0]) for count in counts)
        lengths = _floats(tables[0].column("l2"))
        usable &= (ours == theirs) & (lengths > 0) & ~(same & (counts[0][0] > 0))
        for table in tables:
            usable &= _floats(pc.list_value_length(table.column("placements")).cast("float64")) == 0
        wanted = usable & ~same
        if wanted.any():
            found, known = _distances(pairs.where(wanted), lengths[wanted])
            errors[wanted] = found
            usable[np.flatnonzero(wanted)[~known]] = False
    return _estimates(pairs, errors, same, usable, kinds, measure)


def _estimates(
    pairs: Pairs,
    errors: npt.NDArray[np.float64],
    same: Flags,
    usable: Flags,
    kinds: tuple[list[str], list[int]],
    measure: Measure,
) -> Estimates:
    matches, which = pairs.matches
    sites = [pairs.sites(side) for side in (0, 1)]
    codes = [pairs.values(side, "site").tolist() for side in (0, 1)]
    moments = [pairs.values(0, "step"), pairs.values(0, "rank"), pairs.depths(), pairs.values(0, "order")]
    numbers = which.tolist()
    known: dict[tuple[int, int, int, int], Names] = {}

    def names(place: int) -> Names:
        key = codes[0][place], codes[1][place], kinds[1][place], numbers[place]
        found = known.get(key)
        if found is None:
            found = known[key] = sites[0][key[0]], sites[1][key[1]], kinds[0][key[2]], matches[key[3]].way
        return found

    rest = measure(pairs.where(~usable).marked())

    return Estimates(
        errors=[error if fit else None for error, fit in zip(errors.tolist(), usable.tolist(), strict=True)],
        same=same.tolist(),
        moments=list(zip(*(column.tolist() for column in moments), strict=True)),
        names=names,
        measured=lambda _: next(rest),
    )


def _usable(pairs: Pairs) -> Flags:
    """Which pairs hold real numbers of one shape, as statistics alone, at sites that were paired as they are."""
    matches, which = pairs.matches
    plain = np.array([match.layout is None and match.way != LEFT_OVER for match in matches], np.bool_)
    found = plain[which] if len(which) else np.zeros(0, np.bool_)
    found &= pairs.same_shapes() & (np.char.find(pairs.values(0, "dtype"), "float") >= 0)
    for side in (0, 1):
        found &= pairs.values(side, "kept") == "stats"
    return found


def _distances(pairs: Pairs, lengths: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], Flags]:
    """What `relative_l2` gives for each pair, and whether both sides have a sketch and the result is a number."""
    columns = [pairs.columns(side, ("sketch",)).column("sketch").combine_chunks() for side in (0, 1)]
    known: Flags = np.ones(len(pairs), np.bool_)
    for column in columns:
        known &= _floats(pc.binary_length(column).cast("float64")) > 0
    places = np.flatnonzero(known)
    one, other = (_sketches(column if known.all() else column.take(as_arrow(places))) for column in columns)
    found = np.full(len(pairs), np.nan)
    with np.errstate(all="ignore"):
        for begin in range(0, len(places), _AT_ONCE):
            part = slice(begin, begin + _AT_ONCE)
            apart = np.subtract(other[part], one[part], dtype=np.float64)
            found[places[part]] = np.sqrt(np.einsum("ij,ij->i", apart, apart)) / lengths[places[part]]
    return found, ~np.isnan(found)


def _sketches(column: Any) -> npt.NDArray[np.float32]:
    if not len(column):
        return np.empty((0, BUCKETS), np.float32)
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset)
    flat = np.frombuffer(column.buffers()[2], "<f4", len(column) * BUCKETS, int(offsets[0]))
    return flat.reshape(len(column), BUCKETS)


def _floats(column: Any) -> npt.NDArray[np.float64]:
    array = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    return np.frombuffer(array.buffers()[1], np.float64, len(array), 8 * array.offset)
