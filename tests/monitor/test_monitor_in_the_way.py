"""A monitor is never in the way: of the loop, of its numbers, of another process; and it loses nothing in silence."""

import copy
import errno
import pickle
import signal
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import layertap as lt
import loops
from layertap.capture import taps
from layertap.errors import RunExists
from layertap.monitor import epoch_statistics, files
from layertap.monitor.recorder import MonitorRecorder
from literals import fixed_part

X = torch.ones(2, 3)
LAYERS = {"0": {"alias": "one"}, "1": {"alias": "all", "record_type": "epoch_full"}}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))


@pytest.fixture(autouse=True)
def clean_torch():
    call = nn.Module._call_impl
    yield
    assert taps.attached() == 0
    assert nn.Module._call_impl is call


def train(model, monitor, epochs=2, batches=3):
    for epoch in range(1, epochs + 1):
        monitor.set_epoch(epoch)
        for batch_idx in range(batches):
            monitor.set_batch_idx(batch_idx)
            model(X).sum().backward()


# The numbers of the training.


def test_200_steps_of_a_gpt_are_bit_identical_and_tapped_on_scheduled_batches_only(tmp_path):
    shape = dict(layers=4, width=64, heads=4)
    bare_model = loops.gpt(**shape)
    bare = loops.train(bare_model, steps=200)
    model = loops.gpt(**shape)
    layers = {
        "blocks.0": {"record_type": "single"},
        "blocks.3.mlp": {"record_type": "single"},
        "norm": {"record_type": "epoch_full"},
        "": {"alias": "whole"},
    }
    monitor = lt.Monitor(model, layers, [2, 4], tmp_path, [0, 49], strict=True)
    tapped = []

    def each(step):
        epoch, batch = 1 + step // 50, step % 50
        if step:
            tapped.append((step - 1, taps.attached()))
        if batch == 0:
            monitor.set_epoch(epoch)
        monitor.set_batch_idx(batch)

    watched = loops.train(model, steps=200, each=each)
    monitor.remove_hooks()
    assert watched == bare, "the losses are the same to the last bit"
    ours, theirs = model.state_dict(), bare_model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert {step for step, count in tapped if count} == {*range(50, 100), *range(150, 199)}
    run = lt.Run(tmp_path)
    assert len(run["norm"]) == 100
    assert [(record.epoch, record.batch) for record in run["blocks.0"]] == [(2, 0), (2, 49), (4, 0), (4, 49)]
    assert run["norm"].steps == (*range(50, 100), *range(150, 200)), "a step is a batch, recorded or not"


def test_single_layers_alone_put_taps_on_their_batches_alone(model, tmp_path):
    counts = []
    with lt.Monitor(model, ["0"], [2], tmp_path, [1]) as monitor:
        for epoch in (1, 2):
            monitor.set_epoch(epoch)
            for batch in range(3):
                monitor.set_batch_idx(batch)
                counts.append(taps.attached() > 0)
                model(X)
    assert counts == [False] * 4 + [True, False]


def test_the_end_of_an_epoch_opens_the_newest_part_of_the_run_alone(model, tmp_path, monkeypatch):
    """Else a long training would wait longer at the end of each epoch; counted, not timed."""
    from layertap.store import shards as reading

    opened = []
    monitor = lt.Monitor(model, LAYERS, range(1, 9), tmp_path, [0])
    shard = reading.Shard
    monkeypatch.setattr(reading, "Shard", lambda folder, name: opened.append(name) or shard(folder, name))
    for epoch in range(1, 9):
        opened.clear()
        monitor.set_epoch(epoch)
        monitor.set_batch_idx(0)
        model(X)
        assert list(monitor.get_single_data()["one"]["data"]) == [(epoch, 0)]
        monitor.clear_current_epoch_data()
        assert len(opened) == 1
    monitor.remove_hooks()


def test_removing_the_hooks_leaves_the_model_as_it_was(model, tmp_path):
    def state():
        classes = {type(module) for module in model.modules()}
        forwards = {cls: cls.__dict__.get("forward") for cls in classes}
        return [{key: id(value) for key, value in vars(module).items()} for module in model.modules()], forwards

    before = state()
    monitor = lt.Monitor(model, LAYERS, [1], tmp_path, [0])
    monitor.set_epoch(1)
    monitor.set_batch_idx(0)
    model(X)
    assert taps.attached() > 0
    copied = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    assert torch.equal(copied(X), model(X))
    monitor.remove_hooks()
    monitor.remove_hooks()
    assert state() == before
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


# Errors of our own.


def test_an_error_in_a_condition_ends_recording_and_not_the_training(model, tmp_path, caplog):
    def condition(output):
        raise ZeroDivisionError("a mistake of the user's")

    with lt.Monitor(model, LAYERS, [1, 2], tmp_path, [0], condition=condition) as monitor:
        train(model, monitor)
    assert caplog.text.count("layertap stopped recording") == 1
    assert "ZeroDivisionError: a mistake" in monitor.receipt.error


def test_strict_raises_it(model, tmp_path):
    monitor = lt.Monitor(model, LAYERS, [1], tmp_path, [0], condition=lambda output: 1 / 0, strict=True)
    with pytest.raises(ZeroDivisionError):
        train(model, monitor)
    monitor.remove_hooks()


@pytest.mark.parametrize("strict", [False, True])
def test_files_that_cannot_be_written_are_told_and_the_run_still_has_the_data(
    model, tmp_path, caplog, monkeypatch, strict
):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monitor = lt.Monitor(model, LAYERS, [1], tmp_path, [0], strict=strict)
    train(model, monitor, epochs=1)
    monkeypatch.setattr(files.torch, "save", full)
    if strict:
        with pytest.raises(OSError, match="No space left"):
            monitor.save_single_outputs()
    else:
        assert monitor.save_single_outputs() == []
        assert "Monitor.save_single_outputs: OSError: [Errno 28] No space left" in caplog.text
    monkeypatch.undo()
    monitor.remove_hooks()
    assert not list(tmp_path.glob(".*.tmp"))
    assert lt.Run(tmp_path)["0"].tensor().shape == (2, 3)


def test_an_epoch_that_cannot_be_saved_does_not_spoil_the_next(model, tmp_path, caplog, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    with lt.Monitor(model, LAYERS, [1, 2], tmp_path, [0]) as monitor:
        train(model, monitor, epochs=1)
        save = files.torch.save
        monkeypatch.setattr(files.torch, "save", full)
        assert monitor.save_epoch_outputs() == []
        monitor.set_epoch(2)
        assert caplog.text.count("No space left on device; training continues") == 3
        monkeypatch.setattr(files.torch, "save", save)
        monitor.set_batch_idx(0)
        model(X)
        assert list(monitor.get_single_data()["one"]["data"]) == [(2, 0)]
    assert {path.name for path in tmp_path.glob("*.pt")} == {
        "epoch_2_batch_0_one.pt",
        "epoch_2_batch_0_all.pt",
        "epoch_2_batch_full_all.pt",
    }
    assert {record.epoch for record in lt.Run(tmp_path)["0"]} == {1, 2}


def test_what_could_not_be_saved_is_tried_again_when_the_epoch_ends(model, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    with lt.Monitor(model, LAYERS, [1], tmp_path, [0]) as monitor:
        train(model, monitor, epochs=1)
        with monkeypatch.context() as broken:
            broken.setattr(files.torch, "save", full)
            assert monitor.save_single_outputs() == []
    assert (tmp_path / "epoch_1_batch_0_one.pt").is_file()


def test_a_wrong_name_in_the_middle_of_a_training_is_told_not_raised(model, tmp_path, caplog):
    with lt.Monitor(model, LAYERS, [1], tmp_path, [0]) as monitor:
        train(model, monitor, epochs=1)
        assert monitor.get_single_data(layers=["oen"]) == {}
    assert "no layer or alias 'oen' is monitored; there are one, all" in caplog.text


def test_samples_that_are_no_numbers_cost_nothing_but_themselves(model, tmp_path, caplog):
    with lt.Monitor(model, LAYERS, [1], tmp_path, [0, 1]) as monitor:
        monitor.set_epoch(1)
        for batch in range(2):
            monitor.set_batch_idx(batch, samples=["one", "two"])
            model(X)
        assert list(monitor.get_single_data()["one"]["data"]) == [(1, 0), (1, 1)]
    assert "Monitor.set_batch_idx" in caplog.text


def test_an_epoch_after_the_hooks_are_gone_is_told(model, tmp_path, caplog):
    monitor = lt.Monitor(model, LAYERS, [1, 2], tmp_path, [0])
    train(model, monitor, epochs=1)
    monitor.remove_hooks()
    monitor.set_epoch(2)
    assert "epoch 2 is not recorded: remove_hooks() was called before it" in caplog.text


def test_a_run_that_is_there_is_continued_replaced_or_refused_when_the_monitor_is_made(model, tmp_path):
    counts = []
    for exists in ("append", "append", "replace"):
        with lt.Monitor(model, LAYERS, [1], tmp_path, [0], exists=exists) as monitor:
            train(model, monitor, epochs=1)
        counts.append(len(lt.Run(tmp_path)["1"]))
    assert counts == [3, 6, 3]
    with pytest.raises(RunExists, match="already contains a run; exists='append' continues it"):
        lt.Monitor(model, LAYERS, [1], tmp_path, [0], exists="error")
    with pytest.raises(ValueError, match="exists='keep': choose"):
        lt.Monitor(model, LAYERS, [1], tmp_path, [0], exists="keep")


def test_a_folder_that_goes_away_leaves_the_data_in_memory(model, tmp_path, caplog):
    folder = tmp_path / "out"
    monitor = lt.Monitor(model, LAYERS, [1], folder, [0], files=None)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.write_text("a file is in its place")
    train(model, monitor, epochs=1)
    assert monitor.get_single_data()["one"]["data"][1, 0].shape == (2, 3)
    monitor.remove_hooks()
    assert "recording into memory instead" in caplog.text


def test_a_slow_disk_degrades_by_policy_and_says_so(tmp_path, caplog, monkeypatch):
    """A writer that stands still, a budget of two outputs: the loop goes on, statistics alone are kept of the rest."""
    import threading

    from layertap.store import RunWriter

    gate = threading.Event()
    add = RunWriter.add_batch
    monkeypatch.setattr(RunWriter, "add_batch", lambda self, batch: gate.wait() and add(self, batch))
    model = nn.Sequential(nn.Linear(3, 1000))
    layers = {"0": {"record_type": "epoch_full"}}
    monitor = lt.Monitor(model, layers, [1], tmp_path, budget=2 * 8000 + 1000, policy="stats")
    train(model, monitor, epochs=1, batches=6)  # with policy="block" this would wait forever
    gate.set()
    assert len(monitor.get_epoch_data()["0"]["data"]) == 2
    assert monitor.epoch_statistics()["0"][""].count == 6 * 2000
    monitor.remove_hooks()
    assert "0: the tensors of 4 outputs, first at epoch 1, batch 2, are not in the run" in caplog.text
    assert "not kept, because the budget was used up: 4 tensors" in str(monitor.receipt)


SCRIPT = """
import os, resource, signal, sys
import torch
from torch import nn
import layertap as lt

folder, epochs, end = sys.argv[1], eval(sys.argv[2]), sys.argv[3]
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 500), nn.Linear(500, 3))
layers = {"0": {"alias": "wide", "record_type": "epoch_full"}, "1": {"alias": "out"}}
monitor = lt.Monitor(model, layers, [1, 2, 3], folder, [0])
if end == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))
for epoch in epochs:
    monitor.set_epoch(epoch)
    for batch in range(4):
        monitor.set_batch_idx(batch)
        loss = model(torch.full((2, 3), epoch + batch / 10)).sum()
        loss.backward()
        if (epoch, batch) == (2, 2) and end == "kill":
            monitor.run  # what is written by now is there
            os.kill(os.getpid(), signal.SIGKILL)
        if (epoch, batch) == (1, 1) and end == "wait":
            print("in the middle", flush=True)
            sys.stdin.readline()
monitor.remove_hooks()
print("trained", float(loss))
"""


def process(folder, epochs, end="", **options):
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(folder), epochs, end]
    return subprocess.Popen(command, text=True, stdout=-1, stderr=-1, stdin=-1, **options)


def test_kill_9_in_the_middle_then_resume_appends_and_all_can_be_read(tmp_path):
    killed = process(tmp_path, "[1, 2]", "kill")
    assert killed.wait(60) == -signal.SIGKILL
    for stream in (killed.stdin, killed.stdout, killed.stderr):
        stream.close()
    run = lt.Run(tmp_path)
    assert run.partial
    assert {(record.epoch, record.batch) for record in run["0"]} == {(1, b) for b in range(4)} | {
        (2, b) for b in range(3)
    }
    resumed = process(tmp_path, "[2, 3]")
    _, error = resumed.communicate(timeout=60)
    assert resumed.returncode == 0, error
    run = lt.Run(tmp_path)
    assert [(session["status"]) for session in run.sessions] == ["recording", "complete"]
    assert len(run["0"]) == 7 + 8
    assert len(run["0"].steps) == 15, "steps of two sessions do not clash"
    assert run["0"].at(epoch=3, batch=1).tensor().shape == (2, 500)
    assert torch.load(tmp_path / "epoch_2_batch_full_wide.pt")["output"].shape == (8, 500)
    assert fixed_part("store.in_use") not in error


def test_two_processes_in_one_folder_do_not_clash(tmp_path):
    first = process(tmp_path, "[1]", "wait")
    assert first.stdout.readline() == "in the middle\n"
    second = process(tmp_path, "[1]")
    _, told = second.communicate(timeout=60)
    assert second.returncode == 0
    _, error = first.communicate("go on\n", timeout=60)
    assert first.returncode == 0, error
    own = tmp_path / f"process-{second.pid}"
    assert f"is in use; this one writes to {own}" in told
    for folder in (tmp_path, own):
        run = lt.Run(folder)
        assert not run.partial
        assert len(run["0"]) == 4
        assert torch.load(folder / "epoch_1_batch_full_wide.pt")["output"].shape == (8, 500)
        assert not list(folder.glob(".layertap*"))


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on file sizes is Linux's")
def test_a_full_disk_costs_records_and_not_the_training(tmp_path):
    """A real limit of the operating system on the size of files: writes fail as they do on a full disk."""
    full = process(tmp_path, "[1, 2, 3]", "full")
    out, error = full.communicate(timeout=60)
    assert full.returncode == 0, error
    bare = process(tmp_path / "other", "[1, 2, 3]")
    assert bare.communicate(timeout=60)[0] == out, "the training came to the same loss"
    assert "layertap could not write a record and continues without it" in error
    assert "are not in the run (keep, budget, or a full disk)" in error


class Workers(Dataset):
    """Each sample goes through the model inside a DataLoader's worker."""

    def __init__(self, model):
        self.model = model

    def __len__(self):
        return 6

    def __getitem__(self, index):
        with torch.no_grad():
            return self.model(torch.full((3,), float(index)))


@pytest.mark.forks
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_workers_of_a_dataloader_record_nothing_and_hang_nowhere(model, tmp_path):
    with lt.Monitor(model, {"0": {"record_type": "epoch_full"}}, [1], tmp_path, strict=True) as monitor:
        monitor.set_epoch(1)
        monitor.set_batch_idx(0)
        model(X)
        loader = DataLoader(Workers(model), batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=60)
        for batch_idx, batch in enumerate(loader, 1):
            monitor.set_batch_idx(batch_idx)
            model(batch)
        assert list(monitor.get_epoch_data()["0"]["data"]) == [(1, b) for b in range(4)]
    assert len(lt.Run(tmp_path)["0"]) == 4
    assert monitor._recorder.of_this_process()


FORKING = """
import os, sys
import torch
from torch import nn
import layertap as lt

model = nn.Sequential(nn.Linear(3, 3))
monitor = lt.Monitor(model, ["0"], [1], sys.argv[1], [0])
monitor.set_epoch(1)
monitor.set_batch_idx(0)
model(torch.ones(2, 3))
child = os.fork()
if child == 0:
    model(torch.ones(2, 3))
    sys.exit(0)  # runs what is registered for the end of a process, as a child of the user's own would
_, status = os.waitpid(child, 0)
print("child", status, sorted(name for name in os.listdir(sys.argv[1]) if name.endswith((".pt", ".lock"))))
"""


def test_a_forked_child_that_ends_touches_nothing(tmp_path):
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "child 0 ['.layertap-0.lock']\n", done.stderr
    assert (tmp_path / "epoch_1_batch_0_0.pt").is_file(), "the parent saved what was unsaved when it ended"
    assert not lt.Run(tmp_path).partial
    assert len(lt.Run(tmp_path)["0"]) == 1


DISTRIBUTED = """
import os, sys
import torch
from torch import nn
import layertap as lt

folder, rank = sys.argv[1], int(sys.argv[2])
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)))
with lt.Monitor(model, {"0": {"alias": "a", "record_type": "epoch_full"}}, [1], f"{folder}/out") as monitor:
    monitor.set_epoch(1)
    for batch in range(3):
        monitor.set_batch_idx(batch)
        model(torch.full((2, 3), float(rank))).sum().backward()
torch.distributed.destroy_process_group()
"""


def test_the_ranks_of_a_distributed_training_share_a_run_and_not_their_files(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", DISTRIBUTED, str(tmp_path)]
    ranks = [subprocess.Popen([*command, str(rank)], stderr=-1, text=True) for rank in range(2)]
    told = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], told
    run = lt.Run(tmp_path / "out")
    assert not run.partial
    assert [(record.rank, record.batch) for record in run["0"].at(rank=1)] == [(1, 0), (1, 1), (1, 2)]
    files = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*_full_*.pt")}
    assert files == {"epoch_1_batch_full_a.pt", "rank_1/epoch_1_batch_full_a.pt"}
    values = [torch.load(tmp_path / "out" / name)["output"] for name in sorted(files)]
    assert values[0].shape == values[1].shape == (6, 3)
    assert not torch.equal(*values)
    (whole,) = epoch_statistics(run)
    assert whole.statistics.count == 2 * 18


def test_there_is_no_second_capture_mechanism():
    """A monitor's recorder is record's own: it adds what it is asked for, and takes no tensor by itself."""
    from layertap.capture import Recorder

    assert issubclass(MonitorRecorder, Recorder)
    for name in ("_arm", "_disarm", "start", "close"):
        assert name not in vars(MonitorRecorder)
