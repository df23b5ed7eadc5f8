"""Each analysis by the workers of Ray: the same as in this process, bit for bit."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import layertap as lt
from layertap import cli
from layertap.errors import BadArgument
from layertap.measure import measure
from layertap.site import Sharding
from layertap.store import RunWriter
from layertap.store.remote_writer import RemoteWriter
from layertap.store.storage import is_url
from layertap.testing import assert_matches
from layertap.weights import knockout
from models import qwen3
from store.making import kept, receipt
from store.s3 import BUCKET, running
from sweeping.nets import write as write_sweep

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from benchmarks.over_ray import WorkerWatch  # noqa: E402
from benchmarks.sparse_runs import write as write_sparse  # noqa: E402

pytestmark = pytest.mark.xdist_group("ray")

SITES = 150


def tensors(changed=0.0, count=SITES):
    rng = np.random.default_rng(0)
    for number in range(count):
        value = rng.standard_normal((6, 40 + number % 3)).astype((np.float32, np.float16)[number % 2])
        off = 1 + changed * rng.standard_normal(value.shape) * (number > count // 3)
        yield f"layers.{number}", (value * off).astype(value.dtype)


def record_of(name, value, **more):
    """A record as a capture makes it, and the bytes."""
    found = measure(torch.from_numpy(value))
    marks = {"statistics": found.statistics, "fingerprint": found.fingerprint, "sketch": found.sketch}
    return kept(value, name, **{**marks, **more})


def write(folder, values):
    writer = RemoteWriter(folder, info={}) if is_url(folder) else RunWriter(folder, info={}, durability="none")
    for order, (name, value) in enumerate(values):
        record, raw = record_of(name, value, order=order)
        if order % 5 == 4:  # of which nothing but statistics and a sketch is there
            record, raw = replace(record, kept="stats", kept_shape=(), kept_dtype="", kept_fingerprint=None), None
        writer.add(record, raw)
    writer.close(receipt())
    return folder


@pytest.fixture
def runs(tmp_path):
    """A reference, one that departs from it, and a run of the reference in the candidate's arithmetic."""
    return [
        write(tmp_path / "a", tensors()),
        write(tmp_path / "b", tensors(0.5)),
        write(tmp_path / "floor", tensors(1e-4)),
    ]


def same(one, other):
    """To the last bit, NaN included: `repr` of a float is exact."""
    assert repr(one.to_dict()) == repr(other.to_dict())
    assert repr(tuple(one.rows)) == repr(tuple(other.rows))


# Runs.


@pytest.mark.parametrize("asked", [{}, {"floor": True}, {"rtol": 0.1, "atol": 1e-5}, {"sites": "layers.1*"}])
def test_every_field_of_every_pair_is_the_same(workers, runs, asked):
    a, b, floor = runs
    asked = {**asked, "floor": floor} if "floor" in asked else asked
    done = []
    here, there = (
        lt.diff(a, b, **asked),
        lt.diff(a, b, **asked, engine=workers, progress=lambda *told: done.append(told)),
    )
    same(here, there)
    assert here.verdict == "fault"
    assert any(row.difference is not None for row in here.rows)
    assert done[-1] == (len(here.rows), len(here.rows))
    assert done == sorted(done)


def test_opened_runs_files_of_other_tools_and_relative_paths(workers, runs, monkeypatch):
    a, b, _ = runs
    monkeypatch.chdir(a.parent)
    for name, changed in (("one", 0.0), ("two", 1e-2)):
        np.savez(f"{name}.npz", **dict(tensors(changed, 12)))
    for one, other in ((lt.Run(a), lt.Run(b)), ("a", "b"), ("one.npz", "two.npz")):
        here, there = lt.diff(one, other), lt.diff(one, other, engine=workers)
        assert there.to_dict() == here.to_dict()
        assert any(row.difference is not None for row in here.rows)


def test_damaged_tensors_are_reported_alike(workers, runs):
    a, b, _ = runs
    file = next((b / "tensors").iterdir())
    raw = bytearray(file.read_bytes())
    raw[-9] ^= 1
    file.write_bytes(raw)
    here = lt.diff(a, b)
    assert "damaged" in " ".join(str(row.why) for row in here.rows if row.verdict == "inconclusive")
    same(here, lt.diff(a, b, engine=workers))


@pytest.mark.parametrize("stated", [False, True], ids=["recorded", "stated by the mapping"])
def test_ranks_that_hold_parts_are_put_together_by_the_workers(workers, tmp_path, stated):
    whole = dict(tensors(count=8))
    write(tmp_path / "one", ((name, value) for name, value in whole.items()))
    for rank in range(2):
        writer = RunWriter(tmp_path / "two", info={"model": "M", "world_size": 2}, rank=rank, durability="none")
        for order, (name, value) in enumerate(whole.items()):
            part = np.ascontiguousarray(value[3 * rank : 3 * rank + 3])
            layout = Sharding(
                placements=("Shard(dim=0)",),
                global_shape=value.shape,
                offset=(3 * rank, 0),
                mesh_shape=(2,),
                mesh_coordinate=(rank,),
                mesh_origin=0,
            )
            record, raw = record_of(name, part * part.dtype.type(1.5 if (rank, order) == (1, 2) else 1), order=order)
            writer.add(replace(record, rank=rank, sharding=None if stated else layout), raw)
        writer.close(receipt())
    asked = {"mapping": {"mesh": {"tp": 2}, ".*": {"dims": "t[tp] h"}}} if stated else {}
    here = lt.diff(tmp_path / "one", tmp_path / "two", **asked)
    assert [str(row.site) for row in here.rows if row.verdict == "fault"] == ["layers.2"]
    same(here, lt.diff(tmp_path / "one", tmp_path / "two", **asked, engine=workers))


def test_runs_in_object_storage_are_read_by_the_workers(workers, runs, tmp_path):
    pytest.importorskip(
        "moto", reason="object storage on this machine is moto's: pip install 'moto[s3]' flask flask-cors"
    )
    with running(tmp_path / "log") as server:
        for name, changed in (("a", 0.0), ("b", 0.5)):
            write(f"s3://{BUCKET}/runs/{name}", tensors(changed, 12))
        # The workers were started before the server, and do not have its address in their environment.
        query = f"endpoint_override=127.0.0.1%3A{server.port}&scheme=http&region=us-east-1"
        urls = [f"s3://test:test@{BUCKET}/runs/{name}?{query}" for name in ("a", "b")]
        here = lt.diff(*urls)
        assert here.verdict == "fault"
        same(here, lt.diff(*urls, engine=workers))


def test_an_error_of_a_measurement_is_the_same_and_names_the_site(workers, runs):
    a, b, _ = runs
    mapping = {r"(.*)": {"to": r"\1", "layout": "slice(1,0,4000)"}}
    with pytest.raises(BadArgument) as here:
        lt.diff(a, b, mapping=mapping)
    with pytest.raises(BadArgument) as there:
        lt.diff(a, b, mapping=mapping, engine=workers)
    assert str(there.value).endswith(str(here.value))
    assert str(there.value).startswith("layers.")


def test_what_is_in_memory_cannot_be_sent(workers):
    values = {"layers.0": np.ones(3, np.float32)}
    with pytest.raises(BadArgument, match="is in memory, where Ray workers cannot read it"):
        lt.diff(values, {"layers.0": 2 * values["layers.0"]}, engine=workers)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_large_sparse_runs_within_a_gigabyte_each_and_a_worker_killed_midway(workers, tmp_path):
    shape, count = (16384, 16640), 6  # a tensor alone is 1.09 GB
    write_sparse(tmp_path / "a", count, shape)
    write_sparse(tmp_path / "b", count, shape, range(1, count, 2))
    with WorkerWatch() as watch:
        there = lt.diff(tmp_path / "a", tmp_path / "b", engine=workers, progress=watch.kill_one_at(2))
    assert watch.killed
    assert len(watch.peaks) >= 3  # two, and who came in place of the killed one
    assert max(watch.peaks.values()) <= 10**9
    same(lt.diff(tmp_path / "a", tmp_path / "b"), there)


# The command line.


def command(*words):
    return CliRunner().invoke(cli.app, list(map(str, words)))


def test_the_command_has_the_options_and_standard_output_is_json(workers, runs):
    a, b, _ = runs
    here, there = command("diff", a, b, "--json"), command("diff", a, b, "--json", "--engine", "ray")
    assert (here.exit_code, there.exit_code) == (1, 1)
    assert json.loads(here.stdout) == json.loads(there.stdout)
    wrong = command("diff", a, b, "--engine", "spark")
    assert isinstance(wrong.exception, BadArgument)
    for verb in ("diff", "audit", "sweep", "prune"):
        text = command(verb, "--help").stdout
        assert "--engine" in text
        assert "--address" in text


def test_what_is_done_in_this_process_alone_says_so(tmp_path):
    for name in "ab":
        writer = RunWriter(tmp_path / name, info={"meta": {"training": True}}, durability="none")
        writer.close(receipt())
    for words, told in (
        (("diff", tmp_path / "a", tmp_path / "b"), "two watched trainings are compared by their statistics"),
        (("audit", tmp_path, "--fingerprints", "x.json"), "fingerprints are taken in this process"),
        (("prune", "hf:x", "--plan", "x", "-o", "y"), "a model is pruned in this process"),
    ):
        found = command(*words, "--engine", "ray")
        assert isinstance(found.exception, BadArgument)
        assert told in str(found.exception)


# Weights.


def weights(change):
    torch.manual_seed(0)
    return {f"layers.{n}.weight": change(n, torch.randn(30, 20 + n % 3)) for n in range(90)}


def as_it_is(number, tensor):
    if number == 6:  # a cast one
        tensor[3] = torch.nan
    return tensor


def changed(number, tensor):
    ways = (
        lambda t: t,
        lambda t: t.bfloat16(),
        lambda t: 1.01 * t,
        lambda t: t.bfloat16().float(),
        lambda t: t.T.contiguous(),
    )
    return ways[number % 5](as_it_is(number, tensor))


def test_an_audit_is_the_same(workers, tmp_path):
    save_file(weights(as_it_is), tmp_path / "model.safetensors")
    save_file(weights(changed), tmp_path / "other.safetensors")
    sides = tmp_path / "model.safetensors", tmp_path / "other.safetensors"
    done = []
    here, there = lt.audit(*sides), lt.audit(*sides, engine=workers, progress=lambda *told: done.append(told))
    same(replace(here, seconds=0.0), replace(there, seconds=0.0))
    assert {"exact", "cast", "changed", "nonfinite"} <= here.by_status.keys()
    assert done
    assert done == sorted(done)


def test_a_live_model_cannot_be_audited_by_workers(workers, tmp_path):
    with pytest.raises(BadArgument, match="Linear is in this process, where Ray workers cannot read it"):
        lt.audit(torch.nn.Linear(2, 2), {"weight": torch.zeros(2, 2)}, engine=workers)


def test_a_knockout_is_the_same(workers):
    model, _ = qwen3()
    ids = {"input_ids": torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]])}
    here, there = knockout(model, ids, heads=True), knockout(model, ids, heads=True, engine=workers)
    same(here, there)
    assert {row.kind for row in here.rows} == {"attention", "mlp", "block", "head"}


def other_model():
    model, _ = qwen3()
    with torch.no_grad():
        model.lm_head.weight.mul_(1.01)
    return model


def one_model():
    return qwen3()[0]


def test_workers_make_the_model_and_prove_that_it_is_the_same(workers, monkeypatch):
    # By value: this file is not where a worker would look for it.
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    model, _ = qwen3()
    ids = {"input_ids": torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]])}
    same(knockout(model, ids), knockout(model, ids, engine=workers, build=one_model))
    with pytest.raises(BadArgument, match=r"is not this one: 1 tensors differ, lm_head\.weight among them"):
        knockout(model, ids, engine=workers, build=other_model)


# Sweeps and goldens.

MODES = """
target = "net.py:make"
reference = "fp32"
sites = ["first", "last"]
input = { random = [2, 32], vocabulary = 100, seed = 0 }
threads = 1

[modes.fp32]
[modes."2-1"]
env = { SCAN = "torch" }
[modes.after]
[modes.wrong]
arguments = { nothing = 1 }
"""


def bits(result):
    runs = {name: mode.run for name, mode in result.modes.items() if not mode.error}
    return {name: [(str(site), run[site].fingerprint) for site in run.sites] for name, run in runs.items()}


@pytest.mark.slow
def test_a_sweep_is_the_same(workers, tmp_path):
    path = write_sweep(tmp_path, MODES)
    here = lt.sweep(path, tmp_path / "here")
    there = lt.sweep(path, tmp_path / "there", engine=workers)
    assert bits(here) == bits(there)
    assert (here.groups, here.verdict, repr(here.matrix)) == (there.groups, there.verdict, repr(there.matrix))
    assert "unexpected keyword argument 'nothing'" in there.modes["wrong"].error
    names = sorted(str(one.relative_to(tmp_path / "here").parts[0]) for one in (tmp_path / "here").rglob("run.json"))
    assert names == sorted(
        str(one.relative_to(tmp_path / "there").parts[0]) for one in (tmp_path / "there").rglob("run.json")
    )
    assert not list((tmp_path / "there").glob(".record-*"))  # nothing is left of the work
    again = lt.sweep(path, tmp_path / "there", engine=workers)
    assert [mode.resumed for mode in again.modes.values()] == [True, True, True, False]


KILLING = """
import os, signal, time
from net import make


def make_killing(mark):
    if not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(100)
    return make()
"""


@pytest.mark.slow
def test_a_mode_whose_worker_dies_is_run_again(workers, tmp_path):
    path, mark = write_sweep(tmp_path, MODES), tmp_path / "mark"
    (tmp_path / "killing.py").write_text(KILLING)
    arguments = "".join(f'[modes.{name}]\narguments = {{ mark = "{mark}" }}\n' for name in ("one", "two"))
    text = MODES.partition("[modes.fp32]")[0].replace("net.py:make", "killing.py:make_killing").replace("fp32", "one")
    path.write_text(text + arguments)
    there = lt.sweep(path, tmp_path / "there", engine=workers)
    assert mark.exists()
    assert {name: mode.error for name, mode in there.modes.items()} == {"one": "", "two": ""}
    assert bits(there) == bits(lt.sweep(path, tmp_path / "here"))
    assert not list((tmp_path / "there").rglob("try-*"))


def test_a_golden_is_compared_by_workers(workers, runs, tmp_path):
    a, b, floor = runs
    golden = tmp_path / "model.layertap"
    assert_matches(a, golden, update=True)
    assert_matches(a, golden, engine=workers)
    assert_matches(a, golden, floor=floor, engine=workers)
    for asked in ({}, {"engine": workers}):
        with pytest.raises(AssertionError, match="layers"):
            assert_matches(b, golden, **asked)
