"""The measure written out from definition.py's words, for any set of element indices: slow, obvious, numpy only."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from layertap.measure.definition import BUCKETS, FIRST, LANES, lane_hash, row_hash
from layertap.measure.result import Measurement
from layertap.site import Statistics


def weights(index: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """The low 32 bits of row hash times lane hash."""
    rows, lanes = row_hash((index // LANES).astype(np.uint32)), lane_hash((index % LANES).astype(np.uint32))
    return (rows.astype(np.uint64) * lanes.astype(np.uint64)) & np.uint64(0xFFFFFFFF)


@np.errstate(all="ignore")  # numpy warns of NaN with a payload, and of squares beyond a double
def reference(tensor: torch.Tensor, index: npt.NDArray[np.int64] | None = None, offset: int = 0) -> Measurement:
    """Measures the elements of `tensor` at `index` (flat, C order; all of them when None)."""
    if tensor.is_complex():
        assert index is None
        tensor, offset = torch.view_as_real(tensor.resolve_conj()), 2 * offset
    flat = tensor.detach().contiguous().reshape(-1)
    index = np.arange(flat.numel()) if index is None else np.asarray(index, np.int64)
    values = as_float64(flat)[index]
    finite = values[np.isfinite(values)]
    total = np.sum if len(finite) and np.abs(finite).max() > 1e300 else math.fsum  # fsum raises where a sum overflows
    mean = float(total(finite / len(finite)) if total is np.sum else total(finite) / max(1, len(finite)))
    statistics = Statistics.of(
        count=len(values),
        mean=mean,
        m2=float(total((finite - mean) ** 2)),
        abs_sum=float(total(np.abs(finite))),
        min=float(finite.min()) if len(finite) else math.nan,
        max=float(finite.max()) if len(finite) else math.nan,
        nan=int(np.isnan(values).sum()),
        pos_inf=int((values == np.inf).sum()),
        neg_inf=int((values == -np.inf).sum()),
        zero=int((values == 0).sum()),
        first=tuple(values[:FIRST].tolist()),
    )
    words = raw_words(flat)
    per = words.shape[1]
    where = (index[:, None] + offset) * per + np.arange(per)
    fingerprint = int((weights(where) * words[index].astype(np.uint64)).sum(dtype=np.uint64))

    place = index + offset
    signs = np.where(weights(place) >> np.uint64(31), -1.0, 1.0)
    sketch = np.zeros(BUCKETS)
    np.add.at(sketch, place % LANES % BUCKETS, signs * np.where(np.isfinite(values), values, 0))
    return Measurement(statistics=statistics, fingerprint=fingerprint, sketch=sketch.astype("<f4").tobytes())


def raw_words(flat: torch.Tensor) -> npt.NDArray[Any]:
    """A row an element: its bytes as little-endian words of at most four bytes."""
    size = flat.element_size()
    if not flat.numel():
        return np.empty((0, max(1, size // 4)), np.uint32)
    return flat.view(torch.uint8).numpy().view(f"<u{min(size, 4)}").reshape(-1, max(1, size // 4))


def as_float64(flat: torch.Tensor) -> npt.NDArray[np.float64]:
    """numpy knows neither bfloat16 nor float8; torch widens those to float32, which holds them exactly."""
    if flat.dtype.is_floating_point and flat.dtype not in (torch.float64, torch.float32, torch.float16):
        flat = flat.to(torch.float32)
    return flat.numpy().astype(np.float64)
