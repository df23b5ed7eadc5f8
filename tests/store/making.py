"""Records to write, without a model; numpy only, so that a child process starts quickly."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from layertap.measure.fingerprint import fingerprint
from layertap.site import Receipt, Record, Site, SiteReceipt, Statistics


def statistics(**changed: Any) -> Statistics:
    values: dict[str, Any] = {"count": 4, "mean": 0.5, "std": 1.25, "min": -1.0, "max": 3.0, "abs_mean": 1.5, "l2": 2.0}
    values |= {"nan": 0, "pos_inf": 0, "neg_inf": 0, "zero": 1, "first": (1.0, 2.0)}
    return Statistics(**{**values, **changed})


def record(site: str = "layers.0", step: int = 0, **changed: Any) -> Record:
    """A record of statistics only, unless `kept_shape` and so on are given."""
    values: dict[str, Any] = {"site": Site.parse(site), "kind": "Linear", "order": 0, "step": step, "phase": "eval"}
    values |= {"shape": (2, 2), "dtype": "float32", "device": "cpu", "statistics": statistics()}
    values |= {"fingerprint": 2**64 - 1, "sketch": bytes(1004)}
    return Record(**{**values, **changed})


def kept(
    array: npt.NDArray[Any], site: str = "layers.0", step: int = 0, **changed: Any
) -> tuple[Record, npt.NDArray[np.uint8]]:
    """A record that keeps the array, and the array's bytes."""
    shape, dtype = array.shape, changed.pop("dtype", str(array.dtype))
    raw = np.frombuffer(array.tobytes(), np.uint8)
    given = {"shape": shape, "dtype": dtype, "kept": "tensor", "kept_shape": shape, "kept_dtype": dtype}
    return record(site, step, **{**given, "kept_fingerprint": fingerprint(raw, dtype), **changed}), raw


def receipt() -> Receipt:
    site = SiteReceipt(path="layers.0", role="output", kind="Linear", fired=2, tensors=2, skipped={"no tensor": 1})
    return Receipt(sites=(site,), steps=1, records=2, bytes=32, seconds=0.5, overhead=0.01)
