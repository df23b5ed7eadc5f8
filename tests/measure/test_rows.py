"""The fingerprints of rows are those of the rows measured one by one."""

import pytest
import torch

from layertap.measure import measure
from layertap.measure.rows import LONG, row_fingerprints

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(5, 37, 23), (3, LONG + 1), (4, 1), (2, 0)], ids=str)
def test_a_row_s_fingerprint_is_its_own(dtype, shape):
    batch = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 50).to(dtype)
    assert [int(bits) % 2**64 for bits in row_fingerprints(batch)] == [measure(row).fingerprint for row in batch]


def test_rows_that_lie_apart_in_memory_and_blocks_of_rows(monkeypatch):
    batch = torch.randn(7, 100, generator=torch.Generator().manual_seed(0))
    expected = row_fingerprints(batch)
    assert torch.equal(row_fingerprints(batch.t().contiguous().t()), expected)
    monkeypatch.setattr("layertap.measure.rows.BLOCK", 200)
    assert torch.equal(row_fingerprints(batch), expected)


def test_a_sample_is_known_wherever_it_stands_and_not_if_a_bit_differs():
    batch = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    assert torch.equal(row_fingerprints(batch[order]), row_fingerprints(batch)[order])
    changed = batch.clone()
    changed[2, 3] = torch.nextafter(changed[2, 3], torch.tensor(9.0))
    assert (row_fingerprints(changed) != row_fingerprints(batch)).tolist() == [False, False, True, False, False, False]
