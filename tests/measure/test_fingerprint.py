"""Equal fingerprints mean equal bits: everything that a weaker hash misses is tried here."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from layertap.measure import fingerprint as bytewise
from layertap.measure import measure, merge
from layertap.measure.definition import LANES
from layertap.measure.pair import native as pair_native
from measure.dtypes import COMPLEX, REAL, every_bit, some
from measure.reference import reference

GOLDEN = {
    "int64": 0x017F7124B0AF9F6C,
    "float32": 0xC420FA1E914C4000,
    "bfloat16": 0x054DC41DDC6D0738,
}


def fingerprint(tensor: torch.Tensor) -> int:
    return measure(tensor).fingerprint


@pytest.mark.parametrize("dtype", GOLDEN)
def test_the_definition_never_drifts(dtype):
    # Runs on people's disks hold these numbers. If this fails, the definition changed: put it back.
    tensor = torch.arange(10000).to(getattr(torch, dtype))
    assert fingerprint(tensor) == reference(tensor).fingerprint == GOLDEN[dtype]


ROW = some(torch.float32, 64 * 96).view(64, 96)
SAME_VALUES = {
    "negation": lambda x: -x,
    "rows permuted": lambda x: x.roll(1, 0),
    "columns permuted": lambda x: x.roll(1, 1),
    "transposed": lambda x: x.t(),
    "reversed": lambda x: x.flip(0, 1),
    "rows duplicated": lambda x: torch.cat([x[:32], x[:32]]),
    "two elements swapped": lambda x: swapped(x, 1, 2),
    "two elements a row apart swapped": lambda x: swapped(x, 5, 5 + LANES),
    "two signs flipped": lambda x: x.flatten().index_put((torch.tensor([1, 2]),), -x.flatten()[1:3]),
}


def swapped(x: torch.Tensor, i: int, j: int) -> torch.Tensor:
    x = x.flatten().clone()
    x[[i, j]] = x[[j, i]]
    return x


@pytest.mark.parametrize("change", SAME_VALUES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8])
def test_sees(change, dtype):
    x = ROW.to(dtype)
    assert fingerprint(SAME_VALUES[change](x)) != fingerprint(x)
    assert fingerprint(x.clone()) == fingerprint(x)


def test_sees_a_duplicated_tensor():
    assert fingerprint(torch.cat([ROW, ROW])) != fingerprint(ROW)
    assert fingerprint(torch.cat([ROW, ROW])) != 2 * fingerprint(ROW) % 2**64


@pytest.mark.parametrize("dtype", [dtype for dtype in REAL if dtype is not torch.bool])
def test_sees_every_single_bit(dtype):
    x = some(dtype, LANES + 20)
    whole = fingerprint(x)
    for place in (0, 7, 2500, LANES - 1, LANES, LANES + 19):
        for bit in range(8 * dtype.itemsize):
            raw = x.clone().view(torch.uint8)
            raw[place * dtype.itemsize + bit // 8] ^= 1 << (bit % 8)
            assert fingerprint(raw.view(dtype)) != whole, (place, bit)


def test_sees_the_sign_of_zero_and_the_payload_of_nan():
    assert fingerprint(torch.tensor([0.0])) != fingerprint(torch.tensor([-0.0]))
    quiet, other = (torch.tensor([bits], dtype=torch.int32).view(torch.float32) for bits in (0x7FC00000, 0x7FC00001))
    assert torch.isnan(other).all()
    assert fingerprint(quiet) != fingerprint(other)


def test_no_two_of_many_changes_collide():
    x = np.zeros(3 * LANES, np.float32)
    seen = set()
    for place in range(0, len(x), 7):
        for value in (1.0, -1.0, 2.0):
            x[place] = value
            seen.add(fingerprint(torch.from_numpy(x)))
        x[place] = 0
    assert len(seen) == 3 * len(range(0, len(x), 7))


@pytest.mark.parametrize("dtype", [*REAL, *COMPLEX], ids=str)
@pytest.mark.parametrize("compiled", [True, False])
def test_bytes_have_the_fingerprint_of_their_tensor(dtype, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(pair_native, "available", lambda: False)
        monkeypatch.setattr(bytewise, "BLOCK", 4096)
    name = str(dtype).removeprefix("torch.")
    for count in (0, 1, 9, LANES - 1, 3 * LANES + 5):
        raw = every_bit(dtype, count).reshape(-1).view(torch.uint8).numpy() if count else np.empty(0, np.uint8)
        whole = fingerprint(torch.from_numpy(raw.copy()).view(dtype) if count else torch.empty(0, dtype=dtype))
        assert bytewise.fingerprint(raw, name) == whole
        cut = count // 3 * dtype.itemsize
        parts = (
            bytewise.fingerprint(raw[:cut], name),
            bytewise.fingerprint(raw[cut:], name, offset=cut // bytewise.word_size(name)),
        )
        assert sum(parts) % 2**64 == whole


def test_several_threads_give_the_same_fingerprint(monkeypatch):
    raw = np.random.default_rng(0).integers(0, 256, 5_000_003 * 2, np.uint8)
    monkeypatch.setattr(pair_native, "threads", lambda: 4)
    assert bytewise.fingerprint(raw, "bfloat16") == bytewise.plain(raw, "bfloat16")


def test_words_that_are_cut_are_refused():
    with pytest.raises(ValueError, match="7 bytes are not a whole number of contiguous words of 4 bytes"):
        bytewise.fingerprint(np.zeros(7, np.uint8), "float32")


@pytest.mark.parametrize("dimension", [0, 1, 2])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64], ids=str)
def test_parts_along_any_dimension_add_up_to_the_whole(dimension, compiled, dtype, monkeypatch):
    """Each run of neighbours from its own index in the whole, which a record's `global_shape` and `offset` give."""
    if not compiled:
        monkeypatch.setattr("layertap.measure.native.available", lambda: False)
    whole = some(dtype, 6 * 9 * 80).view(6, 9, 80)
    index = torch.arange(whole.numel()).view(whole.shape)
    runs = []
    for part, places in zip(whole.split(3, dimension), index.split(3, dimension), strict=True):
        for row, start in zip(part.reshape(-1, part.shape[-1]), places.reshape(-1, part.shape[-1])[:, 0], strict=True):
            runs.append(measure(row.contiguous(), offset=int(start)))
    expected, merged = measure(whole), merge(runs)
    assert merged.fingerprint == expected.fingerprint
    assert merged.statistics.count == expected.statistics.count
    found, sketch = (np.frombuffer(one.sketch, "<f4") for one in (merged, expected))
    np.testing.assert_allclose(found, sketch, atol=1e-4 * expected.statistics.l2)
