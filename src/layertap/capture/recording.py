"""`record`: a context manager around any use of a model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from torch import nn

from layertap.capture.options import RecordOptions
from layertap.capture.recorder import Recorder


class Runnable(Protocol):
    """What `record` takes besides a module: an opened target, which contains one."""

    @property
    def model(self) -> Any: ...
    @property
    def name(self) -> str: ...


def record(
    model: nn.Module | Runnable,
    path: str | os.PathLike[str] | None = None,
    *,
    sites: Any = None,
    exclude: Any = None,
    what: str | tuple[str, ...] = ("output",),
    keep: Any = "stats",
    schedule: Any = None,
    budget: int | str = "2GiB",
    policy: Literal["block", "stats", "drop"] = "block",
    strict: bool = False,
    exists: Literal["error", "append", "replace"] = "error",
    durability: Literal["fsync", "none"] = "fsync",
    meta: Mapping[str, Any] | None = None,
    mapping: Mapping[str, Any] | str | os.PathLike[str] | None = None,
) -> Recorder:
    """Records what flows through a model while the `with` block runs.

    >>> from torch import ones
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> with record(model, sites="*") as rec:
    ...     _ = model(ones(1, 2))
    >>> rec.run.sites
    (Site('0'), Site('1'))
    >>> rec.run["0"].record.shape
    (1, 3)

    `sites` and `exclude` are patterns (see `layertap.select`), `what` any of the six roles, `keep` is `"stats"`,
    `"tensor"`, `"histogram"`, a slice, a function, or `{pattern: level}`. Without a `path` the run stays in memory.
    `budget` bounds the bytes under way to disk (or held in memory), `policy` says what happens past it. What was
    committed survives a power cut, unless `durability="none"` spares the disk the work. An opened target may stand in
    place of the model: `with record(target, …): target.run(inputs)`. Of a model cut by hand over several ranks,
    `mapping` says which part of a tensor a rank holds: `{"mesh": {"tp": 4}, pattern: {"dims": "b t h[tp]"}}`, a dict or
    a file (see docs/distributed.md).
    """
    if not isinstance(model, nn.Module) and isinstance(getattr(model, "model", None), nn.Module):
        model, meta = model.model, {"target": model.name, **(meta or {})}
    options = RecordOptions(
        sites=sites,
        exclude=exclude,
        what=what,
        keep=keep,
        schedule=schedule,
        budget=budget,
        policy=policy,
        strict=strict,
        exists=exists,
        durability=durability,
        meta=meta,
        mapping=mapping,
    )
    return Recorder(model, path, options)
