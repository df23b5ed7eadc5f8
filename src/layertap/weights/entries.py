"""The nouns of an audit: a tensor that can be read, and one side's set of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from layertap.measure import Measurement

BLOCK = 1 << 25
"""Bytes that are read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Where a tensor's bytes lie, in C order and in its dtype."""

    path: Path
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a tensor whose values are in another process: no values, but what they are recognised by."""

    measured: Measurement
    lines: Any = None
    """uint64 of every line along the last axis, as `Hashes` numbers them; None where they were not kept."""
    columns: Any = None
    """The same of every column, by which a transposed tensor is found; None where they were not kept."""
    values: Any = None
    """The same of every line, numbered value by value, as columns are."""
    casts: Mapping[str, int] = field(default_factory=dict)
    """Its fingerprint after a cast: dtype → number."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entry:
    """One tensor of a model or a checkpoint; its values stay where they are until they are asked for."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    blocks: Callable[[], Iterator[torch.Tensor]]
    """The values in C order, in flat pieces of about `BLOCK` bytes."""
    storage: object = None
    """Tied tensors have the same one."""
    parameter: bool = True
    persistent: bool = True
    """Whether a state_dict holds it; buffers that are computed anew are not."""
    meta: bool = False
    """Whether it has no values at all."""
    stored: Stored | None = None
    """Where it can be read from directly, in any part."""
    live: torch.Tensor | None = None
    """The tensor itself, where it is in this process's memory in C order."""
    known: Known | None = None
    """In place of values: what another process said of them."""
    quantised: str = ""
    """The kind of blocks of small numbers that it is stored as; `blocks` gives the values that they represent."""

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

    @property
    def readable(self) -> bool:
        """Whether its values can be had."""
        return not self.meta and self.known is None

    def read(self) -> torch.Tensor:
        """All values, in its shape."""
        import torch

        parts = list(self.blocks())
        if not parts:
            return torch.empty(self.shape, dtype=self.dtype)
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).reshape(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """One side of an audit."""

    name: str
    entries: dict[str, Entry]
    model: Any = None
    """The live model, where it is one."""
    config: dict[str, Any] = field(default_factory=dict)
    """What is beside a checkpoint in config.json, or belongs to the model."""
    source: tuple[str, ...] = ()
    """The files and folders that another process reads the same from; empty where something is in memory."""
    called: Callable[[str], str | None] | None = None
    """As hints, where the format has names of its own: what a model calls a tensor → what it is called here."""

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self.entries.values() if entry.readable)
