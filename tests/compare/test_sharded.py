"""Runs of which one holds parts of what the other holds whole: compared where they overlap, and only there."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

import layertap as lt
from layertap.compare.sharded import CommonPart, NoCommonPart, common_part
from layertap.measure import measure
from layertap.measure.part import PartPlace
from layertap.site import Record, Sharding, Site
from layertap.store import MemoryWriter, Run, RunWriter
from layertap.store.dims import spans_of

SITES = ("layers.0", "layers.1", "layers.2")
MERGED = ("fingerprint", "sketch")
STATS = {"kept": "stats", "sums": True}


def whole(seed=0, shape=(2, 6, 8)):
    generator = torch.Generator().manual_seed(seed)
    return {site: torch.randn(shape, generator=generator) for site in SITES}


def sharding(placements, shape=(2, 6, 8), offset=(0, 0, 0), mesh=(2,)):
    return Sharding(placements=placements, global_shape=shape, offset=offset, mesh_shape=mesh, mesh_names=("tp",))


def record(site, tensor, order, layout=None, rank=0, kept="tensor", sums=False):
    spans = spans_of(layout, tuple(tensor.shape)) if sums and layout is not None and not layout.partial else None
    place = None if spans is None else PartPlace(spans=spans, shape=layout.global_shape)
    measured = measure(tensor.contiguous(), place=place)
    in_whole = {} if place is None else {f"{name}_in_whole": getattr(measured.in_whole, name) for name in MERGED}
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
        **in_whole,
    )


def run_of(name, *ranks, kept="tensor", sums=False):
    """A run in memory; each rank gives {site: (tensor, layout)}; with `sums`, parts say what they add to the whole."""
    writer = MemoryWriter(info={}, name=name)
    for rank, tensors in enumerate(ranks):
        for order, (site, (tensor, layout)) in enumerate(tensors.items()):
            data = np.frombuffer(tensor.contiguous().numpy().tobytes(), np.uint8) if kept == "tensor" else None
            writer.add(record(site, tensor, order, layout, rank, kept, sums), data)
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
            layout = sharding((f"Shard(dim={axis})",), offset=offset, mesh=(ranks,))
            parts[rank][site] = part.clone(), replace(layout, mesh_coordinate=(rank,), mesh_origin=0)
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


def zigzag(ranks, axis=1):
    """Parts with a gap: rank i has chunks i and 2n-1-i."""
    parts = [{} for _ in range(ranks)]
    for site, tensor in whole(shape=(2, 12, 8)).items():
        chunks = tensor.chunk(2 * ranks, axis)
        for rank, part in enumerate(parts):
            layout = Sharding(
                placements=(f"Zigzag(dim={axis})",),
                global_shape=(2, 12, 8),
                mesh_shape=(ranks,),
                mesh_coordinate=(rank,),
                mesh_origin=0,
            )
            part[site] = torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]], axis), layout
    return parts


@pytest.mark.parametrize("parts", [cut(4, 2), cut(3, 1), cut(2, 0)], ids=["4, axis 2", "3, axis 1", "2, axis 0"])
def test_parts_and_one_process_are_proven_identical_by_statistics_alone(parts):
    one = run_of("a", plain(whole()), kept="stats")
    for report in (lt.diff(one, run_of("b", *parts, **STATS)), lt.diff(run_of("b", *parts, **STATS), one)):
        assert report.verdict == "identical", str(report)
        assert len(report.rows) == 3
        assert not report.placebo, "another layout is what was changed, and it is right"


def test_one_tensor_everywhere_is_no_proof_however_it_is_cut():
    parts = [dict.fromkeys(SITES, one["layers.0"]) for one in cut(2, 2)]
    same = plain(dict.fromkeys(SITES, whole()["layers.0"]))
    report = lt.diff(run_of("a", same, kept="stats"), run_of("b", *parts, **STATS))
    assert report.verdict == "inconclusive"
    assert report.reasons[1] == "the candidate: stale; all 3 sites of step 0 contain the same tensor"


def test_two_layouts_are_proven_identical_by_statistics_alone():
    for other in (cut(2, 2), cut(2, 1), cut(3, 1), cut(2, 0)):
        report = lt.diff(run_of("a", *cut(4, 2), **STATS), run_of("b", *other, **STATS))
        assert (report.verdict, len(report.rows)) == ("identical", 3), str(report)
    report = lt.diff(run_of("a", plain(whole(shape=(2, 12, 8))), kept="stats"), run_of("b", *zigzag(3), **STATS))
    assert (report.verdict, len(report.rows)) == ("identical", 3), str(report)
    report = lt.diff(run_of("a", *zigzag(2), **STATS), run_of("b", *zigzag(3), **STATS))
    assert (report.verdict, len(report.rows)) == ("identical", 3), str(report)


@pytest.mark.parametrize(("wrong", "verdict"), [(3.0, "fault"), (1e-6, "noise")])
def test_one_wrong_element_of_one_rank_shows_in_statistics_alone(wrong, verdict):
    broken, tensor = cut(4, 2), whole()["layers.1"]
    broken[2]["layers.1"][0][1, 4, 1] += wrong
    report = lt.diff(run_of("a", plain(whole()), kept="stats"), run_of("b", *broken, **STATS))
    assert report.verdict == verdict, str(report)
    found = {str(row.site): row for row in report.rows}
    assert {site: row.verdict for site, row in found.items()} == {
        "layers.0": "identical",
        "layers.1": verdict,
        "layers.2": "identical",
    }
    assert found["layers.1"].error == pytest.approx(wrong / float(tensor.norm()), rel=0.2)


def test_a_rank_without_a_record_leaves_the_whole_unproven():
    parts = cut(4, 2)
    del parts[3]["layers.1"]
    report = lt.diff(run_of("a", plain(whole()), kept="stats"), run_of("b", *parts, **STATS))
    assert report.verdict == "inconclusive"
    [note] = [note for note in report.notes if note.code == "layouts.not_whole"]
    assert "layers.1: 3 of 4 ranks of the mesh recorded step 0; the parts at [3] of the mesh are missing" in note


def test_a_part_without_its_sums_is_compared_by_statistics_as_before():
    parts = cut(4, 2)
    told = run_of("b", *parts, **STATS)
    untold = run_of("c", *parts, kept="stats")
    mixed = MemoryWriter(info={}, name="b")
    for rank, run in enumerate((told, told, untold, told)):
        for site in SITES:
            mixed.add(run[site].at(rank=rank).record)
    mixed.close()
    report = lt.diff(run_of("a", plain(whole()), kept="stats"), Run(mixed))
    assert report.verdict == "inconclusive"
    assert {row.error for row in report.rows if row.error < 1e-12} == {row.error for row in report.rows}


def test_replicas_of_a_part_are_taken_once():
    copies = []
    for place, parts in itertools.product((0, 1), cut(2, 2)):
        moved = {}
        for site, (tensor, layout) in parts.items():
            here = Sharding(
                placements=("Replicate()", "Shard(dim=2)"),
                global_shape=layout.global_shape,
                offset=layout.offset,
                mesh_shape=(2, 2),
                mesh_coordinate=(place, layout.offset[2] // 4),
                mesh_origin=0,
            )
            moved[site] = tensor.clone(), here
        copies.append(moved)
    one = run_of("a", plain(whole()), kept="stats")
    assert lt.diff(one, run_of("b", *copies, **STATS)).verdict == "identical"
    copies[3]["layers.1"][0][0, 0, 0] += 1e-6
    report = lt.diff(one, run_of("b", *copies, **STATS))
    assert report.verdict == "inconclusive", "which of the replicas is right is not known"
    assert "replicas differ" in str(report.notes)


def test_replicated_tensors_have_the_sketch_of_the_whole():
    copies = [{site: (tensor.clone(), sharding(("Replicate()",))) for site, tensor in whole().items()} for _ in "ab"]
    report = lt.diff(run_of("a", plain(whole()), kept="stats"), run_of("b", *copies, kept="stats"))
    assert report.verdict == "identical", str(report)
    for part in copies:
        part["layers.1"][0].neg_()  # which statistics do not show
    report = lt.diff(run_of("a", plain(whole()), kept="stats"), run_of("b", *copies, kept="stats"))
    assert (report.verdict, str(report.first.site)) == ("fault", "layers.1")


def test_kept_bytes_are_read_although_fingerprints_agree(tmp_path):
    """What was recorded was right; what is on the disk now is not."""
    folder = tmp_path / "run"
    for rank, parts in enumerate(cut(2, 2)):
        writer = RunWriter(folder, info={}, rank=rank, durability="none")
        for order, (site, (tensor, layout)) in enumerate(parts.items()):
            raw = np.frombuffer(tensor.contiguous().numpy().tobytes(), np.uint8)
            writer.add(record(site, tensor, order, layout, rank, sums=True), raw)
        writer.close()
    one = run_of("a", plain(whole()))
    assert lt.diff(one, folder).verdict == "identical"
    [file] = folder.glob("tensors/1-*.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    report = lt.diff(one, folder)
    assert report.verdict == "inconclusive", str(report)


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
