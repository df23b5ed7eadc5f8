"""The parts of one tensor that the ranks of a job recorded, put together to the whole.

    whole_of(records)          checks that nothing is missing, and that replicas have the same bits -> Whole
    whole.statistics           merged from those of the parts; no tensor is read
    assembled(whole, read)     its bytes; one part is in memory at a time

Ranks of one mesh hold slices (`Shard`), equal copies (`Replicate`) or summands (`Partial`) of one tensor, in each of
its dimensions. Where meshes of one shape exist side by side, as with data parallelism around tensor parallelism, each
has a whole of its own.
"""

from __future__ import annotations

import math
import mmap
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt

from layertap.errors import RunError
from layertap.measure.definition import FIRST
from layertap.measure.part.place import Spans
from layertap.measure.result import merge_statistics
from layertap.messages import tr
from layertap.site import Record, Sharding, Statistics
from layertap.store.dims import spans_of
from layertap.store.dtype import SIZES, Bytes, size_of, to_numpy
from layertap.store.mapped import release

IN_MEMORY = 256 << 20
"""A larger whole is in a temporary file, whose pages the system may write out."""
_BLOCK = 1 << 20
"""Elements that are added up at a time."""

Coordinate = tuple[int, ...]


class NotWhole(RunError):
    """The parts that were recorded do not make one tensor."""


class ReplicasDiffer(NotWhole):
    """Ranks that must have the same bits do not."""

    def __init__(self, text: str, groups: Sequence[Sequence[int]] = ()) -> None:
        super().__init__(text)
        self.groups = tuple(map(tuple, groups))
        """Ranks with equal bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPart:
    """One region of the whole."""

    spans: tuple[Spans, ...]
    """The places that it has of each dimension, in the order in which it holds them; mostly one run."""
    records: tuple[Record, ...]
    """One, or the summands of it."""

    @property
    def begin(self) -> tuple[int, ...]:
        """Where its first element is in the whole."""
        return tuple(spans[0][0] for spans in self.spans)

    def pieces(self) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
        """Its regions without gaps: where each is in the whole, and where in the part."""
        runs = []
        for spans in self.spans:
            passed, here = 0, []
            for begin, end in spans:
                here.append((slice(begin, end), slice(passed, passed + end - begin)))
                passed += end - begin
            runs.append(here)
        for piece in product(*runs):
            yield tuple(there for there, _ in piece), tuple(own for _, own in piece)

    def cut(self, cells: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What the part is of an array with the axes of the whole in front: a view where it has no gaps."""
        for axis, spans in enumerate(self.spans):
            runs = [cells[(slice(None),) * axis + (slice(begin, end),)] for begin, end in spans]
            cells = runs[0] if len(runs) == 1 else np.concatenate(runs, axis)
        return cells

    def index(self, place: Sequence[int]) -> list[int] | None:
        """Where an element of the whole is in the part; None where it is not in it."""
        found = []
        for at, spans in zip(place, self.spans, strict=True):
            passed = 0
            for begin, end in spans:
                if begin <= at < end:
                    found.append(passed + at - begin)
                    break
                passed += end - begin
            else:
                return None
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A tensor of which ranks recorded parts."""

    shape: tuple[int, ...]
    dtype: str
    parts: tuple[ShardPart, ...]
    """In the order in which they begin."""
    reduction: str
    """How summands become one: `sum`, `avg`, `max`, `min`; empty where there are none."""
    ranks: tuple[int, ...]
    """All that recorded something of it."""

    @property
    def record(self) -> Record:
        """The record of the part that comes first."""
        return self.parts[0].records[0]

    @property
    def statistics(self) -> Statistics | None:
        """Of the whole; None where it consists of summands, whose statistics do not tell."""
        if self.reduction:
            return None
        merged = merge_statistics([part.records[0].statistics for part in self.parts])
        return replace(merged, first=self._first())

    @property
    def fingerprint(self) -> int | None:
        """Of the whole, merged from those of the parts; None where one does not say it, as summands do not."""
        found = [_in_whole(part.records[0]) for part in self.parts]
        known = [one for one in found if one is not None]
        return sum(known) % 2**64 if len(known) == len(found) else None

    def _first(self) -> tuple[float, ...]:
        """The first values as far as the parts have them: each knows its own first ones only."""
        found: list[float] = []
        width = 2 if self.dtype.startswith("complex") else 1
        for place in range(min(FIRST, width * math.prod(self.shape))):
            index = [int(at) for at in np.unravel_index(place // width, self.shape)] if self.shape else []
            part, local = next((part, at) for part in self.parts if (at := part.index(index)) is not None)
            shape = part.records[0].shape
            own = width * (int(np.ravel_multi_index(local, shape)) if shape else 0) + place % width
            first = part.records[0].statistics.first
            if own >= len(first):
                break
            found.append(first[own])
        return tuple(found)


def _in_whole(record: Record) -> int | None:
    """What a record adds to the fingerprint of its whole; of what is the whole, its own."""
    whole = record.sharding is not None and record.sharding.is_whole(record.shape)
    return record.fingerprint if whole else record.fingerprint_in_whole


def whole_of(records: Sequence[Record]) -> Whole:
    """The whole that these records are parts of; NotWhole says why not, ReplicasDiffer which ranks disagree."""
    site, step = records[0].site, records[0].step
    ranks = tuple(sorted({record.rank for record in records}))
    layouts = {(_layout(record), record.dtype, record.kept) for record in records}
    places = {(record.rank, record.site.call) for record in records}
    if len(places) < len(records) or len(layouts) > 1 or any(record.sharding is None for record in records):
        raise NotWhole(tr("assembly.no_parts", site=site, step=step, ranks=_spans(ranks)))
    wholes = [_of_mesh(mesh) for mesh in _meshes(records)]
    if len(wholes) > 1 and len({_marks(whole) for whole in wholes}) > 1:
        some = " | ".join(_spans(whole.ranks) for whole in wholes[:8])
        raise NotWhole(tr("assembly.meshes", site=site, step=step, ranks=some))
    return replace(wholes[0], ranks=ranks)


def assembled(whole: Whole, read: Callable[[Record], Bytes]) -> Bytes:
    """The bytes of the whole in C order; `read` gives those of a part."""
    kept = {(record.kept, record.kept_dtype) for part in whole.parts for record in part.records}
    if kept != {("tensor", whole.dtype)}:
        raise NotWhole(tr("assembly.not_kept", site=whole.record.site, step=whole.record.step))
    size = size_of(whole.dtype, whole.shape)
    if size is None:
        raise NotWhole(tr("assembly.dtype", site=whole.record.site, dtype=whole.dtype))
    out = _room(size)
    cells = out.reshape(*whole.shape, SIZES[whole.dtype])
    for part in whole.parts:
        raw = read(part.records[0])
        if whole.reduction:
            raw = _reduced(whole, part, raw, read)
        own = raw.reshape(*part.records[0].shape, SIZES[whole.dtype])
        for there, here in part.pieces():
            cells[there] = own[here]
        if size > IN_MEMORY:
            release(out, 0, size)  # to its file
    return out


def _of_mesh(records: Sequence[Record]) -> Whole:
    """The whole of the records of one mesh."""
    first = records[0]
    sharding = first.sharding
    assert sharding is not None
    kinds, sizes = [_kind(text) for text in sharding.placements], sharding.mesh_shape
    places = _coordinates(records, sharding)
    site, step, ranks = first.site, first.step, tuple(sorted({record.rank for record in records}))
    cells: dict[Coordinate, list[Record]] = defaultdict(list)
    for place, record in places.items():
        cells[tuple(0 if kind == "Replicate" else at for kind, at in zip(kinds, place, strict=True))].append(record)
    wanted = product(*(range(1 if kind == "Replicate" else size) for kind, size in zip(kinds, sizes, strict=True)))
    if missing := [place for place in wanted if place not in cells]:
        count, total = len(places), math.prod(sizes)
        some = ", ".join(map(str, map(list, missing[:4])))
        raise NotWhole(tr("assembly.missing", site=site, step=step, count=count, total=total, some=some))
    for replicas in cells.values():
        _agree(replicas)
    parts: dict[Coordinate, list[Record]] = defaultdict(list)
    for place, replicas in sorted(cells.items()):
        key = tuple(0 if kind.startswith("Partial") else at for kind, at in zip(kinds, place, strict=True))
        parts[key].append(min(replicas, key=lambda record: record.rank))
    reductions = {kind for kind, size in zip(kinds, sizes, strict=True) if kind.startswith("Partial") and size > 1}
    if len(reductions) > 1:
        raise NotWhole(tr("assembly.reductions", site=site, placements=", ".join(sharding.placements)))
    found = [
        ShardPart(spans=_spans_of(held[0]), records=tuple(held)) for held in parts.values() if 0 not in held[0].shape
    ]
    found = found or [ShardPart(spans=_spans_of(first), records=(first,))]  # an empty tensor
    whole = Whole(
        shape=sharding.global_shape,
        dtype=first.dtype,
        parts=tuple(sorted(found, key=lambda part: part.begin)),
        reduction=next(iter(reductions), "").removeprefix("Partial(").removesuffix(")"),
        ranks=ranks,
    )
    if math.prod(whole.shape) and not _covers(whole):
        raise NotWhole(tr("assembly.gaps", site=site, step=step, shape=list(whole.shape)))
    return whole


def _meshes(records: Sequence[Record]) -> list[list[Record]]:
    """The records of each mesh; where they do not say which it is, there must be just one."""
    found: dict[int, list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda record: record.rank):
        assert record.sharding is not None
        found[record.sharding.mesh_origin].append(record)
    return list(found.values())


def _coordinates(records: Sequence[Record], sharding: Sharding) -> dict[Coordinate, Record]:
    """Each record by its place in the mesh; older runs do not say it, and there ranks count through the mesh."""
    given = [record.sharding.mesh_coordinate for record in records if record.sharding is not None]
    if not all(given):
        mesh = sharding.mesh_shape
        if len(records) != math.prod(mesh):
            ranks = _spans([record.rank for record in records])
            raise NotWhole(tr("assembly.unknown_mesh", site=records[0].site, ranks=ranks, mesh=list(mesh)))
        given = list(product(*map(range, mesh)))
    found = dict(zip(given, records, strict=True))
    if len(found) < len(records) or any(len(place) != len(sharding.placements) for place in found):
        raise NotWhole(tr("assembly.same_place", site=records[0].site, step=records[0].step))
    return found


def _agree(replicas: Sequence[Record]) -> None:
    """Raises ReplicasDiffer unless all of them have the same bits."""
    groups: dict[Any, list[int]] = defaultdict(list)
    for record in replicas:
        groups[record.fingerprint, record.shape].append(record.rank)
    if len(groups) > 1:
        ranks = sorted(map(sorted, groups.values()))
        one = replicas[0]
        some = " | ".join(map(_spans, ranks))
        raise ReplicasDiffer(tr("assembly.replicas", site=one.site, step=one.step, ranks=some), ranks)


def _covers(whole: Whole) -> bool:
    """Whether the parts are a grid that fills the whole, without gaps and overlaps."""
    parts = {part.spans for part in whole.parts}
    grid: list[set[Spans]] = [set() for _ in whole.shape]
    for part in whole.parts:
        if len(part.spans) != len(whole.shape) or not _fits(part):
            return False
        for axis, spans in enumerate(part.spans):
            grid[axis].add(spans)
    for size, distinct in zip(whole.shape, grid, strict=True):
        edges = sorted(run for spans in distinct for run in spans)
        if edges[0][0] or edges[-1][1] != size or any(one[1] != other[0] for one, other in pairwise(edges)):
            return False
    return len(parts) == len(whole.parts) == math.prod(map(len, grid))


def _fits(part: ShardPart) -> bool:
    """Whether the record has the shape that its places make."""
    return tuple(sum(end - begin for begin, end in spans) for spans in part.spans) == part.records[0].shape


def _reduced(whole: Whole, part: ShardPart, first: Bytes, read: Callable[[Record], Bytes]) -> Bytes:
    """The summands of one part as one, added up in float64 and rounded once."""
    record, dtype = part.records[0], whole.dtype
    if dtype.startswith("float8") or dtype == "complex32" or whole.reduction not in _REDUCE:
        raise NotWhole(tr("assembly.cannot_reduce", site=record.site, dtype=dtype, reduction=whole.reduction))
    total = _wide(first, dtype)
    for other in part.records[1:]:
        more = _wide(read(other), dtype)
        for begin in range(0, len(total), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            _REDUCE[whole.reduction](total[block], more[block], out=total[block])
    if whole.reduction == "avg":
        total = total / len(part.records)
    return _narrow(total, dtype)


_REDUCE: dict[str, Any] = {"sum": np.add, "avg": np.add, "max": np.maximum, "min": np.minimum}


def _wide(raw: Bytes, dtype: str) -> npt.NDArray[Any]:
    values = to_numpy(np.ascontiguousarray(raw), dtype, (-1,))
    kind = np.complex128 if dtype.startswith("complex") else np.float64 if "float" in dtype else None
    return values.astype(kind or values.dtype)


def _narrow(values: npt.NDArray[Any], dtype: str) -> Bytes:
    if dtype != "bfloat16":
        return np.ascontiguousarray(values.astype(np.dtype(dtype).newbyteorder("<"))).view(np.uint8)
    with np.errstate(over="ignore"):
        bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16  # to the nearest, ties to even
    return np.where(np.isnan(values), 0x7FC0, rounded).astype("<u2").view(np.uint8)


def _room(size: int) -> Bytes:
    if size <= IN_MEMORY:
        return np.zeros(size, np.uint8)
    with tempfile.TemporaryFile() as file:
        file.truncate(size)
        return np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)  # the map keeps the file, which has no name


def _layout(record: Record) -> tuple[Any, ...]:
    sharding = record.sharding
    return () if sharding is None else (sharding.placements, sharding.global_shape, sharding.mesh_shape)


def _marks(whole: Whole) -> tuple[Any, ...]:
    return tuple(record.fingerprint for part in whole.parts for record in part.records)


def _kind(placement: str) -> str:
    """`Partial(sum)`, `Replicate`, or `Shard` for every way to cut."""
    return placement if placement.startswith("Partial") else "Replicate" if placement == "Replicate()" else "Shard"


def _spans_of(record: Record) -> tuple[Spans, ...]:
    return spans_of(record.sharding, record.shape) or ()


def _spans(ranks: Iterable[int]) -> str:
    """Ranks in few words: `0-3, 8`."""
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and found[-1][1] == rank - 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
