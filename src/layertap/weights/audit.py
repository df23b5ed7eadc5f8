"""The audit: what of one side is what of the other, proven on the values; names only suggest.

Cheapest first. A fingerprint of every tensor settles what is bit-identical. Of the rest, tensors with a partner by name
and shape are compared value by value: a cast, a multiple, an addition. What is then unexplained is looked for by its
rows and columns among all tensors of the other side: concatenated, stacked, split, transposed, permuted.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from layertap.measure import Measurement, measure, merge
from layertap.weights.classes import class_notes, fresh_buffer
from layertap.weights.compose import Composition, Index
from layertap.weights.describe import (
    OTHER,
    changed,
    common_dtype,
    constant,
    hashes_of,
    initialised,
    masking,
    reordered,
    rule_of,
    short,
    shown,
    tied_names,
    transposing,
)
from layertap.weights.differences import differences
from layertap.weights.entries import Entry, Weights
from layertap.weights.hashes import Hashes
from layertap.weights.hints import ignored, natural, out_of_order, suggested
from layertap.weights.quantised import dequantised, merged_lora
from layertap.weights.result import Audit, AuditRow
from layertap.weights.sources import open_weights

Progress = Callable[[int, int], None]


def audit(model: Any, other: Any, *, progress: Progress | None = None) -> Audit:
    """Compares two sets of parameters: a live model, a state dict or a checkpoint on either side.

    Rows carry the names of the model; of two checkpoints, those of the first.

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
    return _Audit(first, second, progress).run(began)


@dataclass(frozen=True, slots=True)
class _Relation:
    """What a tensor was found to be."""

    status: str
    others: tuple[str, ...]
    rule: str
    detail: str = ""
    lossy: bool = False


class _Audit:
    def __init__(self, model: Weights, other: Weights, progress: Progress | None) -> None:
        self.model, self.other = model, other
        self.hints = suggested(model, other)
        self.found: dict[str, _Relation] = {}
        self._progress = progress
        self._total = model.nbytes + other.nbytes
        self._done = 0

    def run(self, began: float) -> Audit:
        self.here = self._measured(self.model)
        self.there = self._measured(self.other)
        self._computed_buffers()
        self._identical()
        self._tied()
        self._by_value()
        self._by_parts()
        rows = [self._row(name) for name in self.model.entries if name in self.found]
        used = {name for relation in self.found.values() for name in relation.others}
        # A tensor that was laid beside a changed one is accounted for; what is left belongs to nothing.
        rows += [self._unexpected(name) for name in self.other.entries if name not in used]
        notes, faults = class_notes(self.model, self.other)
        return Audit(
            model=self.model.name,
            other=self.other.name,
            rows=tuple(rows),
            notes=tuple(notes),
            faults=tuple(faults),
            bytes=self._total,
            seconds=time.perf_counter() - began,
        )

    # Measuring.

    def _measured(self, weights: Weights) -> dict[str, Measurement]:
        """Fingerprint and statistics of every tensor, some at a time."""
        entries = [entry for entry in weights.entries.values() if not entry.meta]
        with ThreadPoolExecutor(max(torch.get_num_threads(), 1)) as pool:
            return dict(zip([entry.name for entry in entries], pool.map(self._measure, entries), strict=True))

    def _measure(self, entry: Entry) -> Measurement:
        parts, offset = [], 0
        for block in entry.blocks():
            parts.append(measure(block, offset=offset))
            offset += block.numel()
            self._done += block.nbytes
            if self._progress is not None:
                self._progress(self._done, self._total)
        return merge(parts) if len(parts) != 1 else parts[0]

    # The steps, cheapest first.

    def _computed_buffers(self) -> None:
        """Buffers that no checkpoint holds: made again, where their module can be, and compared with that."""
        for name, entry in self.model.entries.items():
            if entry.persistent or entry.meta or name in self.other.entries:
                continue
            again = fresh_buffer(self.model.model, name)
            if again is None:
                continue
            same = (
                again.shape == entry.shape and measure(again.to(entry.dtype)).fingerprint == self.here[name].fingerprint
            )
            if same:
                self.found[name] = _Relation("exact", (), "computed", "as its module computes it anew")
            else:
                self.found[name] = _Relation("changed", (), "computed", "not what its module computes anew")

    def _identical(self) -> None:
        for name, entry in self.model.entries.items():
            sources = self.hints.get(name, ())
            if name not in self.found and len(sources) == 1 and self._same(entry, self.other.entries[sources[0]]):
                self.found[name] = _Relation("exact", sources, "same" if sources[0] == name else "renamed")

    def _same(self, entry: Entry, source: Entry) -> bool:
        if entry.meta or source.meta or entry.shape != source.shape or entry.dtype != source.dtype:
            return False
        return self.here[entry.name].fingerprint == self.there[source.name].fingerprint

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
                        self.found[name] = _Relation("exact", (), "tied", f"one tensor with {partners[0]}")
        self._untied(by_storage)

    def _untied(self, by_storage: dict[object, list[str]]) -> None:
        """What the other side, or the configuration, says is one tensor, and the model holds as two that differ."""
        tied = {name for names in by_storage.values() if len(names) > 1 for name in names}
        for one, two in tied_names(self.model):
            a, b = self.model.entries.get(one), self.model.entries.get(two)
            if a is None or b is None or one in tied or a.meta or b.meta:
                continue
            if self.here[one].fingerprint != self.here[two].fingerprint:
                status = _Relation("untied", self.hints.get(one, ()), "untied", f"differs from {two}, its tied partner")
                self.found[one] = status

    def _by_value(self) -> None:
        """Partners by name and shape: a cast, a quantised or merged form."""
        for name, entry in self.model.entries.items():
            sources = self.hints.get(name, ())
            if name in self.found or entry.meta or not sources:
                continue
            source = self.other.entries[sources[0]]
            if len(sources) > 1 or source.shape != entry.shape or source.meta:
                continue
            small = dequantised(entry, source, self.other.entries)
            if small is not None:
                self.found[name] = _Relation("converted", (source.name, small[0]), "dequantised", small[1], lossy=True)
            elif entry.dtype != source.dtype:
                self._cast(entry, source)

    def _cast(self, entry: Entry, source: Entry) -> None:
        apart = differences(entry, source)
        if apart.lossless or apart.lossless_back:
            lost = f"loses {apart.error:.2g} of its length" if apart.unequal else "loses nothing"
            kinds = f"{short(source.dtype)} → {short(entry.dtype)}"
            self.found[entry.name] = _Relation("cast", (source.name,), "cast", f"{kinds}, {lost}")

    def _by_parts(self) -> None:
        """What is left, by its rows and columns among what the other side has left."""
        left = [entry for name, entry in self.model.entries.items() if name not in self.found and not entry.meta]
        left = [entry for entry in left if entry.persistent or self.hints.get(entry.name)]
        left = [entry for entry in left if not self._changed_in_part(entry)]
        if left:
            used = {name for relation in self.found.values() for name in relation.others}
            likely = {name for entry in left for name in self.hints.get(entry.name, ())}
            wide = [e for name, e in self.other.entries.items() if not e.meta and (name not in used or name in likely)]
            dtype = common_dtype(left, wide)
            here = {entry.name: hashes_of(entry, dtype) for entry in left}
            there = {entry.name: hashes_of(entry, dtype) for entry in wide}
            made: dict[str, Composition | None] = {}
            for across in (False, True):
                open_ = [name for name in here if made.get(name) is None]
                index = Index(there, across=across) if open_ and there else None
                for name in open_ if index is not None else ():
                    made[name] = index.compose(here[name], self.hints.get(name, ())) if index is not None else None
            convention = transposing(left, made)
            for entry in left:
                own = here[entry.name]
                self.found[entry.name] = self._judged(entry, made.get(entry.name), convention, own, there)
        for name, entry in self.model.entries.items():
            if entry.meta:
                self.found[name] = _Relation("meta", self.hints.get(name, ()), "", "it has no values: never loaded")

    def _changed_in_part(self, entry: Entry) -> bool:
        """Settles what needs no search: a twin of another tensor, or one of which most is still right."""
        hints = self.hints.get(entry.name, ())
        if len(hints) != 1:
            return False
        source = self.other.entries[hints[0]]
        if source.shape != entry.shape or source.meta:
            return False
        twins = [name for name, e in self.other.entries.items() if not e.meta and self._same(entry, e)]
        if twins and not self._uniform(entry):
            self.found[entry.name] = _Relation("changed", hints, "same", f"holds the values of {shown(tuple(twins))}")
            return True
        apart = differences(entry, source)
        if apart.error > OTHER or self.here[entry.name].statistics.nonfinite:
            return False
        dtype = common_dtype([entry], [source])
        own, there = hashes_of(entry, dtype), hashes_of(source, dtype)
        if reordered(own.rows, there.rows, self.model.config) is not None:
            return False
        lora = merged_lora(entry, source, self.other.entries)
        if lora is not None:
            factors = (source.name, *lora[0])
            self.found[entry.name] = _Relation("converted", factors, "LoRA merged", lora[1], lossy=True)
        else:
            how = changed(apart, own, there, self.here[entry.name].statistics)
            self.found[entry.name] = _Relation("changed", hints, *how)
        return True

    def _uniform(self, entry: Entry) -> bool:
        known = self.here[entry.name].statistics
        return known.min == known.max

    # Judging.

    def _judged(
        self, entry: Entry, made: Composition | None, transposing: bool, own: Hashes, parts: dict[str, Hashes]
    ) -> _Relation:
        hints = self.hints.get(entry.name, ())
        if made is None:
            return self._unexplained(entry, hints, own, parts)
        rule, detail = rule_of(entry, made, self.other)
        owners = made.owners
        if hints and not set(owners) <= set(hints):
            told = f"holds the values of {shown(owners)}"
            return _Relation("changed", hints, rule, told)
        if rule == "rows permuted":
            order = reordered(own.rows, parts[owners[0]].rows, self.model.config)
            return _Relation(
                "converted" if order and order[0] else "changed", owners, rule, order[1] if order else detail
            )
        odd = out_of_order(owners) or ("" if made.in_order else owners[0])
        if odd:
            return _Relation("changed", owners, rule, f"its parts come in another order: first {odd}")
        square = len(entry.shape) >= 2 and entry.shape[-1] == entry.shape[-2]
        if made.transposed and square and not transposing:
            why = "transposed, and nothing that is not square shows that this is how the two sides differ"
            return _Relation("changed", owners, "transposed", why)
        sources = [self.other.entries[name] for name in owners]
        cast = any(source.dtype != entry.dtype for source in sources)
        if rule in ("same", "renamed") and not cast:
            return _Relation("exact", owners, rule)
        if rule in ("same", "renamed"):
            return _Relation("cast", owners, rule, f"{short(sources[0].dtype)} → {short(entry.dtype)}")
        kinds = f"{short(sources[0].dtype)} → {short(entry.dtype)}" if cast else ""
        return _Relation("converted", owners, rule, ", ".join(part for part in (detail, kinds) if part), lossy=cast)

    def _unexplained(self, entry: Entry, hints: tuple[str, ...], own: Hashes, parts: dict[str, Hashes]) -> _Relation:
        here = self.here[entry.name].statistics
        if here.nonfinite and not masking(entry, here):
            return _Relation("nonfinite", hints, "", f"{here.nonfinite} of {here.count} values are NaN or infinite")
        if not hints:
            if here.count > 1 and here.min == here.max:
                return _Relation("constant" if not entry.parameter else "missing", (), "", constant(here.min))
            return _Relation("missing", (), "", initialised(self.model.model, entry, here))
        sources = [self.other.entries[name] for name in hints]
        if len(sources) == 1:
            lora = merged_lora(entry, sources[0], self.other.entries)
            if lora is not None:
                return _Relation("converted", (sources[0].name, *lora[0]), "LoRA merged", lora[1], lossy=True)
            if sources[0].shape != entry.shape:
                told = f"{tuple(sources[0].shape)} there, {tuple(entry.shape)} here"
                return _Relation("shape", hints, "", told)
            order = reordered(own.rows, parts[hints[0]].rows, self.model.config)
            if order is not None:
                return _Relation("converted" if order[0] else "changed", hints, "rows permuted", order[1])
            apart = differences(entry, sources[0])
            return _Relation("changed", hints, *changed(apart, own, parts[hints[0]], here))
        share = Index({name: parts[name] for name in hints}, across=False).share(own)
        return _Relation(
            "changed", hints, "", f"{share:.0%} of its rows are found among the parts it should be made of"
        )

    def _row(self, name: str) -> AuditRow:
        entry, relation = self.model.entries[name], self.found[name]
        known = self.here[name].statistics if name in self.here else None
        if known is not None and known.nonfinite and entry.parameter and relation.status != "nonfinite":
            detail = f"{known.nonfinite} of {known.count} values are NaN or infinite, on both sides"
            relation = _Relation("nonfinite", relation.others, relation.rule, detail)
        others = sorted(relation.others, key=natural)
        return AuditRow(
            name=name,
            other=shown(tuple(others)),
            status=relation.status,
            rule=relation.rule,
            detail=relation.detail,
            shape=entry.shape,
            dtype=short(entry.dtype),
            lossy=relation.lossy,
        )

    def _unexpected(self, name: str) -> AuditRow:
        entry = self.other.entries[name]
        quiet = ignored(self.model.model, name)
        return AuditRow(
            name="",
            other=name,
            status="unexpected",
            detail="the class says that it does without it" if quiet else "nothing in the model was made of it",
            shape=entry.shape,
            dtype=short(entry.dtype),
            explained=quiet,
        )
