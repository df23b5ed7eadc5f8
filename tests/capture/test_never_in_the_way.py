"""An error of layertap's own stays layertap's own."""

import copy
import os

import pytest
import torch
from torch import nn

import layertap as lt
from layertap.capture import taps

X = torch.ones(2, 3)


def broken(tensor):
    raise RuntimeError("a reduction of the user's that fails")


def test_an_internal_error_ends_recording_and_not_the_loop(caplog):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    bare = model(X)
    with lt.record(model, sites=["0", "1"], keep={"1": broken}) as rec:
        for _ in range(3):
            assert torch.equal(model(X), bare)
            rec.step()
        assert taps.attached() == 0, "recording has stopped"
    assert caplog.text.count("layertap stopped recording") == 1
    assert "1: RuntimeError: a reduction" in rec.receipt.error
    assert "stopped early" in str(rec.receipt)
    assert rec.run["0"].steps == (0,)


def test_strict_raises_at_the_spot():
    model = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(RuntimeError, match="a reduction"), lt.record(model, sites="0", keep=broken, strict=True):
        model(X)
    assert taps.attached() == 0


def test_an_error_in_a_gradient_hook_stays_inside():
    model = nn.Sequential(nn.Linear(3, 3))
    with lt.record(model, sites="0", what=("output", "grad_output"), keep={"0:grad_output": broken}) as rec:
        model(X).sum().backward()
    assert model[0].weight.grad is not None
    assert "RuntimeError" in rec.receipt.error


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
            roles = ("input", "output", "grad_output", "param", "param_grad")
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
def test_a_forked_child_records_nothing_and_ends():
    model = nn.Sequential(nn.Identity())
    with lt.record(model, sites="0") as rec:
        model(X)
        child = os.fork()
        if child == 0:
            model(X)
            rec.close()
            os._exit(0 if rec.sink.taken == 2 else 1)
        assert os.waitpid(child, 0)[1] == 0
        model(X)
    assert rec.run["0@1"].record.site.call == 1
    assert rec.receipt.records == 4


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
        pytest.raises(lt.errors.NothingCaptured, match=r"of torch\.compile\(model\), record what it"),
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
