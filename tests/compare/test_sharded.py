"""Runs of which one holds parts of what the other holds whole: compared where they overlap, and only there."""

import numpy as np
import pytest
import torch

import layertap as lt
from layertap.compare.sharded import CommonPart, NoCommonPart, common_part
from layertap.measure import measure
from layertap.site import Record, Sharding, Site
from layertap.store import MemoryWriter, Run

SITES = ("layers.0", "layers.1", "layers.2")


def whole(seed=0, shape=(2, 6, 8)):
    generator = torch.Generator().manual_seed(seed)
    return {site: torch.randn(shape, generator=generator) for site in SITES}


def sharding(placements, shape=(2, 6, 8), offset=(0, 0, 0), mesh=(2,)):
    return Sharding(placements=placements, global_shape=shape, offset=offset, mesh_shape=mesh, mesh_names=("tp",))


def record(site, tensor, order, layout=None, rank=0, kept="tensor"):
    measured = measure(tensor.contiguous())
    return Record(
        site=Site(path=site),
        kind="Block",
        order=order,
        step=0,
        phase="eval",
        rank=rank,
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        device="cpu",
        sharding=layout,
        statistics=measured.statistics,
        fingerprint=measured.fingerprint,
        sketch=measured.sketch,
        kept=kept,
        kept_shape=tuple(tensor.shape) if kept == "tensor" else (),
        kept_dtype=str(tensor.dtype).removeprefix("torch.") if kept == "tensor" else "",
    )


def run_of(name, *ranks, kept="tensor"):
    """A run in memory; each rank gives {site: (tensor, layout)}."""
    writer = MemoryWriter(info={}, name=name)
    for rank, tensors in enumerate(ranks):
        for order, (site, (tensor, layout)) in enumerate(tensors.items()):
            data = np.frombuffer(tensor.contiguous().numpy().tobytes(), np.uint8) if kept == "tensor" else None
            writer.add(record(site, tensor, order, layout, rank, kept), data)
    writer.close()
    return Run(writer)


def plain(tensors):
    return {site: (tensor, None) for site, tensor in tensors.items()}


def columns(tensors, rank, change=lambda site, part: part):
    layout = sharding(("Shard(dim=2)",), offset=(0, 0, 4 * rank))
    return {
        site: (change(site, tensor[..., 4 * rank : 4 * rank + 4].clone()), layout) for site, tensor in tensors.items()
    }


def rows(report):
    return {(str(row.site), row.verdict) for row in report.rows}


def test_a_part_is_compared_with_that_part_of_the_whole():
    report = lt.diff(run_of("a", plain(whole())), run_of("b", columns(whole(), 1)))
    assert report.verdict == "identical"
    assert report.rows[0].why == "bit for bit; compared: 2×6×4 of 2×6×8, from [0, 0, 4]"
    report = lt.diff(run_of("a", columns(whole(), 1)), run_of("b", plain(whole())))
    assert report.verdict == "identical"


def test_a_fault_in_a_part_is_found_there():
    broken = columns(whole(), 0, lambda site, part: part * 1.5 if site == "layers.1" else part)
    report = lt.diff(run_of("a", plain(whole())), run_of("b", broken))
    assert report.verdict == "fault"
    assert str(report.first.site) == "layers.1"
    assert "compared: 2×6×4 of 2×6×8" in report.first.why


def test_all_ranks_are_read_as_one_and_the_one_at_fault_is_named():
    broken = columns(whole(), 1, lambda site, part: part * 1.5 if site == "layers.2" else part)
    report = lt.diff(run_of("a", plain(whole())), run_of("b", columns(whole(), 0), broken))
    assert rows(report) == {("layers.0", "identical"), ("layers.1", "identical"), ("layers.2", "fault")}
    assert report.notes[0] == "layers.2 at step 0: the error lies in the part of rank 1"
    assert "the 2 ranks of the candidate were read as one: slices put together, summands added" in report.notes
    back = lt.diff(run_of("b", columns(whole(), 0), broken), run_of("a", plain(whole())))
    assert back.notes[0] == report.notes[0]
    back = lt.diff(run_of("b", columns(whole(), 0), columns(whole(), 1)), run_of("a", plain(whole())))
    assert (back.verdict, len(back.rows)) == ("identical", 3)


def cut(ranks, axis):
    """The stack's tensors, spread over so many ranks."""
    parts = [{} for _ in range(ranks)]
    for site, tensor in whole().items():
        begin = 0
        for rank, part in enumerate(tensor.chunk(ranks, axis)):
            offset = tuple(begin if dim == axis else 0 for dim in range(3))
            parts[rank][site] = part.clone(), sharding((f"Shard(dim={axis})",), offset=offset, mesh=(ranks,))
            begin += part.shape[axis]
    return parts


def test_other_numbers_of_ranks_and_other_axes():
    for other in (cut(2, 2), cut(2, 1), cut(3, 1), cut(2, 0)):
        report = lt.diff(run_of("a", *cut(4, 2)), run_of("b", *other))
        assert report.verdict == "identical", str(report)
        assert len(report.rows) == 3


def test_statistics_are_merged_where_no_tensor_was_kept():
    report = lt.diff(run_of("a", *cut(4, 2), kept="stats"), run_of("b", plain(whole()), kept="stats"))
    assert report.verdict == "inconclusive", "they agree, and prove nothing"
    assert max(row.error for row in report.rows) < 1e-12
    broken = cut(4, 2)
    broken[3]["layers.1"] = broken[3]["layers.1"][0] * 100, broken[3]["layers.1"][1]
    report = lt.diff(run_of("a", plain(whole()), kept="stats"), run_of("b", *broken, kept="stats"))
    assert (report.verdict, str(report.first.site)) == ("fault", "layers.1")


def test_summands_are_added():
    halves = [{site: (tensor / 2, sharding(("Partial(sum)",))) for site, tensor in whole().items()} for _ in "ab"]
    assert lt.diff(run_of("a", plain(whole())), run_of("b", *halves)).verdict == "identical"
    halves[1]["layers.1"] = halves[1]["layers.1"][0] * 2, halves[1]["layers.1"][1]
    report = lt.diff(run_of("a", plain(whole())), run_of("b", *halves))
    assert (report.verdict, str(report.first.site)) == ("fault", "layers.1")


def test_replicas_that_differ_are_a_fault_although_the_first_is_right():
    copies = [{site: (tensor.clone(), sharding(("Replicate()",))) for site, tensor in whole().items()} for _ in "ab"]
    assert lt.diff(run_of("a", plain(whole())), run_of("b", *copies)).verdict == "identical"
    copies[1]["layers.1"][0][0, 0, 0] += 1e-6
    report = lt.diff(run_of("a", plain(whole())), run_of("b", *copies))
    assert (report.verdict, str(report.first.site)) == ("fault", "layers.1")
    assert report.first.why == "replicas differ between the ranks 0 | 1, which must be bit-identical"


def test_plain_tensors_that_differ_between_ranks_leave_a_doubt():
    parts = [columns(whole(), rank) | plain({"norm": torch.ones(3) + rank * 1e-3}) for rank in (0, 1)]
    report = lt.diff(run_of("a", plain(whole() | {"norm": torch.ones(3)})), run_of("b", *parts))
    assert report.verdict == "inconclusive"
    assert "norm is on several ranks, whose tensors differ at step 0: 0 | 1" in report.reasons[0]


def test_other_layouts_are_compared_where_they_overlap():
    tokens = {
        site: (tensor[:, 2:6].clone(), sharding(("Shard(dim=1)",), offset=(0, 2, 0)))
        for site, tensor in whole().items()
    }
    report = lt.diff(run_of("a", columns(whole(), 1)), run_of("b", tokens))
    assert report.verdict == "identical"
    assert "compared: 2×4×4 of 2×6×8, from [0, 2, 4]" in report.rows[0].why


def test_a_whole_without_axes_of_size_1():
    tensors = whole(shape=(1, 6, 8))
    flat = plain({site: tensor[0] for site, tensor in tensors.items()})
    part = {site: (tensor[:, :3].clone(), sharding(("Shard(dim=1)",), (1, 6, 8))) for site, tensor in tensors.items()}
    assert lt.diff(run_of("a", flat), run_of("b", part)).verdict == "identical"


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize(
    ("layout", "part", "text"),
    [
        (sharding(("Partial(sum)",)), slice(None), "summand of rank 0"),
        (sharding(("Shard(dim=2)",), offset=()), slice(0, 4), "where it lies in the whole is not known"),
        (Sharding(placements=("Shard(dim=2)",)), slice(0, 4), "where it lies in the whole is not known"),
    ],
)
def test_what_cannot_be_compared_is_no_fault(layout, part, text, dtype):
    tensors = {site: (tensor * 9).to(dtype) for site, tensor in whole().items()}
    tensors["layers.1"][0, 0, 7] = 0 if dtype == torch.int64 else float("nan")
    parts = {site: (tensor[..., part] * 2, layout) for site, tensor in tensors.items()}
    report = lt.diff(run_of("a", plain(tensors)), run_of("b", parts))
    assert report.verdict == "inconclusive"
    assert {row.verdict for row in report.rows} == {"inconclusive"}
    assert text in report.rows[0].why


def test_without_tensors_a_part_is_no_fault_and_the_way_out_is_told():
    report = lt.diff(run_of("a", plain(whole()), kept="stats"), run_of("b", columns(whole(), 0), kept="stats"))
    assert report.verdict == "inconclusive"
    assert "keep='tensor' on both sides" in report.rows[0].why


def test_the_same_layout_on_the_same_rank_needs_no_tensors():
    runs = [run_of(name, columns(whole(), 0), columns(whole(), 1), kept="stats") for name in "ab"]
    report = lt.diff(*runs)
    assert (report.verdict, len(report.rows)) == ("identical", 6)


def test_other_parts_have_nothing_in_common():
    found = common_part(
        record("x", torch.ones(2, 6, 4), 0, sharding(("Shard(dim=2)",), offset=(0, 0, 0))),
        record("x", torch.ones(2, 6, 4), 0, sharding(("Shard(dim=2)",), offset=(0, 0, 4)), rank=1),
    )
    assert isinstance(found, NoCommonPart)
    assert "another part in the candidate" in found.why
    same = record("x", torch.ones(2, 6, 8), 0, sharding(("Replicate()",)))
    assert common_part(same, record("x", torch.ones(2, 6, 8), 0)) is None
    assert isinstance(
        common_part(
            record("x", torch.ones(2, 6, 8), 0), record("x", torch.ones(1, 6, 8), 0, sharding(("Shard(dim=0)",)))
        ),
        CommonPart,
    )
