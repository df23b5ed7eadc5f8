"""What no partner by name explains: found again by its rows and columns among the tensors of the other side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from layertap.result import Note
from layertap.weights.compose import Composition, RowIndex
from layertap.weights.describe import (
    OTHER,
    changed,
    common_dtype,
    initialised,
    masking,
    reordered,
    rule_of,
    short,
    shown,
)
from layertap.weights.entries import Entry
from layertap.weights.hashes import Hashes
from layertap.weights.hints import out_of_order
from layertap.weights.layout import axes_permuted, conventions, refines, square
from layertap.weights.quantised import MergedPart, merged_lora
from layertap.weights.row_differences import row_differences
from layertap.weights.same import same_bits
from layertap.weights.sides import Relation, Sides


class RelationSearch:
    """Adds a relation for every tensor that has none."""

    def __init__(self, sides: Sides, found: dict[str, Relation]) -> None:
        self.sides, self.found = sides, found
        self.hints, self.config = sides.hints, sides.model.config
        self.made: dict[str, Composition | None] = {}
        """Of what those are made that were searched for."""
        self._there: dict[str, Hashes] = {}

    def run(self) -> None:
        left = [entry for name, entry in self.sides.model.entries.items() if name not in self.found and not entry.meta]
        left = [entry for entry in left if entry.persistent or self.hints.get(entry.name)]
        left = [entry for entry in left if not self._settled(entry)]
        if not left:
            return
        used = {name for relation in self.found.values() for name in relation.others}
        likely = {name for entry in left for name in self.hints.get(entry.name, ())}
        entries = self.sides.other.entries
        wide = [entry for name, entry in entries.items() if not entry.meta and (name not in used or name in likely)]
        dtype = common_dtype(left, wide)
        here, there = self.sides.hashed(left, dtype), self.sides.hashed(wide, dtype)
        self._there = there
        made: dict[str, Composition | None] = {}
        for across in (False, True):
            open_ = [name for name in here if made.get(name) is None]
            index = RowIndex(there, across=across) if open_ and there else None
            for name in open_ if index is not None else ():
                made[name] = index.compose(here[name], self.hints.get(name, ())) if index is not None else None
        turned = conventions(self.sides.model, self.sides.other, self.found, made)
        for entry in left:
            composed = made.get(entry.name)
            self.found[entry.name] = (
                self._unexplained(entry, here[entry.name], there)
                if composed is None
                else self._judged(entry, composed, turned(entry) == "turned", here[entry.name], there)
            )
        self.made = made

    def zero_rows(self, name: str, across: bool, begin: int, end: int) -> bool:
        """Whether these rows, or columns, of a tensor of the other side are zeros."""
        held = self._there[name]
        return bool((held.numbers(across)[begin:end] == held.zero(across)).all())

    def _settled(self, entry: Entry) -> bool:
        """Settles what needs no search: a twin of another tensor, or one of which most is still right."""
        hints = self.hints.get(entry.name, ())
        source = self.sides.partner(entry)
        if source is None and not hints:
            return self._moved(entry)
        if source is None or source.shape != entry.shape or source.meta:
            return False
        if not entry.readable or not source.readable:
            relation = self._unread(entry, source)
            if relation.rule or len(entry.shape) < 2:  # else the numbers of its columns may show that it is transposed
                self.found[entry.name] = relation
            return entry.name in self.found
        twins = self.sides.twins(entry, besides=source)
        if twins and not self._uniform(entry):
            self.found[entry.name] = Relation("changed", hints, "same", _holds(twin.name for twin in twins))
            return True
        apart = self.sides.differences(entry, source)
        if apart.error > OTHER or apart.nonfinite or apart.nonfinite_there:
            return False
        differing = self._rows_apart(entry, source)
        if differing is None:
            return False
        lora = merged_lora(entry, source, self.sides.other)
        if lora is not None:
            self.found[entry.name] = _merged(source, lora)
        else:
            how = changed(entry, source, apart, *differing)
            self.found[entry.name] = Relation("changed", hints, *how)
        return True

    def _rows_apart(self, entry: Entry, source: Entry) -> tuple[Any, int] | None:
        """(The rows that differ, how many there are); None where these are the same rows in another order."""
        if entry.dtype == source.dtype:
            found = row_differences(entry, source)
            if not found.reorderable:
                return found.rows, found.total
        dtype = common_dtype([entry], [source])
        own, there = (self.sides.hashed([side], dtype)[side.name] for side in (entry, source))
        return None if reordered(own.rows, there.rows, self.config) is not None else _apart(own, there)

    def _moved(self, entry: Entry) -> bool:
        """A tensor of the other side with these values, under a name that suggests nothing, and left over."""
        taken = {name for relation in self.found.values() for name in relation.others}
        hinted = {name for names in self.hints.values() for name in names}
        twins = [twin for twin in self.sides.twins(entry) if twin.name not in taken and twin.name not in hinted]
        if not twins or (self._uniform(entry) and not self._all_fit(entry, twins)):
            return False
        self.found[entry.name] = Relation("exact", (twins[0].name,), "renamed")
        return True

    def _all_fit(self, entry: Entry, twins: list[Entry]) -> bool:
        """Tensors of one value prove little; they are taken for each other where as many are left on either side."""
        alike = [
            own
            for name, own in self.sides.model.entries.items()
            if name not in self.found and not self.hints.get(name) and self.sides.equal(own, entry)
        ]
        return len(alike) == len(twins)

    def _unread(self, entry: Entry, source: Entry) -> Relation:
        """One side is known by its fingerprint alone, and that is another one."""
        from layertap.weights.sketched import sketched

        twins = self.sides.twins(entry)
        if twins:
            return Relation("changed", (source.name,), "same", _holds(twin.name for twin in twins))
        here, there = self.sides.measured(entry), self.sides.measured(source)
        return Relation(*sketched(entry, source, here, there))

    def _uniform(self, entry: Entry) -> bool:
        known = self.sides.measured(entry).statistics
        return known.min == known.max

    # Judging.

    def _judged(self, entry: Entry, made: Composition, turned: bool, own: Hashes, parts: dict[str, Hashes]) -> Relation:
        hints = self.hints.get(entry.name, ())
        rule, detail = rule_of(entry, made, self.sides.other)
        owners = made.owners
        if hints and not set(owners) <= set(hints):
            return Relation("changed", hints, rule, _holds(owners))
        if rule == "reshaped" and not refines(entry.shape, self.sides.other.entries[owners[0]].shape):
            shapes = {"there": str(self.sides.other.entries[owners[0]].shape), "here": str(entry.shape)}
            return Relation("shape", owners, rule, Note("audit.one_row", **shapes))
        if rule == "rows permuted":
            order = reordered(own.rows, parts[owners[0]].rows, self.config)
            known = "converted" if order and order[0] else "changed"
            return Relation(known, owners, rule, order[1] if order else detail)
        odd = out_of_order(owners) or ("" if made.in_order else owners[0])
        if odd:
            return Relation("changed", owners, rule, Note("audit.order", name=odd))
        if made.transposed and square(entry.shape) and not turned:
            return Relation("changed", owners, "transposed", Note("audit.turned_square"))
        sources = [self.sides.other.entries[name] for name in owners]
        cast = any(source.dtype != entry.dtype for source in sources)
        if rule in ("same", "renamed") and not cast:
            return Relation("exact", owners, rule)
        kinds = Note("audit.kinds", source=short(sources[0].dtype), own=short(entry.dtype))
        if rule in ("same", "renamed"):
            return Relation("cast", owners, rule, kinds)
        note = (Note("audit.and_cast", first=detail, second=kinds) if detail else kinds) if cast else detail
        return Relation("converted", owners, rule, note, lossy=cast)

    def _unexplained(self, entry: Entry, own: Hashes, parts: dict[str, Hashes]) -> Relation:
        hints = self.hints.get(entry.name, ())
        here = self.sides.measured(entry).statistics
        if here.nonfinite and not masking(entry, here):
            return Relation("nonfinite", hints, "", Note("audit.nonfinite", count=here.nonfinite, total=here.count))
        if not hints:
            if here.count > 1 and here.min == here.max:
                return Relation(
                    "constant" if not entry.parameter else "missing", (), "", Note("audit.constant", value=here.min)
                )
            return Relation("missing", (), "", initialised(self.sides.model.model, entry, here))
        sources = self.sides.sources(entry.name)
        if len(sources) > 1:
            joined = _joined(entry, sources)
            if joined is not None:
                apart = self.sides.differences(entry, joined)
                there = self.sides.hashed([joined], own.dtype)[joined.name]
                rule, detail = changed(entry, joined, apart, *_apart(own, there))
                return Relation("changed", hints, rule, detail)
            return Relation("changed", hints, "", _lost(own, {name: parts[name] for name in hints}))
        return self._against(entry, sources[0], own, parts)

    def _against(self, entry: Entry, source: Entry, own: Hashes, parts: dict[str, Hashes]) -> Relation:
        hints: Any = (source.name,)
        if not entry.readable or not source.readable:
            if source.shape == entry.shape:
                return self._unread(entry, source)
            return self._of_another_shape(entry, source, own, parts[source.name])
        lora = merged_lora(entry, source, self.sides.other)
        if lora is not None:
            return _merged(source, lora)
        axes = axes_permuted(entry, source)
        if axes:
            return Relation("converted" if entry.shape != source.shape else "changed", hints, "axes permuted", axes)
        if source.shape != entry.shape:
            return self._of_another_shape(entry, source, own, parts[source.name])
        order = reordered(own.rows, parts[source.name].rows, self.config)
        if order is not None:
            return Relation("converted" if order[0] else "changed", hints, "rows permuted", order[1])
        how = changed(
            entry,
            source,
            self.sides.differences(entry, source),
            *_apart(own, parts[source.name]),
        )
        there = self.sides.measured(source).statistics.nonfinite
        if there:
            return Relation("changed", hints, how[0], Note("audit.nonfinite_there", first=how[1], count=there))
        return Relation("changed", hints, *how)

    def _of_another_shape(self, entry: Entry, source: Entry, own: Hashes, there: Hashes) -> Relation:
        """More rows than the other side has: padded with zeros, or with something else."""
        shapes = {"there": str(source.shape), "here": str(entry.shape)}
        size = len(there.rows)
        longer = entry.shape[1:] == source.shape[1:] and 0 < size < len(own.rows)
        if not longer or not np.array_equal(own.rows[:size], there.rows):
            alike = entry.dtype == source.dtype and entry.readable and source.readable and same_bits(entry, source)
            note = Note("audit.one_row" if alike else "audit.shapes", **shapes)
            return Relation("shape", (source.name,), "reshaped" if alike else "", note)
        if (own.rows[size:] == own.zero(False)).all():
            padded = Note("audit.padded", first=size, last=len(own.rows) - 1)
            return Relation("converted", (source.name,), "padded", padded, lossy=entry.dtype != source.dtype)
        more = Note("audit.more_rows", **shapes, last=size - 1, count=len(own.rows) - size)
        return Relation("shape", (source.name,), "", more)


def _holds(names: Iterable[str]) -> Note:
    return Note("audit.holds", names=shown(tuple(names)))


def _merged(source: Entry, lora: MergedPart) -> Relation:
    if lora.right:
        return Relation("converted", (source.name, *lora.used), "LoRA merged", lora.note, lossy=True)
    return Relation("changed", (source.name, *lora.used), "LoRA merged", lora.note)


def _lost(own: Hashes, parts: dict[str, Hashes]) -> Note:
    """Which of the parts that a tensor should be made of are not in it."""
    lost = [name for name, part in parts.items() if not np.isin(part.lines, own.lines).all()]
    if len(lost) == len(parts):  # they may lie transposed in it
        lost = [name for name, part in parts.items() if not np.isin(part.columns, own.line_values).all()]
    lost = lost or list(parts)
    return Note("audit.missing_parts", count=len(lost), total=len(parts), names=shown(tuple(lost)))


def _joined(entry: Entry, sources: list[Entry]) -> Entry | None:
    """The parts one after another as one tensor, where they fit."""
    if sum(source.numel for source in sources) != entry.numel or not all(source.readable for source in sources):
        return None
    if any(source.shape[1:] != entry.shape[1:] or source.dtype != sources[0].dtype for source in sources):
        return None

    def blocks() -> Iterator[torch.Tensor]:
        for source in sources:
            yield from source.blocks()

    return Entry(name=sources[0].name, shape=entry.shape, dtype=sources[0].dtype, blocks=blocks)


def _apart(own: Hashes, there: Hashes) -> tuple[Any, int]:
    """(The rows that differ, how many there are) by their numbers; none where one side has more."""
    alike = len(own.rows) == len(there.rows)
    return (np.flatnonzero(own.rows != there.rows) if alike else ()), len(own.rows)
