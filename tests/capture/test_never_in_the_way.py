"""An error of layertap's own stays layertap's own."""

import contextlib
import copy
import gc
import os
import signal
import time
import weakref

import pytest
import torch
from torch import nn

import layertap as lt
from layertap.capture import taps
from layertap.capture.module_tap import ModuleTap
from layertap.store import RunWriter

X = torch.ones(2, 3)


def broken(tensor):
    raise RuntimeError("a reduction of the user's that fails")


def test_an_internal_error_ends_recording_and_not_the_loop(caplog, monkeypatch):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    bare = model(X)

    def take(tap, *given, take=ModuleTap._take):
        return take(tap, *given) if tap.path != "1" else 1 / 0

    monkeypatch.setattr(ModuleTap, "_take", take)
    with lt.record(model, sites=["0", "1"]) as rec:
        for _ in range(3):
            assert torch.equal(model(X), bare)
            rec.step()
        assert taps.attached() == 0, "recording has stopped"
    assert caplog.text.count("layertap stopped recording") == 1
    assert "1: ZeroDivisionError" in rec.receipt.error
    assert "stopped early" in str(rec.receipt)
    assert rec.run["0"].steps == (0,)
    (silent,) = rec.receipt.silent
    assert silent.why == "recording stopped before a tensor of it was recorded (1: ZeroDivisionError: division by zero)"


@pytest.mark.parametrize("keep", [broken, "[:, :, 0]"])
def test_a_tensor_that_cannot_be_taken_is_counted_and_recording_goes_on(caplog, keep):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with lt.record(model, sites=["0", "1"], what=("output", "grad_output"), keep={"1": keep}) as rec:
        for _ in range(3):
            model(X).sum().backward()
            rec.step()
    assert not rec.receipt.error
    assert model[0].weight.grad is not None
    assert rec.run["0"].steps == (0, 1, 2)
    (silent,) = (site for site in rec.receipt.silent if site.role == "output")
    assert list(silent.skipped.values()) == [3]
    assert silent.why.startswith("no tensor that can be recorded: ")
    assert caplog.text.count("1: a tensor cannot be recorded") == 2, "once for each role"


def test_a_tensor_that_fails_gives_its_room_in_the_budget_back(tmp_path):
    model = nn.Sequential(nn.Identity(), nn.Identity())
    keep = {"0": lambda tensor: tensor.to("meta"), "1": "tensor"}
    with lt.record(model, tmp_path / "run", sites="*", keep=keep, budget=64) as rec:
        for _ in range(5):
            model(torch.ones(10))
    assert rec.receipt.sites[0].skipped
    assert rec.receipt.sites[1].tensors == 5


def test_strict_raises_at_the_spot():
    model = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(RuntimeError, match="a reduction"), lt.record(model, sites="0", keep=broken, strict=True):
        model(X)
    assert taps.attached() == 0


def test_training_is_bit_identical_with_and_without():
    def train(recorded):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 16), nn.Dropout(0.1), nn.GELU(), nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        losses = []

        def loop(step):
            for _ in range(20):
                loss = model(torch.randn(4, 3)).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                step()

        if recorded:
            roles = lt.site.ROLES
            with lt.record(model, sites="**", what=roles, keep="tensor") as rec:
                loop(rec.step)
            assert rec.receipt.complete
        else:
            loop(lambda: None)
        return losses

    assert train(False) == train(True)


def test_a_copy_made_while_recording_is_not_recorded():
    model = nn.Sequential(nn.Linear(3, 3))
    with lt.record(model, sites="0") as rec:
        model(X)
        twin = copy.deepcopy(model)
        twin(X)
    assert [str(site) for site in rec.run.sites] == ["0"]


@pytest.mark.forks
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_forked_child_records_nothing_and_ends(tmp_path, on_disk):
    model = nn.Sequential(nn.Identity())
    with lt.record(model, tmp_path / "run" if on_disk else None, sites="0") as rec:
        model(X)
        rec.flush()
        child = os.fork()
        if child == 0:
            model(X)
            rec.flush()
            rec.step()
            held = rec.receipt.records == 2 and rec.run["0"].record.site.call == 0
            rec.close()
            os._exit(0 if held and rec.sink.taken == 2 else 1)
        for _ in range(200):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            time.sleep(0.05)
        else:
            os.kill(child, signal.SIGKILL)
            pytest.fail("the child hangs")
        assert status == 0
        model(X)
    assert rec.run["0@1"].record.site.call == 1
    assert rec.receipt.records == 4


def test_the_working_directory_may_change(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    model = nn.Sequential(nn.Identity())
    with lt.record(model, "run", sites="0", keep="tensor") as rec:
        model(X)
        os.chdir("other")
        model(X)
        rec.step()
    assert rec.receipt.complete
    assert rec.run["0@1"].tensor().shape == (2, 3)
    assert lt.Run(tmp_path / "run").receipt.complete


@pytest.mark.parametrize("strict", [False, True])
def test_an_error_of_the_writers_is_raised_where_that_was_asked_for(tmp_path, monkeypatch, strict):
    model = nn.Sequential(nn.Identity())
    monkeypatch.setattr(RunWriter, "commit", lambda self: 1 / 0)
    seen = []
    with contextlib.suppress(ZeroDivisionError), lt.record(model, tmp_path / "run", sites="0", strict=strict) as rec:
        try:
            model(X)
            rec.flush()
        except ZeroDivisionError:
            seen.append("raised")
            raise
    assert seen == (["raised"] if strict else [])
    assert "ZeroDivisionError" in rec.receipt.error
    assert taps.attached() == 0


def test_a_closed_recording_keeps_neither_the_model_nor_hooks():
    class Passing(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return self.weight

    model = nn.Sequential(Passing())
    leaf = torch.ones(3, requires_grad=True)
    with lt.record(model, sites="0", what=lt.site.ROLES) as rec:
        for _ in range(2):
            model(leaf).sum().backward()
            rec.step()
    gradients = [r for r in rec.run.records() if r.site.role == "grad_output"]
    assert [(r.step, r.site.call) for r in gradients] == [(0, 0), (1, 0)]
    assert not model[0].weight._backward_hooks
    assert not leaf._backward_hooks
    assert not model[0].weight._post_accumulate_grad_hooks
    alive = weakref.ref(model[0])
    del model
    gc.collect()
    assert alive() is None
    assert rec.receipt.records
    with pytest.raises(lt.errors.BadArgument, match="no longer exists"):
        _ = rec.model


def test_recording_while_compiling_does_not_break_the_graph():
    inner = nn.Linear(3, 3)
    model = nn.Sequential(inner)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with lt.record(model, sites="0") as rec:
        expected = model(X)
        assert torch.equal(compiled(X), expected)
    assert rec.receipt.sites[0].fired == 1, "the compiled graph calls no module"


def test_a_model_whose_compiled_form_was_called_says_why_its_modules_are_silent():
    model = nn.Sequential(nn.Linear(3, 3))
    compiled = torch.compile(model, backend="eager")
    with (
        pytest.raises(lt.errors.NothingCaptured, match=r"if it was compiled, record what torch\.compile\(model\)"),
        lt.record(model),
    ):
        compiled(X)


def test_pause_and_resume():
    model = nn.Sequential(nn.Identity())
    with lt.record(model, sites="0") as rec:
        rec.pause()
        assert taps.attached() == 0
        model(X)
        rec.resume()
        model(X)
    assert rec.run["0"].record.site.call == 0
