"""What a changed tensor costs an audit, and which of its rows differ."""

import pytest
import torch
from safetensors.torch import save_file

import layertap as lt
from layertap.weights import checkpoints, same
from layertap.weights.differences import differences
from layertap.weights.row_differences import row_differences
from layertap.weights.sources import of_tensor

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.float8_e4m3fn, torch.int16, torch.bool]


def values(shape, dtype, seed=0):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return made > 0 if dtype is torch.bool else (made * 8).to(dtype)


def rows(one, two):
    return row_differences(of_tensor("a", one), of_tensor("b", two))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(7,), (6, 5), (9, 4, 3), (64, 8), ()])
@pytest.mark.parametrize("piece", [64, 1 << 20])
def test_the_rows_that_differ_are_found_by_their_bits(monkeypatch, dtype, shape, piece):
    monkeypatch.setattr(same, "PIECE", piece)
    one = values(shape, dtype)
    two = one.clone()
    flat = two.reshape(-1).view(torch.uint8)
    place = len(flat) * 2 // 3
    flat[place] ^= 1
    count = shape[0] if shape else 1
    found = rows(one, two)
    assert found.rows.tolist() == [place * count // len(flat)]
    assert found.total == count
    assert not found.reorderable  # one bit more or less changes any sum
    assert rows(one, one.clone()).rows.tolist() == []


@pytest.mark.parametrize("dtype", DTYPES[:-1], ids=str)
@pytest.mark.parametrize("width", [3, 8])
def test_rows_in_another_order_may_be_reordered(monkeypatch, dtype, width):
    monkeypatch.setattr(same, "PIECE", 64)
    one = values((40, width), dtype)
    assert rows(one, one.flip(0)).reorderable
    turned = one.t().contiguous().t()  # not in C order: it is read piece by piece
    assert rows(turned, one.roll(7, 0)).reorderable
    assert len(rows(turned, one.roll(7, 0)).rows) == 40


@pytest.mark.parametrize("other", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_not_finite_and_what_is_zero_is_counted_as_it_is_compared(other):
    one, two = torch.ones(70000), torch.ones(70000, dtype=other)
    one[0], one[69999], two[5] = float("nan"), float("inf"), float("-inf")
    found = differences(of_tensor("a", one), of_tensor("b", two))
    assert (found.nonfinite, found.nonfinite_there, found.zeros) == (2, 1, False)
    assert found.error == pytest.approx((3 / 69999) ** 0.5)
    tiny = torch.full((3,), 1e-300, dtype=torch.float64)  # whose squares are zero
    assert not differences(of_tensor("a", tiny), of_tensor("b", tiny + 1)).zeros
    assert differences(of_tensor("a", tiny * 0), of_tensor("b", tiny + 1)).zeros
    large = differences(of_tensor("a", tiny / tiny * 1e200), of_tensor("b", tiny))
    assert (large.nonfinite, large.nonfinite_there) == (0, 0)


def test_a_changed_tensor_costs_as_much_in_a_large_checkpoint_as_in_a_small_one(tmp_path, monkeypatch):
    """Counted in bytes that are read beyond those of an audit that finds nothing; rows are not hashed for it."""
    read = [0]
    of_file, blocks = same._of_file, checkpoints.file_blocks

    def counted(entry, begin, end, buffer):
        read[0] += end - begin
        return of_file(entry, begin, end, buffer)

    def counted_blocks(path, begin, end, dtype):
        read[0] += end - begin
        return blocks(path, begin, end, dtype)

    monkeypatch.setattr(same, "_of_file", counted)
    monkeypatch.setattr(checkpoints, "file_blocks", counted_blocks)
    monkeypatch.setattr("layertap.weights.sides.Hashes", None)
    size, more = 256 * 256 * 4, {}
    for count in (2, 24):
        held = {f"layers.{i}.weight": values((256, 256), torch.float32, i) for i in range(count)}
        save_file(held, tmp_path / "a.safetensors")
        save_file(held, tmp_path / "b.safetensors")
        held["layers.1.weight"][7] = 0
        save_file(held, tmp_path / "c.safetensors")
        taken = {}
        for name, verdict in (("b", "identical"), ("c", "fault")):
            read[0] = 0
            found = lt.audit(tmp_path / "a.safetensors", tmp_path / f"{name}.safetensors")
            assert found.verdict == verdict
            taken[name] = read[0]
        assert [row.detail.values["first"] for row in found.rows if row.status == "changed"] == [7]
        assert taken["b"] == 2 * size * count
        more[count] = taken["c"] - taken["b"]
    assert 2 * size < more[2] <= 5 * size + 1000
    assert 0 <= more[24] - more[2] <= 22 * 3 * 128  # a glimpse of each of the others: it may hold the same values
