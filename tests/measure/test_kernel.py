"""The fused kernel, run by triton's interpreter on CPU tensors, against a plain float64 reference."""

from __future__ import annotations

import importlib.util
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from layertap.measure.definition import BUCKETS, LANES, lane_hash, row_hash
from layertap.measure.slab import SLAB_BYTES, decode

TILE = 4 * LANES
CASES = [
    ("float32", 1),
    ("float32", 0),
    ("float32", LANES + 1),
    ("float32", 9 * TILE + LANES + 9),
    ("bfloat16", 9),
    ("bfloat16", LANES - 1),
    ("bfloat16", 13 * TILE + 3),
    ("float16", 2 * TILE),
    ("float8_e4m3fn", TILE + 5),
    ("float8_e5m2", TILE + 5),
    ("float64", TILE + 7),
    ("int8", TILE + 1),
    ("int16", TILE),
    ("int32", LANES + 5),
    ("int64", TILE + 5),
    ("uint8", 17),
    ("bool", TILE + 2),
]
FLAVOURS = ("plain", "holes", "far", "tiny", "huge", "constant", "signs", "drift")


def tensor(kind: str, count: int, flavour: str) -> torch.Tensor:
    """Fresh numbers of that dtype; the flavours are the ones that break careless sums."""
    dtype = getattr(torch, kind)
    make = torch.Generator().manual_seed(count + len(kind))
    if not dtype.is_floating_point:
        top = 2 if dtype == torch.bool else 100
        return torch.randint(0 if kind in ("bool", "uint8") else -top, top, (count,), generator=make).to(dtype)
    x = torch.randn(count, generator=make, dtype=torch.float64)
    if flavour == "far":
        x += 1000.0
    elif flavour == "tiny":
        x *= 1e-30
    elif flavour == "huge":
        x *= 1e30
    elif flavour == "constant":
        x = torch.full_like(x, 3.25)
    elif flavour == "signs":
        x = 0.3701171875 * torch.where(x < 0, -1.0, 1.0)
    elif flavour == "drift":
        x[count // 2 :] += 300.0
    x[::7] = 0.0
    if flavour == "holes":
        x[3::1001] = math.nan
        x[5::2003] = math.inf
        x[1::4001] = -math.inf
    return x.to(dtype)


def reference(x: torch.Tensor) -> dict[str, Any]:
    """The definition, word for word, in float64."""
    values = x.to(torch.float64).numpy()
    raw = x.view(torch.uint8).numpy().tobytes() if x.numel() else b""
    words = np.frombuffer(raw, f"<u{min(4, x.element_size())}").astype(np.uint64)
    finite = values[np.isfinite(values)]
    kept = np.where(np.isfinite(values), values, 0.0)
    buckets = np.arange(len(values)) % LANES % BUCKETS
    sign = np.where(weights(len(values)) >= 2**31, -1.0, 1.0)
    return {
        "mean": finite.mean() if len(finite) else math.nan,
        "std": finite.std() if len(finite) else math.nan,
        "abs_mean": np.abs(finite).mean() if len(finite) else math.nan,
        "min": finite.min() if len(finite) else math.nan,
        "max": finite.max() if len(finite) else math.nan,
        "l2": math.sqrt(float((finite * finite).sum())),
        "nan": int(np.isnan(values).sum()),
        "pos_inf": int((values == np.inf).sum()),
        "neg_inf": int((values == -np.inf).sum()),
        "zero": int((values == 0).sum()),
        "first": values[:10],
        "fingerprint": int((weights(len(words)).astype(np.uint64) * words).sum(dtype=np.uint64)),
        "sketch": np.bincount(buckets, sign * kept, minlength=BUCKETS),
        "scale": float(np.sqrt(np.bincount(buckets, kept * kept, minlength=BUCKETS).max(initial=0))),
    }


def weights(count: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    place = np.arange(count)
    return row_hash((place // LANES).astype(np.uint32)) * lane_hash((place % LANES).astype(np.uint32))


def differences(x: torch.Tensor, slab: torch.Tensor) -> list[str]:
    """What the decoded slab gets wrong, in words."""
    result, want = decode(slab.cpu().numpy(), x.numel()), reference(x.cpu())
    got = result.statistics
    wrong = []
    size = max(abs(want["mean"]), want["std"], 1e-300) if x.numel() else 1.0
    for name in ("mean", "std", "abs_mean", "l2"):
        near = want["l2"] if name == "l2" else (want["std"] if name == "std" else size)
        value = getattr(got, name)
        if not (abs(value - want[name]) <= 2e-6 * near + 1e-9 * size or (math.isnan(value) and math.isnan(want[name]))):
            wrong.append(f"{name}: {value} for {want[name]}")
    exactly = ("min", "max", "nan", "pos_inf", "neg_inf", "zero", "first")
    wrong += [
        f"{name}: {getattr(got, name)} for {want[name]}"
        for name in exactly
        if not np.array_equal(getattr(got, name), want[name], equal_nan=True)
    ]
    if result.fingerprint != want["fingerprint"]:
        wrong.append(f"fingerprint: {result.fingerprint:x} for {want['fingerprint']:x}")
    error = np.abs(np.frombuffer(result.sketch, np.float32) - want["sketch"]).max()
    if not error <= 3e-6 * want["scale"]:
        wrong.append(f"sketch: off by {error}, scale {want['scale']}")
    return wrong


def main() -> None:
    from ptx import quicken
    from triton.runtime import interpreter

    from layertap.measure import kernel

    quicken(interpreter)
    # So that small tensors have several chunks a program, some to be read again.
    kernel.GEOMETRY = {kind: replace(geometry, rows=4, chunk=2) for kind, geometry in kernel.GEOMETRY.items()}
    found: dict[str, list[str]] = {}
    for kind, count in CASES:
        for flavour in FLAVOURS if count > TILE and kind in ("float32", "bfloat16", "float64") else FLAVOURS[1:2]:
            x, slab = tensor(kind, count, flavour), torch.full((SLAB_BYTES,), 0xAA, dtype=torch.uint8)
            kernel.launch(x, slab)
            found[f"{kind}[{count}] {flavour}"] = differences(x, slab)
    deferred = kernel.Deferred(torch.device("cpu"))
    deferred.TOGETHER = 3
    cases = [(kind, count) for kind, count in CASES if count]
    xs = [tensor(kind, count, "holes") for kind, count in cases]
    slabs = torch.full((len(cases), SLAB_BYTES), 0xAA, dtype=torch.uint8)
    for index, x in enumerate(xs):
        deferred.launch(x, slabs, index)
    deferred.finish()
    for (kind, count), x, slab in zip(cases, xs, slabs, strict=True):
        found[f"{kind}[{count}] deferred"] = differences(x, slab)
    found.update(packed(kernel))
    print(json.dumps(found))


def packed(kernel: Any) -> dict[str, list[str]]:
    """What is done by instructions of Hopper chips, which numpy does here."""
    import ptx
    from triton import language
    from triton.runtime import interpreter

    from layertap.measure import fused

    done = ptx.teach(interpreter)
    kernel._hopper = lambda device: True
    found: dict[str, list[str]] = {}

    def launch(name: str, x: torch.Tensor, *, expected: bool = True) -> None:
        before, slab = len(done), torch.full((SLAB_BYTES,), 0xAA, dtype=torch.uint8)
        ptx.readable = range(x.data_ptr(), x.data_ptr() + x.nbytes)
        kernel.launch(x, slab)
        found[f"{name}, packed"] = differences(x, slab)
        if (len(done) > before) != expected:
            found[f"{name}, packed"] = ["not packed" if expected else "packed"]

    for kind in ("bfloat16", "float16", "float8_e4m3fn", "int8"):  # too short to have a whole tile
        launch(f"{kind}, short", tensor(kind, LANES + 1, "plain"), expected=False)
    kernel.SHORT = 0
    kernel._ready.clear()
    for kind, geometry in kernel.GEOMETRY.items():
        if geometry.packed:
            for flavour in FLAVOURS if kind in ("bfloat16", "float16") else FLAVOURS[1:3]:
                count = 9 * TILE + LANES + 9
                launch(f"{kind}[{count}] {flavour}", tensor(kind, count, flavour))
    # Loads are of 16 bytes, or of 8: what begins elsewhere goes another way.
    for kind, offset in (("bfloat16", 4), ("int8", 4)):
        launch(f"{kind}, from {offset} on", tensor(kind, 2 * TILE + 8, "plain")[offset:], expected=False)
    # As if each program's first row had a small mean: the chunks that have a large one are read again.
    fused._NEAR = language.constexpr(math.inf)
    numbers = torch.randn(count, generator=torch.Generator().manual_seed(0)) * 2 + 2000
    launch("a first row unlike the others", numbers.to(torch.float16))
    return found


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed: pip install triton")
def test_the_kernel_computes_the_definition_for_all_dtypes_and_sizes() -> None:
    from measure.interpreter import interpreted

    found = interpreted(__file__)
    assert len(found) > len(CASES)
    assert sum("packed" in case for case in found) == 35
    assert {case: wrong for case, wrong in found.items() if wrong} == {}


def test_what_is_packed_has_a_whole_tile() -> None:
    from layertap.measure import kernel

    packed = {kind: one.rows * LANES for kind, one in kernel.GEOMETRY.items() if one.packed}
    assert all(getattr(torch, kind).itemsize * rows <= kernel.SHORT for kind, rows in packed.items())


def test_what_is_counted_of_bytes_in_a_chunk_fits_in_a_byte() -> None:
    from layertap.measure import kernel

    assert all(kernel.GEOMETRY[kind].rows * kernel.GEOMETRY[kind].chunk < 256 for kind in ("int8", "uint8", "bool"))


def test_a_slab_decodes_to_what_was_written_into_it() -> None:
    slab = np.zeros(SLAB_BYTES, np.uint8)
    slab[:32].view(np.int64)[:] = (1, 2, 3, 4)
    slab[32:72].view(np.float64)[:] = (0.5, 16.0, 20.0, -2.0, 3.0)
    slab[72:80].view(np.uint64)[:] = 2**63 + 5
    slab[80:160].view(np.float64)[:] = range(10)
    slab[160 : 160 + 4 * BUCKETS].view(np.float32)[:] = range(BUCKETS)
    result = decode(slab, 22)
    got = result.statistics
    assert (got.nan, got.pos_inf, got.neg_inf, got.zero) == (1, 2, 3, 4)
    assert (got.mean, got.std, got.abs_mean, got.min, got.max) == (0.5, 1.0, 1.25, -2.0, 3.0)
    assert got.first == tuple(map(float, range(10)))
    assert result.fingerprint == 2**63 + 5
    assert np.frombuffer(result.sketch, "<f4").tolist() == list(range(BUCKETS))


if __name__ == "__main__":
    main()
