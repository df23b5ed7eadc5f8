"""The audit: what of one side is what of the other, proven on the values; names only suggest.

Cheapest first. Partners by name are compared bit by bit as they are read. Of the rest, tensors with a partner by name
and shape are compared value by value: a cast, a multiple, an addition. What is then unexplained is looked for by its
rows and columns among all tensors of the other side: concatenated, stacked, split, transposed, permuted.
"""

from __future__ import annotations

import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from layertap.engine import EngineChoice, open_engine
from layertap.measure import measure
from layertap.result import Note
from layertap.select.collapse import collapse
from layertap.site import natural_key
from layertap.weights.classes import class_notes, fresh_buffer
from layertap.weights.consistency import inconsistent
from layertap.weights.describe import head_sizes, rope_order, short, shown, tied_names
from layertap.weights.differences import Differences, differences
from layertap.weights.entries import Entry
from layertap.weights.hints import ignored
from layertap.weights.layout import partial_shards, refines, straight_squares
from layertap.weights.measuring import Measuring
from layertap.weights.parametrized import computed_weights
from layertap.weights.quantised import dequantised, rounded
from layertap.weights.result import Audit, AuditRow
from layertap.weights.same import THREADS, compare, finite
from layertap.weights.search import RelationSearch
from layertap.weights.sides import Progress, Relation, Sides
from layertap.weights.sources import of_tensor, open_weights


def audit(
    model: Any,
    other: Any,
    *,
    engine: EngineChoice = None,
    address: str | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Compares two sets of parameters: a live model, a state dict, a checkpoint, or a list of these on either side.

    Rows carry the names of the model; of two checkpoints, those of the first. `engine="ray"` measures by the workers of
    the Ray cluster at `address`, or of this machine, which read both sides from their files: the same, bit for bit.

    >>> import torch
    >>> net = torch.nn.Linear(2, 2)
    >>> saved = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    >>> audit(net, saved).by_status
    {'exact': 2}
    >>> saved["weight"][0] *= 2
    >>> print(audit(net, saved).rows[0].detail)
    relative error ..., 1 of 2 rows differ (first: 0)
    """
    began = time.perf_counter()
    first, second = open_weights(model), open_weights(other)
    if second.model is not None and first.model is None:
        first, second = second, first
    sides = Sides(first, second, progress)
    with open_engine(engine, address) as workers:
        return _Auditing(sides, Measuring(workers, sides) if workers.remote else None).run(began)


class _Auditing:
    def __init__(self, sides: Sides, workers: Measuring | None = None) -> None:
        self.sides = sides
        self.workers = workers
        """Who measures tensor by tensor; None: this process."""
        self.model, self.other, self.hints = sides.model, sides.other, sides.hints
        self.found: dict[str, Relation] = {}
        self.sound: dict[str, bool] = {}
        """Whether all values are finite, of the tensors of which that is known."""

    def run(self, began: float) -> Audit:
        self._computed_buffers()
        self._identical()
        self._tied()
        self._by_value()
        for name, relation in computed_weights(self.model, self.other).items():
            self.found.setdefault(name, relation)
        search = RelationSearch(self.sides, self.found)
        search.run()
        for name, reason in straight_squares(self.model, self.other, self.found).items():
            self.found[name] = Relation("changed", self.found[name].others, "not transposed", reason)
        self.found.update(inconsistent(self.model, self.other, self.found, search.made))
        self.found.update(partial_shards(self.model, self.found, search.made, search.zero_rows))
        for name, entry in self.model.entries.items():
            if entry.meta:
                self.found[name] = Relation("meta", self.hints.get(name, ()), "", Note("audit.meta"))
        self._finite()
        rows = [self._row(name) for name in self.model.entries if name in self.found]
        used = {name for relation in self.found.values() for name in relation.others}
        # A tensor that was laid beside a changed one is accounted for; what is left belongs to nothing.
        rows += [self._unexpected(name) for name in self.other.entries if name not in used]
        notes, faults = class_notes(self.model, self.other)
        notes += self._unchecked()
        return Audit(
            model=self.model.name,
            other=self.other.name,
            rows=tuple(rows),
            notes=tuple(notes),
            faults=tuple(faults),
            bytes=self.sides.bytes,
            seconds=time.perf_counter() - began,
        )

    def _computed_buffers(self) -> None:
        """Buffers that no checkpoint holds: made again, where their module can be, and compared with that."""
        for name, entry in self.model.entries.items():
            if entry.persistent or not entry.readable or name in self.other.entries:
                continue
            again = fresh_buffer(self.model.model, name)
            if again is None:
                continue
            self.found[name] = self._against_computed(entry, of_tensor(name, again, parameter=False))

    def _against_computed(self, entry: Entry, again: Entry) -> Relation:
        if again.shape != entry.shape:
            shapes = Note("audit.shapes", there=str(again.shape), here=str(entry.shape))
            return Relation("changed", (), "computed", shapes)
        if measure(again.read().to(entry.dtype)).fingerprint == self.sides.measured(entry).fingerprint:
            return Relation("exact", (), "computed", Note("audit.computed"))
        apart = differences(entry, again)
        if apart.through in ("bfloat16", "float16"):
            return Relation("cast", (), "computed", _through(entry, again, apart))
        return Relation("changed", (), "computed", Note("audit.not_computed", error=apart.error))

    def _unchecked(self) -> list[str]:
        """Buffers of the model of which nothing is known but what they are."""
        left = [name for name in self.model.entries if name not in self.found]
        return [Note("audit.not_checked", count=len(left), names=", ".join(collapse(left)))] if left else []

    def _identical(self) -> None:
        """Partners by name that have the same bits."""
        pairs = []
        for name, entry in self.model.entries.items():
            source = self.sides.partner(entry)
            if name in self.found or source is None or entry.meta or source.meta or entry.dtype != source.dtype:
                continue
            if entry.shape != source.shape and not refines(entry.shape, source.shape):
                continue
            if entry.readable and source.readable:
                pairs.append((entry, source))
            elif self.sides.equal(entry, source):
                self._settle(entry, source)
        found = compare(pairs, self.sides.tick) if self.workers is None else self.workers.same(pairs)
        for (entry, source), same in zip(pairs, found, strict=True):
            if same.equal:
                self._settle(entry, source)
                self.sound[entry.name] = same.finite

    def _settle(self, entry: Entry, source: Entry) -> None:
        rule = "same" if entry.name == source.name else "renamed"
        if entry.shape != source.shape:
            there = Note("audit.there", shape=str(source.shape))
            self.found[entry.name] = Relation("converted", (source.name,), "reshaped", there)
        else:
            self.found[entry.name] = Relation("exact", (source.name,), rule)

    def _tied(self) -> None:
        """Several names of one tensor, of which a checkpoint keeps one."""
        by_storage: defaultdict[object, list[str]] = defaultdict(list)
        for name, entry in self.model.entries.items():
            if entry.storage is not None:
                by_storage[entry.storage].append(name)
        for names in by_storage.values():
            for name in names:
                if name not in self.found and not self.hints.get(name):
                    partners = [n for n in names if n != name and (n in self.found or self.hints.get(n))]
                    if partners:
                        one = Note("audit.one_tensor", name=partners[0])
                        self.found[name] = Relation("exact", (), "tied", one)
        self._untied(by_storage)

    def _untied(self, by_storage: dict[object, list[str]]) -> None:
        """What the other side, or the configuration, says is one tensor, and the model holds as two that differ."""
        tied = {name for names in by_storage.values() if len(names) > 1 for name in names}
        for one, two in tied_names(self.model):
            a, b = self.model.entries.get(one), self.model.entries.get(two)
            if a is None or b is None or one in tied or a.meta or b.meta:
                continue
            if not self.sides.equal(a, b):
                apart = Note("audit.differs", name=two)
                self.found[one] = Relation("untied", self.hints.get(one, ()), "untied", apart)
            elif one not in self.found and not self.hints.get(one):
                self.found[one] = Relation("exact", (), "tied", Note("audit.same_as", name=two))

    def _by_value(self) -> None:
        """Partners by name and shape: a cast, a quantised or merged form; several at a time."""
        pairs = []
        for name, entry in self.model.entries.items():
            source = self.sides.partner(entry)
            if name in self.found or source is None or not entry.readable or not source.readable:
                continue
            if source.shape == entry.shape:
                pairs.append((entry, source))
        with ThreadPoolExecutor(THREADS) as pool:
            found = (
                pool.map(lambda pair: _valued(self.sides, *pair), pairs)
                if self.workers is None
                else self.workers.valued(pairs, _valued)
            )
            for (entry, _), relation in zip(pairs, found, strict=True):
                if relation is not None:
                    self.found[entry.name] = relation

    def _finite(self) -> None:
        """What was not looked at yet."""
        left = [
            entry
            for name, entry in self.model.entries.items()
            if name in self.found and name not in self.sound and entry.parameter and entry.readable
        ]
        found = finite(left, lambda _: None) if self.workers is None else self.workers.finite(left)
        for entry, sound in zip(left, found, strict=True):
            self.sound[entry.name] = sound

    def _row(self, name: str) -> AuditRow:
        entry, relation = self.model.entries[name], self.found[name]
        if entry.parameter and entry.readable and not self.sound[name] and relation.status != "nonfinite":
            relation = Relation("nonfinite", relation.others, relation.rule, self._nonfinite(entry, relation))
        in_order = relation.rule in ("concatenated", "interleaved", "stacked")
        others = list(relation.others) if in_order else sorted(relation.others, key=natural_key)
        return AuditRow(
            name=name,
            other=shown(tuple(others)),
            status=relation.status,
            rule=relation.rule,
            detail=relation.detail,
            shape=entry.shape,
            dtype=short(entry.dtype),
            lossy=relation.lossy,
            partial=relation.partial,
        )

    def _nonfinite(self, entry: Entry, relation: Relation) -> Note:
        here = self.sides.measured(entry).statistics
        counts = {"count": here.nonfinite, "total": here.count}
        there = [self.other.entries[name] for name in relation.others if name in self.other.entries]
        known = [self.sides.measured(source).statistics for source in there if source.readable]
        if not known:
            return Note("audit.nonfinite", **counts)
        there_too = sum(one.nonfinite for one in known)
        if there_too == here.nonfinite:
            return Note("audit.nonfinite_both", **counts)
        if there_too:
            return Note("audit.nonfinite_other", **counts, there=there_too)
        largest = max(one.abs_max for one in known)
        return Note("audit.nonfinite_here", **counts, largest=largest, dtype=short(entry.dtype))

    def _unexpected(self, name: str) -> AuditRow:
        entry = self.other.entries[name]
        remark = "audit.does_without" if ignored(self.model.model, name) else "audit.unused"
        # A buffer that its own side computes is in no checkpoint, and a model of another kind does without it.
        remark = remark if entry.persistent else "audit.not_saved"
        return AuditRow(
            name="",
            other=name,
            status="unexpected",
            detail=Note(remark),
            shape=entry.shape,
            dtype=short(entry.dtype),
            explained=remark != "audit.unused",
        )


def _valued(sides: Sides, entry: Entry, source: Entry) -> Relation | None:
    small = dequantised(entry, source, sides.other.entries)
    if small is not None:
        status = "converted" if small.right else "changed"
        return Relation(status, (source.name, *small.used), "dequantised", small.note, lossy=True)
    if entry.quantised or source.quantised:
        kept = rounded(entry, source) or _rounded_in_rope_order(sides, entry, source)
        return Relation("cast", (source.name,), "quantised", kept) if kept is not None else None
    small = dequantised(source, entry, sides.model.entries)
    if small is not None:
        return Relation("cast" if small.right else "changed", (source.name,), "quantised", small.note)
    if not entry.dtype.is_floating_point or not source.dtype.is_floating_point:
        return None
    apart = sides.differences(entry, source)
    kinds = {"source": short(source.dtype), "own": short(entry.dtype)}
    if entry.dtype != source.dtype and (apart.lossless or apart.lossless_back):
        lost = Note("audit.cast_loses", **kinds, error=apart.error) if apart.unequal else None
        return Relation("cast", (source.name,), "cast", lost or Note("audit.cast_exact", **kinds))
    if apart.through in ("bfloat16", "float16"):
        return Relation("cast", (source.name,), "cast", _through(entry, source, apart))
    if apart.through:
        remark = Note("audit.back_through", through=apart.through, error=apart.error)
        return Relation("changed", (source.name,), "cast", remark)
    if apart.cut:
        return Relation("cast", (source.name,), "cast", Note("audit.cut_off", **kinds, error=apart.error))
    return None


def _rounded_in_rope_order(sides: Sides, entry: Entry, source: Entry) -> Note | None:
    """Quantised queries and keys in the other rope layout, as llama.cpp keeps those of Llama."""
    for size in head_sizes(sides.model.config) if len(entry.shape) == 2 else ():
        order = rope_order(entry.shape[0], size)
        if order is not None:
            kept = rounded(entry, of_tensor(source.name, source.read()[torch.from_numpy(order)]), source.quantised)
            if kept is not None:
                return Note("audit.and_cast", first=Note("audit.rope", size=size), second=kept)
    return None


def _through(entry: Entry, source: Entry, apart: Differences) -> Note:
    kinds = {"source": short(source.dtype), "own": short(entry.dtype), "through": apart.through}
    return Note("audit.cast_through", **kinds, error=apart.error)
