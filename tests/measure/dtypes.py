"""Tensors of random bytes, so that every bit pattern of every dtype comes up, and how two measurements should agree."""

from __future__ import annotations

import math

import numpy as np
import torch

from layertap.measure import native
from layertap.measure.result import Measurement

REAL = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *native.FLOAT8,
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool),
]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
FLOAT = [dtype for dtype in REAL if dtype.is_floating_point]


def some(dtype: torch.dtype, count: int, seed: int = 0) -> torch.Tensor:
    """Values of ordinary size, with a few zeros."""
    values = torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 9
    values[::17] = 0
    if dtype is torch.bool:
        return values > 0
    if dtype in COMPLEX:
        return torch.complex(values, values.flip(0)).to(dtype)
    if not dtype.is_floating_point and not dtype.is_signed:
        values = values.abs()
    return values.to(torch.float32).to(dtype)


def every_bit(dtype: torch.dtype, count: int, seed: int = 0) -> torch.Tensor:
    """Random bytes: NaN with payloads, Inf, subnormals, the largest and the least."""
    data = np.random.default_rng(seed).integers(0, 256, count * dtype.itemsize, np.uint8)
    tensor = torch.from_numpy(data % 2 if dtype is torch.bool else data)
    return tensor.view(dtype) if count else torch.empty(0, dtype=dtype)  # torch cannot view nothing as something else


def assert_agree(found: Measurement, expected: Measurement, rtol: float = 1e-9) -> None:
    """Fingerprint, counts, extremes and first values exactly; sums up to rounding."""
    assert found.fingerprint == expected.fingerprint
    one, two = found.statistics, expected.statistics
    for name in ("count", "nan", "pos_inf", "neg_inf", "zero"):
        assert getattr(one, name) == getattr(two, name), name
    for name in ("min", "max", "first"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name), name)
    if two.finite and math.isfinite(two.l2):
        scale = two.abs_max
        np.testing.assert_allclose(one.mean, two.mean, rtol=rtol, atol=1e-4 * rtol * scale)
        np.testing.assert_allclose(one.std, two.std, rtol=rtol, atol=1e-15 * scale)
        np.testing.assert_allclose(one.abs_mean, two.abs_mean, rtol=rtol)
        np.testing.assert_allclose(one.l2, two.l2, rtol=rtol)
        if two.l2 < 1e36:
            a, b = np.frombuffer(found.sketch, "<f4"), np.frombuffer(expected.sketch, "<f4")
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * two.l2 / math.sqrt(251) + 1e-44)
