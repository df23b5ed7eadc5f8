"""Whatever goes wrong inside layertap: the training goes on, ends with the same numbers, and the error is reported."""

import errno
import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import layertap as lt
from layertap.capture import sink
from layertap.errors import BadArgument, NothingCaptured, RunError, RunExists
from layertap.store import open_shard, writer
from layertap.watching import clock
from layertap.watching.config import read_config
from layertap.watching.trigger_ring import RingWriter
from loops import gpt, train

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def bare():
    return train(gpt(), steps=12)


def raising(*args, **kwargs):
    raise ValueError("a fault of layertap's own")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"keep": raising}, "ValueError: a fault of layertap's own"),
        ({"schedule": lambda step: raising() if step == 5 else True}, "ValueError: a fault of layertap's own"),
    ],
)
def test_an_error_inside_layertap_never_reaches_the_loop(tmp_path, bare, options, told):
    model = gpt()
    with lt.watch(model, path=tmp_path, sites="blocks.*", **options) as w:
        assert train(model, steps=12) == bare
    skipped = " ".join(reason for site in w.receipt.sites for reason in site.skipped)
    assert told in w.receipt.error or told in skipped, "one tensor that cannot be taken is counted, the rest goes on"
    assert clock.listeners() == ()


def test_strict_lets_it_reach_the_loop(tmp_path):
    model = gpt()
    with (
        pytest.raises(ValueError, match="a fault of layertap's own"),
        lt.watch(model, path=tmp_path, sites="blocks.*", keep=raising, strict=True),
    ):
        train(model, steps=2)
    assert clock.listeners() == ()


def test_an_error_in_a_listener_is_told_to_it_alone(tmp_path, bare, monkeypatch):
    model = gpt()
    with lt.watch(model, path=tmp_path, sites="norm") as w:
        monkeypatch.setattr(w, "on_backward", raising)
        assert train(model, steps=12) == bare
    assert "watch (on_backward)" in w.receipt.error


def test_an_error_in_the_writer_s_thread_is_told(tmp_path, bare, monkeypatch):
    monkeypatch.setattr(RingWriter, "end_step", raising)
    model = gpt()
    with lt.watch(model, path=tmp_path, sites="norm", ring=2) as w:
        assert train(model, steps=12) == bare
    assert "a fault of layertap's own" in w.receipt.error


def test_a_full_disk_costs_records_and_nothing_else(tmp_path, bare, monkeypatch, caplog):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    model = gpt()
    with caplog.at_level(logging.ERROR), lt.watch(model, path=tmp_path, sites="blocks.*") as w:
        losses = train(model, steps=6)
        w.recorder.flush()
        monkeypatch.setattr(open_shard.ParquetFile, "write", full)
        train(model, steps=6)
    assert losses == bare[:6]
    assert w.receipt.lost == w.receipt.records > 0, "the second half; the first is untouched"
    assert list(w.run["blocks.0"].steps) == list(range(6))
    assert "No space left on device" in w.receipt.error
    assert "could not write a record and continues" in caplog.text
    assert not w.receipt.complete


def test_a_slow_disk_drops_by_policy_and_counts(tmp_path, bare, monkeypatch):
    import threading

    gate = threading.Event()
    add = RingWriter.add
    monkeypatch.setattr(RingWriter, "add", lambda self, record, data=None: (gate.wait(30), add(self, record, data))[1])
    monkeypatch.setattr(sink, "BACKLOG", 40)
    model = gpt()
    with lt.watch(model, path=tmp_path, sites="blocks.*", keep="tensor", budget="100KiB", policy="stats") as w:
        assert train(model, steps=12) == bare, "the loop waits for no disk"
        gate.set()
    dropped = sum(site.dropped for site in w.receipt.sites)
    assert dropped > 0
    assert w.receipt.records > 0
    assert f"not kept, because the budget was used up: {dropped} tensors" in str(w.receipt)
    assert w.receipt.lost == 0


def test_a_folder_that_cannot_be_written_is_told_before_the_loop(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunError, match="no run can be written here"):
        lt.watch(gpt(), path=tmp_path / "file" / "run")
    assert clock.listeners() == ()


def test_nothing_captured_is_logged_and_raised_only_if_strict(tmp_path, caplog):
    with caplog.at_level(logging.ERROR), lt.watch(gpt(), path=tmp_path / "a", sites="blocks.*"):
        pass
    assert "nothing was captured" in caplog.text
    with (
        pytest.raises(NothingCaptured, match="the model was never called"),
        lt.watch(gpt(), path=tmp_path / "b", sites="blocks.*", strict=True),
    ):
        pass


def test_eval_mode_all_along_is_said(tmp_path, caplog):
    model = gpt().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with caplog.at_level(logging.ERROR), lt.watch(model, path=tmp_path, sites="norm"):
        model(torch.zeros(1, 4, dtype=torch.long))[0].sum().backward()
        optimizer.step()
    assert "1 steps were made while the model was in eval mode" in caplog.text


SECOND = """
import sys
sys.path.insert(0, {tests!r})
import layertap as lt
from loops import gpt, train
model = gpt()
with lt.watch(model, path={path!r}, sites="norm") as w:
    train(model, steps=2)
print(w.path)
print(*w.receipt.notes)
"""


def test_two_processes_do_not_clash_and_the_next_one_appends(tmp_path):
    path = tmp_path / "run"
    second = [sys.executable, "-c", SECOND.format(tests=str(TESTS), path=str(path))]
    model = gpt()
    with lt.watch(model, path=path, sites="norm"):
        train(model, steps=1)
        done = subprocess.run(second, capture_output=True, text=True, check=True)
    other = Path(done.stdout.splitlines()[0])
    assert other.name.startswith("run-pid")
    assert "is in use by another watch" in done.stdout
    assert list(lt.Run(path)["norm"].steps) == [0]
    assert list(lt.Run(other)["norm"].steps) == [0, 1]


@pytest.mark.parametrize(
    ("schedule", "steps"), [(None, [0, 1, 2, 3, 4, 5]), ("every 2", [0, 2, 4]), ("steps 2-3", [2, 3])]
)
def test_a_resumed_sgd_is_numbered_on_and_the_receipt_says_why(tmp_path, schedule, steps):
    for _ in range(2):
        model = gpt()
        with lt.watch(model, path=tmp_path, sites="norm", schedule=schedule, exists="append") as w:
            train(model, steps=3, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert list(w.run["norm"].steps) == steps
    assert len(w.run["norm"]) == len(steps)
    assert "SGD does not record its step: numbered on from 3" in w.receipt.notes[0]


def test_a_forked_child_leaves_the_watch_alone(tmp_path):
    text = """
        import os, sys
        sys.path.insert(0, {tests!r})
        import layertap as lt
        from loops import gpt, train
        model = gpt()
        lt.watch(model, path={path!r}, sites="norm")
        train(model, steps=1)
        child = os.fork()
        if not child:
            train(model, steps=1)
            sys.exit(0)          # by the front door: exit hooks run
        assert os.waitpid(child, 0)[1] == 0
        train(model, steps=1)
    """
    code = textwrap.dedent(text).format(tests=str(TESTS), path=str(tmp_path / "run"))
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=120)
    run = lt.Run(tmp_path / "run")
    assert not run.partial
    assert len(run["norm"]) == 2
    assert not [name for name in os.listdir(tmp_path) if "pid" in name]


def test_append_is_the_default_and_error_refuses(tmp_path):
    model = gpt()
    with lt.watch(model, path=tmp_path, sites="norm"):
        train(model, steps=1)
    with pytest.raises(RunExists, match="already contains a run"):
        lt.watch(model, path=tmp_path, sites="norm", exists="error")
    with pytest.raises(BadArgument, match="exists='maybe'"):
        lt.watch(model, path=tmp_path, exists="maybe")


def test_a_dead_model_is_not_kept_alive(tmp_path):
    import gc
    import weakref

    models = []
    for fold in range(3):  # a loop over folds that closes nothing
        model = gpt()
        w = lt.watch(model, path=tmp_path / f"{fold}", sites="norm", what=("output", "update"))
        optimizer = torch.optim.AdamW(model.parameters())
        assert not w.abandoned, "no step was made yet"
        train(model, steps=2, optimizer=optimizer)
        models.append(weakref.ref(model))
        gc.collect()
        assert not w.abandoned, "its optimizer exists"
        assert not w.closed
        del optimizer
        del w
    gc.collect()
    assert [ref() is None for ref in models] == [True, True, False]
    assert len(clock.listeners()) == 1
    assert list(lt.Run(tmp_path / "0")["norm"].steps) == [0, 1], "closed, and complete"
    assert not lt.Run(tmp_path / "1").partial
    clock.listeners()[0].close()


def test_run_json_that_cannot_be_written_does_not_end_the_training(tmp_path, bare, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    model = gpt()
    with lt.watch(model, path=tmp_path, sites="norm") as w:
        assert train(model, steps=12) == bare
        monkeypatch.setattr(writer, "write_session", full)
    assert "No space left on device" in w.receipt.error
    assert clock.listeners() == ()


def test_a_card_that_fails_costs_its_last_step_and_not_the_ring(tmp_path, monkeypatch):
    # No card here: the one call that a failed card would refuse, closing what it has gathered, is made to fail once.
    model = gpt()

    def fail(step):
        if step == 4:
            close = w.recorder.sink.gathering.close
            refused = iter([True])
            monkeypatch.setattr(
                w.recorder.sink.gathering,
                "close",
                lambda **given: raising() if next(refused, False) else close(**given),
            )
            raise RuntimeError("CUDA error: device-side assert triggered")

    with (
        pytest.raises(RuntimeError, match="device-side assert"),
        lt.watch(model, path=tmp_path, sites="norm", ring=3) as w,
    ):
        train(model, steps=9, each=fail)
    assert [(report.rule, report.steps) for report in w.reports] == [("crash", (1, 2, 3))]
    assert list(lt.Run(tmp_path)["norm"].steps) == [1, 2, 3]
    assert "watch (crash)" in w.receipt.error
    assert clock.listeners() == ()


def test_a_level_that_is_none_is_told_before_the_training_starts():
    with pytest.raises(BadArgument, match="keep='foo' is not a level"):
        read_config({"keep": {"*": "foo"}})
