"""What a model's tensors are recognised by, small enough to be sent: for a model in another process.

An inference server, another rank, another machine: there `fingerprints(model).to_json(path)`, here
`audit("checkpoint/", path)`. Equal bits, casts, other names, fused and stacked tensors are proven by it; of a tensor
that changed, the size of the change is estimated.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from layertap.errors import BadArgument
from layertap.files import parse_json, read_bytes, reading
from layertap.measure import Measurement
from layertap.messages import tr
from layertap.site import Statistics
from layertap.weights.describe import short
from layertap.weights.entries import Entry, Known, Weights
from layertap.weights.hashes import Hashes
from layertap.weights.same import THREADS

FORMAT = "layertap fingerprints"
LIMIT = 1 << 30
"""A longer file is refused."""


@dataclass(frozen=True, kw_only=True)
class Fingerprints:
    """One side of an audit without its values. Plain data: it can be pickled and sent."""

    name: str
    tensors: Mapping[str, Mapping[str, Any]]
    """Name → shape, dtype, fingerprint, statistics, sketch and the numbers of its rows."""
    config: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"format": FORMAT, "version": 1, "name": self.name, "config": self.config, "tensors": self.tensors}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Fingerprints:
        """What `to_dict` wrote."""
        if data.get("format") != FORMAT or data.get("version") != 1:
            raise BadArgument(tr("checkpoint.not_fingerprints"))
        if not isinstance(data["tensors"], Mapping) or not isinstance(data["config"], Mapping):
            raise BadArgument(tr("checkpoint.not_fingerprints"))
        return cls(name=str(data["name"]), tensors=data["tensors"], config=data["config"])

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Writes what `audit` reads."""
        Path(path).write_text(json.dumps(self.to_dict()), encoding="utf-8")

    def __str__(self) -> str:
        return tr("checkpoint.fingerprints", name=self.name, count=len(self.tensors))


def fingerprints(source: Any, *, rows: bool = True, progress: Callable[[int, int], None] | None = None) -> Fingerprints:
    """What every tensor of a model, a state dict or a checkpoint is recognised by; 16 bytes a row, 8 a column.

    `rows=False` leaves these out: fused, stacked and transposed tensors are then not found again.

    >>> from torch import nn
    >>> from layertap.weights import audit
    >>> net = nn.Linear(4, 4)
    >>> audit(net, fingerprints(net)).verdict
    'identical'
    """
    from layertap.weights.sides import Sides
    from layertap.weights.sketched import known_of
    from layertap.weights.sources import open_weights

    weights = open_weights(source)
    sides = Sides(weights, Weights(name="", entries={}), None)
    entries = list(weights.entries.values())
    done = 0

    def described(entry: Entry) -> dict[str, Any]:
        nonlocal done
        known: dict[str, Any] = {
            "shape": list(entry.shape),
            "dtype": short(entry.dtype),
            "parameter": entry.parameter,
            "persistent": entry.persistent,
        }
        if entry.meta:
            return {**known, "meta": True}
        found = sides.measured(entry)
        known |= {"fingerprint": f"{found.fingerprint:016x}", "statistics": _plain(asdict(found.statistics))}
        known |= {"sketch": base64.b64encode(found.sketch).decode(), "casts": _hexed(known_of(entry))}
        if rows:
            hashes = Hashes(entry, entry.dtype)
            known["rows"] = _packed(hashes.lines)
            if len(entry.shape) > 1:
                known |= {"columns": _packed(hashes.columns), "values": _packed(hashes.line_values)}
        done += entry.nbytes
        if progress is not None:
            progress(done, weights.nbytes)
        return known

    with ThreadPoolExecutor(THREADS) as pool:
        held = dict(zip([entry.name for entry in entries], pool.map(described, entries), strict=True))
    plain = json.loads(json.dumps(weights.config, default=str))
    return Fingerprints(name=weights.name, tensors=held, config=plain)


def read_fingerprints(path: Path) -> Fingerprints:
    """Of a file that `to_json` wrote."""
    with reading(str(path), tr("checkpoint.not_fingerprint_file"), BadArgument):
        data = parse_json(read_bytes(path, LIMIT))
        return Fingerprints.from_dict(data)


def as_weights(found: Fingerprints) -> Weights:
    """A side of an audit that has no values."""
    entries = {}
    for name, known in found.tensors.items():
        with reading(f"{found.name}: {name}", tr("checkpoint.not_fingerprint"), BadArgument):
            entries[name] = _entry(name, known)
    return Weights(name=found.name, entries=entries, config=dict(found.config))


def _entry(name: str, known: Mapping[str, Any]) -> Entry:
    dtype = getattr(torch, str(known["dtype"]), None)
    if not isinstance(dtype, torch.dtype):
        raise BadArgument(tr("checkpoint.no_dtype", name=name, dtype=repr(known["dtype"])))
    held = None
    if not known.get("meta"):
        measured = Measurement(
            statistics=Statistics(**_numbers(known["statistics"])),
            fingerprint=int(known["fingerprint"], 16),
            sketch=base64.b64decode(known["sketch"]),
        )
        casts = {kind: int(number, 16) for kind, number in known["casts"].items()}
        numbers = {key: _unpacked(known.get(key)) for key in ("rows", "columns", "values")}
        lines = numbers.pop("rows")
        held = Known(measured=measured, lines=lines, casts=casts, **numbers)

    def blocks() -> Any:
        raise BadArgument(tr("checkpoint.elsewhere", name=name))

    return Entry(
        name=name,
        shape=tuple(int(size) for size in known["shape"]),
        dtype=dtype,
        blocks=blocks,
        parameter=bool(known["parameter"]),
        persistent=bool(known["persistent"]),
        meta=bool(known.get("meta")),
        known=held,
    )


def _packed(numbers: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(numbers, "<u8").tobytes()).decode()


def _unpacked(text: str | None) -> Any:
    return np.frombuffer(base64.b64decode(text), "<u8").copy() if text is not None else None


def _hexed(numbers: Mapping[str, int]) -> dict[str, str]:
    return {kind: f"{number:016x}" for kind, number in numbers.items()}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """NaN and infinity as text: JSON has no word for them."""
    return {key: _told(value) for key, value in values.items()}


def _told(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_told(item) for item in value]
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(map(_read, value)) if isinstance(value, list) else _read(value) for key, value in values.items()}


def _read(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value
