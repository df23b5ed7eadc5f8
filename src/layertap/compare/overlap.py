"""Which part of two tensors of different lengths is the same: what inputs prove, and else what contents prove.

A runtime that pads its sequences leaves tensors of another length, and often no mask. If somewhere the first (or the
last) positions of the longer side hold what the shorter side holds, the rest is not the sequence. What nothing proves
is not cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layertap.compare.align.distance import angles, distances, nearest
from layertap.compare.align.site_pairing import View
from layertap.compare.padding import Trim, masked_trim
from layertap.compare.tensors import array_of, changed, elements
from layertap.errors import RunError
from layertap.judge.shapes import Shape, common_shape, lengths, leveled
from layertap.measure.pair import Array
from layertap.result import Note
from layertap.site import Record
from layertap.store import Run
from layertap.store.dtype import to_numpy

SAME = 0.05
"""Two tensors of this relative distance, far nearer than any others, are the same but for rounding."""
CLEAR = 0.3
"""What far nearer means: this part of the distance to the nearest other tensor."""
MOST = 64
"""Records of one shape that are searched for proof; those that run first."""
SAMPLES = 4096
"""Elements of a tensor that are compared with those of another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """How tensors of different lengths are cut, and how they look then."""

    trims: tuple[Trim, ...]
    views: tuple[dict[int, View], dict[int, View]]
    """By the number of the record on its side: what is left of it, where something is cut."""


Cut = tuple[Trim, Shape, Shape]


def find_overlap(
    reference: Run, candidate: Run, ours: Sequence[Record], theirs: Sequence[Record], proven: Trim | None
) -> Overlap:
    """The cuts for all records of two runs; `proven` is what their inputs say."""
    work = _Work((reference, candidate), (ours, theirs))
    groups: dict[tuple[int, int], list[tuple[Shape, Shape]]] = {}
    for one in work.alone(0):
        for other in work.alone(1):
            if (key := lengths(one, other)) is not None:
                groups.setdefault(key, []).append((one, other))
    trims = [proven] if proven is not None else []
    cuts: list[Cut] = []
    for key, pairs in groups.items():
        known = proven is not None and (proven.reference_length, proven.candidate_length) == key
        trim = proven if known else masked_trim(reference, candidate, key) or _by_content(work, key, pairs)
        if trim is not None:
            trims += [] if known else [trim]
            cuts += [(trim, *pair) for pair in pairs]
    return Overlap(trims=tuple(trims), views=_views(work, cuts))


def overlapping(trims: Iterable[Trim], one: Array, other: Array) -> tuple[Array, Array]:
    """Two tensors without what is only on one side."""
    shapes = leveled(one.shape, other.shape)
    a, b = elements(one, shapes[0]), elements(other, shapes[1])
    for trim in trims:
        a, b = trim.apply(a, b, ndim=a.ndim - 1)
    return changed(one, a), changed(other, b)


def _by_content(work: _Work, key: tuple[int, int], pairs: Sequence[tuple[Shape, Shape]]) -> Trim | None:
    """The cut after which two records of these lengths hold the same, if there is one and only one."""
    both = min(key)
    found: list[tuple[float, Trim]] = []
    for part in ("first", "last"):
        spans = [slice(0, both) if part == "first" else slice(size - both, size) for size in key]
        for one, other in pairs:
            numbers = work.shapes[0][one][:MOST], work.shapes[1][other][:MOST]
            trim = _trim(key, spans, "")
            best = _proof(*(work.samples(side, numbers[side], (trim, one, other)) for side in (0, 1)))
            if best is None:
                continue
            row, column, distance = best
            sites = f"`{work.records[0][numbers[0][row]].site}`", f"`{work.records[1][numbers[1][column]].site}`"
            why = Note(
                "compare.overlap",
                key=key[0],
                key2=key[1],
                part=part,
                both=both,
                sites=sites[0] if sites[0] == sites[1] else " and ".join(sites),
                distance=distance,
            )
            found.append((distance, _trim(key, spans, why)))
    if not found:
        return None
    best_distance, trim = min(found, key=lambda item: item[0])
    # What repeats along the sequence agrees at both ends, and proves nothing.
    rivals = [distance for distance, other in found if other.spans != trim.spans]
    return None if rivals and min(rivals) <= max(2 * best_distance, 1e-6) else trim


def _trim(key: tuple[int, int], spans: Sequence[slice], why: str) -> Trim:
    return Trim(
        reference_length=key[0],
        candidate_length=key[1],
        reference_slice=spans[0],
        candidate_slice=spans[1],
        why=why,
    )


def _proof(ours: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64]) -> tuple[int, int, float] | None:
    """The two tensors that are the same after a cut: row, column, and how far they are apart."""
    for measure in (distances, angles):  # a layer that is only scaled shows all the same where the sequence lies
        error = measure(ours, theirs)
        scale = np.minimum(nearest(measure(ours, ours))[:, None], nearest(measure(theirs, theirs))[None, :])
        flat = (ours.std(axis=1) == 0)[:, None] | (theirs.std(axis=1) == 0)[None, :]
        error = np.where(flat | ~np.isfinite(error) | (error > CLEAR * scale), np.inf, error)
        if error.size and error.min() <= SAME:
            row, column = np.unravel_index(int(error.argmin()), error.shape)
            return int(row), int(column), float(error[row, column])
    return None


class _Work:
    """The kept tensors of two sides by shape, and samples of them."""

    def __init__(self, runs: tuple[Run, Run], records: tuple[Sequence[Record], Sequence[Record]]) -> None:
        self.runs = runs
        self.records = records
        self.shapes: tuple[dict[Shape, list[int]], dict[Shape, list[int]]] = ({}, {})
        for found, mine in zip(self.shapes, records, strict=True):
            for number, record in enumerate(mine):
                if record.kept == "tensor" and not record.site.role.startswith("param") and record.statistics.count > 1:
                    found.setdefault(record.shape, []).append(number)

    def alone(self, side: int) -> list[Shape]:
        """The shapes of one side that the other side has nothing of."""
        others = self.shapes[1 - side]
        return [shape for shape in self.shapes[side] if all(common_shape(shape, other) is None for other in others)]

    def samples(self, side: int, numbers: Sequence[int], cut: Cut) -> npt.NDArray[np.float64]:
        """Some elements of what a cut leaves of each record, a row each; zeros where a tensor cannot be read."""
        rows = [self._sample(side, number, cut) for number in numbers]
        length = max((len(row) for row in rows if row is not None), default=1)
        return np.stack([np.zeros(length) if row is None else row for row in rows])

    def _sample(self, side: int, number: int, cut: Cut) -> npt.NDArray[np.float64] | None:
        record = self.records[side][number]
        try:
            array = array_of(self.runs[side], record, later=True)  # a sample decides nothing that the pass does not
        except RunError:
            return None  # the pass over the pair will tell
        left = _left(array, side, cut)
        values = to_numpy(np.ascontiguousarray(left).reshape(-1), array.dtype, left.shape[:-1])
        with np.errstate(all="ignore"):
            return values.astype(np.float64).reshape(-1)


def _left(array: Array, side: int, cut: Cut) -> npt.NDArray[np.uint8]:
    """Some bytes of a tensor after a cut, evenly chosen along every axis."""
    trim, *shapes = cut
    leveled_shapes = leveled(shapes[0], shapes[1])
    mine = elements(array, leveled_shapes[side])
    other = np.broadcast_to(np.uint8(0), (*leveled_shapes[1 - side], 1))
    pair = (mine, other) if side == 0 else (other, mine)
    left = trim.apply(*pair, ndim=mine.ndim - 1)[side]
    most = math.ceil(SAMPLES ** (1 / max(1, left.ndim - 1)))
    places = [np.unique(np.linspace(0, size - 1, min(size, most)).astype(np.int64)) for size in left.shape[:-1]]
    found: npt.NDArray[np.uint8] = left[np.ix_(*places, np.arange(left.shape[-1]))]
    return found


def _views(work: _Work, cuts: Sequence[Cut]) -> tuple[dict[int, View], dict[int, View]]:
    found: tuple[dict[int, View], dict[int, View]] = ({}, {})
    for place, cut_here in enumerate(cuts):
        for side in (0, 1):
            numbers = work.shapes[side][(cut_here[1], cut_here[2])[side]]
            for number, vector in zip(numbers, work.samples(side, numbers, cut_here), strict=True):
                found[side].setdefault(number, View((f"part {place}", len(vector)), vector))
    return found
