"""Calls that are microbatches, ranks that are stages, and layouts that a mapping states: seen from the records."""

import json

import pytest
import torch

import layertap as lt
from compare.test_sharded import plain, run_of
from layertap.errors import BadArgument
from layertap.site import Sharding
from layertap.store.merged import merged
from layertap.store.rank_reading import RankReading
from layertap.store.stated import stated_layouts

SITES = ("embed", "layers.0", "layers.1")


def values(shape=(4, 6, 8), sites=SITES):
    generator = torch.Generator().manual_seed(0)
    return {site: torch.randn(shape, generator=generator) for site in sites}


def calls(tensors, count, change=lambda site, call, part: part):
    return {
        site if not call else f"{site}@{call}": (change(site, call, part.clone()), None)
        for call in range(count)
        for site, tensor in tensors.items()
        for part in [tensor.chunk(count)[call]]
    }


def run_with_calls(name, *ranks, kept="tensor", sums=False):
    """As `run_of`, of sites with numbers of calls."""
    from dataclasses import replace

    import numpy as np

    from compare.test_sharded import record
    from layertap.site import Site
    from layertap.store import MemoryWriter, Run

    writer = MemoryWriter(info={}, name=name)
    for rank, tensors in enumerate(ranks):
        for order, (site, (tensor, layout)) in enumerate(tensors.items()):
            data = np.frombuffer(tensor.contiguous().numpy().tobytes(), np.uint8) if kept == "tensor" else None
            one = record("x", tensor, order, layout, rank, kept, sums)
            writer.add(replace(one, site=Site.parse(site)), data)
    writer.close()
    return Run(writer)


def codes(report):
    return [note.code for note in report.notes if note.code.startswith("layouts")]


def test_microbatches_are_one_batch():
    whole = values()
    report = lt.diff(run_of("a", plain(whole)), run_with_calls("b", calls(whole, 2)))
    assert report.verdict == "identical", str(report)
    assert codes(report) == ["layouts.microbatches"]
    assert not report.unmatched


def test_sums_in_a_microbatch_are_not_taken_for_sums_in_the_batch():
    """A part knows its elements by their index in the microbatch, which is not their index in the whole batch."""
    whole = values()
    ranks = []
    for rank in (0, 1):
        layout = Sharding(
            placements=("Shard(dim=2)",),
            global_shape=(2, 6, 8),
            offset=(0, 0, 4 * rank),
            mesh_shape=(2,),
            mesh_coordinate=(rank,),
            mesh_origin=0,
        )
        parts = calls({site: tensor[..., 4 * rank : 4 * rank + 4] for site, tensor in whole.items()}, 2)
        ranks.append({site: (tensor, layout) for site, (tensor, _) in parts.items()})
    report = lt.diff(run_of("a", plain(whole), kept="stats"), run_with_calls("b", *ranks, kept="stats", sums=True))
    assert report.verdict == "inconclusive", str(report)
    assert max(row.error for row in report.rows) < 1e-12
    assert lt.diff(run_of("a", plain(whole)), run_with_calls("b", *ranks, sums=True)).verdict == "identical"


def test_a_fault_in_one_microbatch_is_found():
    whole = values()
    broken = calls(whole, 2, lambda site, call, part: part * 1.5 if (site, call) == ("layers.1", 1) else part)
    report = lt.diff(run_of("a", plain(whole)), run_with_calls("b", broken))
    assert (report.verdict, str(report.first.site)) == ("fault", "layers.1")


def test_calls_that_do_not_make_the_batch_are_no_microbatches():
    whole = values()
    loop = {f"{site}@{call}" if call else site: (tensor, None) for call in range(2) for site, tensor in whole.items()}
    report = lt.diff(run_of("a", plain(whole)), run_with_calls("b", loop))
    assert not codes(report)
    assert len(report.unmatched) == 3


def test_a_call_before_the_first_microbatch_is_left_out():
    # As torch's pipelining makes it, to see the shapes that a stage returns.
    whole = values()
    parts = calls(whole, 2)
    mine = {site: (torch.zeros_like(tensor), None) for site, (tensor, _) in parts.items() if "@" not in site}
    for site, part in parts.items():
        path, _, call = site.partition("@")
        mine[f"{path}@{int(call or 0) + 1}"] = part
    report = lt.diff(run_of("a", plain(whole)), run_with_calls("b", mine))
    assert (report.verdict, codes(report)) == ("identical", ["layouts.microbatches", "layouts.first_call"])


def test_values_without_a_batch_are_the_same_in_all_calls():
    whole = {"rotary": torch.arange(6.0), **values()}
    mine = {name: value for name, value in calls(whole, 2).items() if not name.startswith("rotary")}
    mine |= {"rotary": (whole["rotary"], None), "rotary@1": (whole["rotary"].clone(), None)}
    report = lt.diff(run_of("a", plain(whole)), run_with_calls("b", mine))
    assert report.verdict == "identical", str(report)
    mine["rotary@1"] = (whole["rotary"] + 1, None)
    report = lt.diff(run_of("a", plain(whole)), run_with_calls("b", mine))
    assert report.verdict == "fault"
    assert str(report.first.site) == "rotary"


def test_stages_are_read_one_after_the_other():
    whole = {"": torch.ones(4, 8), **values()}
    first = {"": torch.zeros(4, 6, 8), "embed": whole["embed"], "layers.0": whole["layers.0"]}
    last = {"": whole[""], "layers.1": whole["layers.1"]}
    report = lt.diff(run_of("a", plain(whole)), run_of("b", plain(first), plain(last)))
    assert (report.verdict, codes(report)) == ("identical", ["layouts.stages"]), str(report)
    last["layers.1"] = whole["layers.1"] * 1.2
    report = lt.diff(run_of("a", plain(whole)), run_of("b", plain(first), plain(last)))
    assert (report.verdict, str(report.first.site)) == ("fault", "layers.1")


def test_stages_that_share_a_module_are_named_by_the_mesh():
    whole = {"rotary": torch.arange(8.0), **values()}
    first, last = ({"rotary": whole["rotary"], site: whole[site]} for site in ("embed", "layers.1"))
    first["layers.0"] = whole["layers.0"]
    runs = run_of("a", plain(whole)), run_of("b", plain(first), plain(last))
    assert "layouts.stages" not in codes(lt.diff(*runs))
    report = lt.diff(*runs, mapping={"mesh": {"pp": 2}})
    assert (report.verdict, codes(report)) == ("identical", ["layouts.stages"]), str(report)


def test_ranks_with_the_same_modules_are_no_stages():
    whole = values()
    report = lt.diff(run_of("a", plain(whole)), run_of("b", plain(whole), plain(whole)))
    assert "layouts.stages" not in codes(report)


MAPPING = {
    "mesh": {"cp": 2, "tp": 2},
    r"embed": {"dims": "b t[cp:zigzag] d"},
    r"layers\.0": {"dims": "b t[cp:zigzag] h[tp]"},
    r"layers\.1": {"dims": "b t[cp:zigzag] d +tp"},
}


def ranks_of(whole, change=lambda site, rank, part: part):
    """Plain parts on a mesh of two by two, as MAPPING says."""
    found = []
    for rank in range(4):
        cp, tp = divmod(rank, 2)
        mine = {}
        for site, tensor in whole.items():
            pieces = tensor.chunk(4, 1)
            part = torch.cat([pieces[cp], pieces[3 - cp]], 1)
            part = part.chunk(2, 2)[tp] if site == "layers.0" else part
            part = part * (0.25, 0.75)[tp] if site == "layers.1" else part
            mine[site] = change(site, rank, part.clone()), None
        found.append(mine)
    return found


def quarters():
    return values((2, 8, 4))


def test_plain_parts_of_a_mesh_are_put_together_by_the_mapping():
    whole = quarters()
    runs = run_of("a", plain(whole)), run_of("b", *ranks_of(whole))
    report = lt.diff(*runs, mapping=MAPPING)
    assert report.verdict == "identical", str(report)
    one = merged(runs[1], RankReading(stated=stated_layouts(MAPPING))).run
    assert all(torch.equal(one[site].tensor(), tensor) for site, tensor in whole.items())
    # Without it, nothing says that they are parts.
    assert lt.diff(*runs).verdict != "identical"


def test_the_rank_whose_part_is_wrong_is_named():
    whole = quarters()
    wrong = ranks_of(whole, lambda site, rank, part: part * 1.5 if (site, rank) == ("layers.0", 3) else part)
    report = lt.diff(run_of("a", plain(whole)), run_of("b", *wrong), mapping=MAPPING)
    assert (report.verdict, str(report.first.site)) == ("fault", "layers.0")
    assert "the error lies in the part of rank 3" in report.notes[0]
    unequal = ranks_of(whole, lambda site, rank, part: part * 1.5 if (site, rank) == ("embed", 3) else part)
    with pytest.raises(lt.errors.RunError, match="replicas differ"):
        lt.diff(run_of("a", plain(whole)), run_of("b", *unequal), mapping=MAPPING)


def test_statistics_alone_are_merged():
    whole = {site: tensor for site, tensor in quarters().items() if site != "layers.1"}
    parts = [{site: one[site] for site in whole} for one in ranks_of(quarters())]
    report = lt.diff(run_of("a", plain(whole), kept="stats"), run_of("b", *parts, kept="stats"), mapping=MAPPING)
    errors = [row.error for row in report.rows]
    assert len(errors) == 2
    assert max(errors) < 1e-12, str(report)


def test_statistics_of_parts_are_held_against_a_kept_tensor():
    whole = {site: tensor for site, tensor in quarters().items() if site != "layers.1"}

    def parts(change=lambda site, rank, part: part):
        return [{site: one[site] for site in whole} for one in ranks_of(quarters(), change)]

    one = run_of("a", plain(whole))
    report = lt.diff(one, run_of("b", *parts(), kept="stats"), mapping=MAPPING)
    assert report.verdict == "identical", str(report)
    wrong = parts(lambda site, rank, part: part * 1.5 if (site, rank) == ("layers.0", 3) else part)
    for runs in ((one, run_of("b", *wrong, kept="stats")), (run_of("b", *wrong, kept="stats"), one)):
        report = lt.diff(*runs, mapping=MAPPING)
        assert (report.verdict, str(report.first.site)) == ("fault", "layers.0"), str(report)
    exact = lt.diff(one, run_of("b", *wrong), mapping=MAPPING).first.error
    estimated = lt.diff(one, run_of("b", *wrong, kept="stats"), mapping=MAPPING).first.error
    assert estimated == pytest.approx(exact, rel=0.25)


def test_a_mapping_file_of_the_command_line(tmp_path):
    from typer.testing import CliRunner

    from layertap.cli import app

    whole = quarters()
    for name, parts in (("a", [plain(whole)]), ("b", ranks_of(whole))):
        write(tmp_path / name, parts)
    (tmp_path / "mapping.json").write_text(json.dumps(MAPPING))
    command = ["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]
    done = CliRunner().invoke(app, [*command, "--mapping", str(tmp_path / "mapping.json")])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["verdict"] == "identical"
    (tmp_path / "mapping.json").write_text(json.dumps({**MAPPING, "embed": {"dims": "b t[sp] d"}}))
    done = CliRunner().invoke(app, [*command, "--mapping", str(tmp_path / "mapping.json")])
    assert isinstance(done.exception, BadArgument)
    assert "the mesh has no axis 'sp'" in str(done.exception)


def write(folder, ranks):
    import numpy as np

    from compare.test_sharded import record
    from layertap.store import RunWriter

    for rank, tensors in enumerate(ranks):
        writer = RunWriter(folder, info={}, rank=rank, durability="none")
        for order, (site, (tensor, layout)) in enumerate(tensors.items()):
            data = np.frombuffer(tensor.contiguous().numpy().tobytes(), np.uint8)
            writer.add(record(site, tensor, order, layout, rank), data)
        writer.close()


def test_the_mesh_must_be_that_of_one_side():
    with pytest.raises(BadArgument, match="has 4 ranks, the reference has 1 and the candidate 2"):
        lt.diff(run_of("a", plain(quarters())), run_of("b", plain(quarters()), plain(quarters())), mapping=MAPPING)
