"""`keep="histogram"` through recordings: eager, compiled, baked, watched, and what reads it."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import layertap as lt
from layertap.capture.keep import HISTOGRAM, parse_level
from layertap.errors import BadArgument, CorruptRun, NoTensor
from layertap.measure import histogram
from loops import gpt, train

X = torch.linspace(-2, 2, 12).reshape(4, 3)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def test_a_recording_keeps_the_counts_and_no_tensor(net, tmp_path):
    with lt.record(net, tmp_path / "run", sites="*", keep={"*": "tensor", "1": "histogram"}):
        net(X)
    run = lt.Run(tmp_path / "run")
    found = run["1"].histogram()
    activations = net[1](net[0](X))
    assert found.counts.tolist() == histogram.reduce(activations).tolist()
    assert found.counts[83] == (activations == 0).sum() > 0
    assert (run["1"].record.kept, run["1"].record.kept_shape, run["1"].record.kept_dtype) == (
        "histogram",
        (168,),
        "int64",
    )
    edges, counts = found
    assert len(edges) == len(counts) + 1


def test_where_none_was_kept_the_error_names_the_site_and_the_way_out(net):
    with lt.record(net, sites="*", keep={"0": "tensor"}) as rec:
        net(X)
    with pytest.raises(NoTensor, match=r"1: no histogram was kept at step 0 .*'stats'.*keep=\{'1': 'histogram'\}$"):
        rec.run["1"].histogram()
    with pytest.raises(NoTensor, match=r"numpy.histogram of run\['0'\].numpy\(\)$"):
        rec.run["0"].histogram()


def test_a_function_of_that_name_is_not_taken_for_it(net):
    def histogram(tensor):
        return tensor[:1]

    assert parse_level("histogram") is HISTOGRAM
    with lt.record(net, sites="2", keep=histogram) as rec:
        net(X)
    assert rec.run["2"].record.kept == "histogram()"
    with pytest.raises(BadArgument, match='"histogram"'):
        parse_level("histograms")


def test_a_record_that_says_so_and_holds_something_else_is_refused(net, monkeypatch):
    monkeypatch.setattr("layertap.capture.keep._NAMED", {"histogram": type(HISTOGRAM)("histogram", lambda t: t)})
    with lt.record(net, sites="2", keep="histogram") as rec:
        net(X)
    with pytest.raises(CorruptRun, match=r"float32 \[4, 2\], expected int64 \[168\]"):
        rec.run["2"].histogram()


def test_reading_needs_no_torch(net, tmp_path):
    with lt.record(net, tmp_path / "run", sites="2", keep="histogram"):
        net(X)
    code = (
        "import sys, layertap as lt; print(lt.Run(sys.argv[1])['2'].histogram().counts.sum(), 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.split() == ["8", "False"]


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_inside_a_compiled_model(net, backend):
    compiled = torch.compile(net, backend=backend)
    with lt.record(compiled, sites="*", what=("input", "output"), keep="histogram") as rec:
        compiled(X)
    assert rec.run["1"].histogram().counts.tolist() == histogram.reduce(net[1](net[0](X))).tolist()
    assert rec.run["2:input"].histogram().counts.sum() == 16
    assert rec.receipt.complete


def test_inside_a_baked_and_exported_model_of_any_batch(net, monkeypatch):
    monkeypatch.setattr(histogram, "BLOCK", 8)
    tapped = lt.bake(net, sites="*", keep="histogram")
    program = torch.export.export(tapped, (X,), dynamic_shapes=({0: torch.export.Dim.AUTO},)).module()
    for x in (X, torch.cat([X, -3 * X])):
        _, found = tapped.layout.split(program(x))
        counts = {str(site): value for site, value in found.items()}["1"]
        assert counts.tolist() == histogram.reduce(net[1](net[0](x))).tolist()


def test_a_comparison_does_not_take_equal_histograms_for_near_values(net):
    runs = []
    for places in ([0, 1, 2, 3], [3, 2, 1, 0]):  # the same values elsewhere: the counts are equal
        with lt.record(net, sites="0", keep="histogram") as rec:
            net(X[places])
        runs.append(rec.run)
    one, other = (run["0"].histogram().counts for run in runs)
    assert (one == other).all()
    (row,) = [row for row in lt.diff(*runs).rows if str(row.site) == "0"]
    assert row.estimated
    assert row.error > 0.5


@pytest.mark.parametrize("ring", [0, 3])
def test_a_watched_training_goes_on_as_it_did_and_has_histograms_of_each_step(tmp_path, ring):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    bare = train(gpt(), steps=4)
    model = gpt()
    options = {
        "keep": {"blocks.1": "histogram"},
        "ring": ring,
        "schedule": "every 1",
        "tensorboard": str(tmp_path / "tb"),
    }
    with lt.watch(model, path=tmp_path / "run", sites="blocks.*", what=("output", "grad_output"), **options) as w:
        assert train(model, steps=4) == bare
    run = lt.Run(tmp_path / "run")
    for site in ("blocks.1", "blocks.1:grad_output"):
        assert run[site].steps == (0, 1, 2, 3)
        for step in run[site].steps:
            at = run[site].at(step=step)
            assert at.histogram().counts.sum() == at.statistics.count
            assert at.histogram().counts[83] == at.statistics.zero
    assert run["blocks.0"].at(step=0).record.kept == "stats"
    assert w.receipt.complete
    found = EventAccumulator(str(tmp_path / "tb"), size_guidance={"histograms": 0}).Reload()
    assert {tag for tag in found.Tags()["histograms"] if "blocks" in tag} == {"blocks.1", "blocks.1:grad_output"}
    assert [event.step for event in found.Histograms("blocks.1")] == [0, 1, 2, 3]
