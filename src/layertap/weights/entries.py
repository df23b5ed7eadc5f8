"""The nouns of an audit: a tensor that can be read, and one side's set of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

BLOCK = 1 << 25
"""Bytes that are read at once."""


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

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

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
    """What lies beside a checkpoint in config.json, or belongs to the model."""

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self.entries.values() if not entry.meta)
