"""The models' own inputs, side by side: what has to be equal before any layer is worth a look."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from layertap.compare.align.moments import Labels, StepMoment, pair_moments
from layertap.site import UNCHANGED, Record
from layertap.store import Run
from layertap.store.dtype import to_numpy

Array = npt.NDArray[Any]

NAMES = ("input_ids", "attention_mask")
"""What foreign folders keep of their inputs, in their metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input of one call of a model."""

    name: str
    """Its keyword, or its place among the positional arguments; empty for a lone tensor."""
    call: int
    record: Record | None
    """None when it comes from a foreign folder's metadata."""
    values: Array | None
    """What was kept of it; whole numbers and masks are, others are not."""

    @property
    def exact(self) -> bool:
        """Whether it is made of whole numbers: ids, masks, positions."""
        dtype = str(self.values.dtype) if self.record is None and self.values is not None else ""
        dtype = self.record.dtype if self.record is not None else dtype
        return not dtype.startswith(("float", "bfloat", "complex"))

    @property
    def unchanged(self) -> bool:
        """Whether it says of an object, a cache for instance, that it is as the model's own last call left it."""
        return self.name.endswith(f".{UNCHANGED}")

    @property
    def shape(self) -> tuple[int, ...]:
        if self.record is not None:
            return self.record.shape
        return () if self.values is None else tuple(self.values.shape)


InputPair = tuple[Input | None, Input | None]


def input_pairs(reference: Run, candidate: Run) -> Iterator[tuple[StepMoment, list[InputPair]]]:
    """The inputs of each step that both runs have, paired by name and call; then by place, where one name is left."""
    ours, theirs = _inputs(reference), _inputs(candidate)
    shared, _ = pair_moments(ours, theirs, lambda: (_labels(ours), _labels(theirs)))
    for one, other in shared:
        yield one, _pair(_read(reference, ours[one]), _read(candidate, theirs[other]))
    if not shared:
        # Metadata has no steps: it describes the whole folder.
        stated = _stated(reference), _stated(candidate)
        for moments, run, side in ((ours, reference, 0), (theirs, candidate, 1)):
            if moments and stated[1 - side]:
                first = next(iter(moments))
                found = _read(run, moments[first])
                yield first, _pair(found, stated[1]) if side == 0 else _pair(stated[0], found)
                return
        if all(stated):
            yield StepMoment(0, 0), _pair(*stated)


def inputs_of(run: Run) -> Iterator[list[Input]]:
    """The inputs of one run, moment by moment; those of a folder's metadata where no moment has any."""
    moments = _inputs(run)
    for records in moments.values():
        yield _read(run, records)
    if not moments and (stated := _stated(run)):
        yield stated


def _labels(moments: Mapping[StepMoment, list[Record]]) -> Labels:
    return {moment: {(record.epoch, record.batch) for record in records} for moment, records in moments.items()}


def known(run: Run) -> bool:
    """Whether anything is known of the inputs of a run."""
    return bool(_inputs(run) or _stated(run))


def _inputs(run: Run) -> dict[StepMoment, list[Record]]:
    records = run.inputs
    if not records:
        # Asked for as a site, the model's inputs stand among the others.
        records = tuple(record for site in run.sites if not site.path and site.role == "input" for record in run[site])
    found: dict[StepMoment, list[Record]] = defaultdict(list)
    for record in records:
        if record.site.leaf.startswith("#"):
            continue  # known of the input (which samples a batch holds), not given to the model
        found[StepMoment(record.step, record.rank)].append(record)
    return dict(found)


def _read(run: Run, records: list[Record]) -> list[Input]:
    return [
        Input(name=record.site.leaf, call=record.site.call, record=record, values=_values(run, record))
        for record in records
    ]


def _values(run: Run, record: Record) -> Array | None:
    if record.kept != "tensor" or record.dtype.startswith(("float", "bfloat", "complex")):
        return None
    return to_numpy(np.array(run.kept_bytes(record)), record.kept_dtype, record.kept_shape)


def _stated(run: Run) -> list[Input]:
    """What a foreign folder's metadata states of its inputs."""
    found: dict[str, Input] = {}
    for part in (run.info, run.info.get("meta"), run.info.get("metadata")):
        for name in NAMES:
            value = part.get(name) if isinstance(part, Mapping) else None
            if isinstance(value, (list, tuple)) and value:
                try:
                    array = np.array(value, dtype=np.int64)
                except (ValueError, TypeError, OverflowError):
                    continue
                found.setdefault(name, Input(name=name, call=0, record=None, values=array))
    return list(found.values())


def _pair(ours: list[Input], theirs: list[Input]) -> list[InputPair]:
    told: list[InputPair] = []
    for item in [item for item in ours if item.unchanged]:
        told += [(item, other) for other in _taken(theirs, item)[:1]]
    for item in [item for item in theirs if item.unchanged]:
        told += [(other, item) for other in _taken(ours, item)[:1]]
    ours = [item for item in ours if not any(item is one for one, _ in told)]
    theirs = [item for item in theirs if not any(item is other for _, other in told)]
    return told + _pair_by_name(ours, theirs)


def _taken(others: list[Input], own: Input) -> list[Input]:
    """What the other side recorded of an object that is unchanged on this side; taken out of its inputs."""
    inside = own.name.removesuffix(UNCHANGED)
    found = [item for item in others if item.name.startswith(inside) and item.call == own.call]
    if any(item.unchanged for item in found):
        return []
    others[:] = [item for item in others if not any(item is other for other in found)]
    return found


def _pair_by_name(ours: list[Input], theirs: list[Input]) -> list[InputPair]:
    by_name = {(item.name, item.call): item for item in theirs}
    pairs: list[InputPair] = []
    left = []
    for item in ours:
        same = by_name.pop((item.name, item.call), None)
        if same is not None:
            pairs.append((item, same))
        else:
            left.append(item)
    for item in left:
        # model(ids) on one side, model(input_ids=ids) on the other.
        same = next((other for other in by_name.values() if other.call == item.call and _positional(item, other)), None)
        if same is not None:
            del by_name[same.name, same.call]
        pairs.append((item, same))
    return [*pairs, *((None, other) for other in by_name.values())]


def _positional(one: Input, other: Input) -> bool:
    bare = [item.name == "" or item.name.isdigit() for item in (one, other)]
    if not any(bare) or one.exact != other.exact:
        return False
    if one.record is not None and other.record is not None and one.record.fingerprint == other.record.fingerprint:
        return True
    first = {item.name for item in (one, other)} <= {"", "0", "input_ids", "x", "input", "pixel_values"}
    return first and len(one.shape) == len(other.shape)
