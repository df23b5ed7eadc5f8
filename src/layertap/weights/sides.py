"""The two sides of an audit and what has been read of them: nothing is read twice that is still known."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from layertap.measure import Measurement, measure, merge
from layertap.weights.differences import Differences, differences
from layertap.weights.entries import Entry, Weights
from layertap.weights.hashes import Hashes
from layertap.weights.hints import suggested
from layertap.weights.same import THREADS, glimpse, same_bits

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Relation:
    """What a tensor was found to be."""

    status: str
    others: tuple[str, ...]
    rule: str
    detail: str = ""
    """A `Note`, or empty."""
    lossy: bool = False
    partial: bool = False
    """Whether it leaves out values of the other side, and nothing shows that it may."""


class Sides:
    """A model, what it is compared with, and what names suggest."""

    def __init__(self, model: Weights, other: Weights, progress: Progress | None) -> None:
        self.model, self.other = model, other
        self.hints = suggested(model, other)
        self._measured: dict[int, Measurement] = {}
        self._apart: dict[tuple[int, int], Differences] = {}
        self._seen: dict[tuple[object, ...], list[Entry]] = {}
        self._progress = progress
        held = [*model.entries.values(), *other.entries.values()]
        self._open = all(entry.readable or entry.meta for entry in held)
        self._total = model.nbytes + other.nbytes
        self._done = 0
        self._lock = threading.Lock()

    def tick(self, count: int) -> None:
        """So many bytes more were read. What is read a second time does not move the bar past its end."""
        if self._progress is not None:
            with self._lock:
                self._done = min(self._done + count, self._total)
                self._progress(self._done, self._total)

    @property
    def bytes(self) -> int:
        return self._total

    def sources(self, name: str) -> list[Entry]:
        """The tensors of the other side that the name suggests."""
        return [self.other.entries[hint] for hint in self.hints.get(name, ())]

    def partner(self, entry: Entry) -> Entry | None:
        """The only one that the name suggests."""
        found = self.sources(entry.name)
        return found[0] if len(found) == 1 else None

    # Measuring.

    def measured(self, entry: Entry) -> Measurement:
        """Fingerprint and statistics, taken when they are first asked for."""
        if entry.known is not None:
            return entry.known.measured
        if id(entry) not in self._measured:
            parts, offset = [], 0
            for block in entry.blocks():
                parts.append(measure(block, offset=offset))
                offset += block.numel()
            if not parts:
                parts.append(measure(torch.empty(0, dtype=entry.dtype)))
            self._measured[id(entry)] = merge(parts) if len(parts) != 1 else parts[0]
        return self._measured[id(entry)]

    def differences(self, entry: Entry, source: Entry) -> Differences:
        """How a pair differs; read once."""
        key = (id(entry), id(source))
        if key not in self._apart:
            self._apart[key] = differences(entry, source)
        return self._apart[key]

    def known(self, entry: Entry, source: Entry) -> Differences | None:
        """How a pair differs, if that was asked for before."""
        return self._apart.get((id(entry), id(source)))

    def keep(self, entry: Entry, source: Entry, apart: Differences) -> None:
        """Takes what another process has measured of a pair."""
        self._apart[id(entry), id(source)] = apart

    def equal(self, a: Entry, b: Entry) -> bool:
        """Whether two tensors are the same bits in the same shape, by their values or by what another process said."""
        if a.meta or b.meta or a.shape != b.shape or a.dtype != b.dtype:
            return False
        if a.readable and b.readable:
            return same_bits(a, b)
        return self.measured(a).fingerprint == self.measured(b).fingerprint

    def twins(self, entry: Entry, besides: Entry | None = None) -> list[Entry]:
        """All tensors of the other side that have the same bits in the same shape; `besides` is known not to."""
        if not self._seen:
            for other in self.other.entries.values():
                if not other.meta:
                    self._seen.setdefault(self._mark(other), []).append(other)
        alike = self._seen.get(self._mark(entry), [])
        return [other for other in alike if other is not besides and self.equal(entry, other)]

    def _mark(self, entry: Entry) -> tuple[object, ...]:
        return (entry.shape, entry.dtype, glimpse(entry) if self._open else b"")

    def hashed(self, entries: Iterable[Entry], dtype: torch.dtype | None) -> dict[str, Hashes]:
        """What the parts of these tensors are recognised by, read in parallel."""
        found = {}
        for entry in entries:
            floating = dtype is not None and entry.dtype.is_floating_point
            found[entry.name] = Hashes(entry, dtype if floating and dtype is not None else entry.dtype)

        def read(entry: Hashes) -> None:
            _ = entry.lines, entry.rows

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(read, found.values()))
        return found
