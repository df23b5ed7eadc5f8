"""Two trainings: the first step and site where they part, and whether that is rounding."""

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import layertap as lt
from layertap import cli
from layertap.compare import diff_training

WHAT = ("output", "grad_output")


def fit(path, *, steps=8, change=lambda model, step, x: x, **options):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with lt.watch(model, path=path, sites="*", what=WHAT, **options):
        for step in range(steps):
            torch.manual_seed(100 + step)
            x = change(model, step, torch.randn(4, 8))
            (model(x) - 1).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return path


def nudge(layer, at, by):
    """Adds to a layer's gradient, once."""

    def change(model, step, x):
        if step == at:
            model[layer].register_full_backward_pre_hook(lambda module, grads: (grads[0] + by(grads[0]),))
        return x

    return change


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return fit(tmp_path_factory.mktemp("reference"))


def test_the_same_training_twice_is_identical(tmp_path, reference):
    report = diff_training(reference, fit(tmp_path))
    assert report.verdict == "identical"
    assert report.first is None
    assert (report.steps, report.exit_code) == (8, 0)
    assert "all 80 records of 8 steps are bit-identical" in str(report)


def test_a_fault_in_one_backward_pass_is_named_by_step_and_site(tmp_path, reference):
    report = diff_training(reference, fit(tmp_path, change=nudge(2, 5, lambda grad: 0.5 * grad.abs().max())))
    assert report.verdict == "fault"
    assert (report.first.step, str(report.first.site)) == (5, "1:grad_output")
    assert "first bit that differs: step 5, 1:grad_output (Sequential), relative error" in str(report)
    assert report.exit_code == 1


def test_a_single_bit_is_found_and_called_rounding(tmp_path, reference):
    def bit(grad):
        return torch.nextafter(grad, grad + 1) - grad

    report = diff_training(reference, fit(tmp_path, change=nudge(2, 5, bit)))
    assert report.first.step == 5
    assert report.first.error < 1e-5
    assert report.verdict in ("noise", "inconclusive")
    assert report.above is None or report.above.step > 5


def test_other_batches_are_not_the_model_s_fault(tmp_path, reference):
    report = diff_training(reference, fit(tmp_path, change=lambda model, step, x: x.flip(0) if step == 3 else x))
    assert report.verdict == "inconclusive"
    assert report.first.is_input
    assert "the batches differ from step 3 on" in str(report)


def test_steps_and_sites_of_one_side_are_told(tmp_path, reference):
    shorter = diff_training(reference, fit(tmp_path / "short", steps=5))
    assert shorter.verdict == "inconclusive", "what is not there is not identical"
    assert "the 5 steps that both have are bit-identical, but 3 steps are on one side only" in str(shorter)
    assert "3 steps (5 … 7) are only in" in str(shorter)
    rarer = diff_training(reference, fit(tmp_path / "rare", schedule=3))
    assert rarer.steps == 3
    nothing = diff_training(reference, fit(tmp_path / "later", start=1000))
    assert nothing.verdict == "inconclusive"
    assert "no step and site in common" in str(nothing)


def test_of_a_step_recorded_twice_the_later_counts(tmp_path, reference):
    fit(tmp_path, steps=6, change=nudge(2, 5, lambda grad: 1 + grad), start=0)
    fit(tmp_path, start=0, exists="append")
    assert diff_training(reference, tmp_path).verdict == "identical"


def test_the_command_line_knows_trainings(tmp_path, reference):
    other = fit(tmp_path, change=nudge(1, 4, lambda grad: 1 + grad))
    told = CliRunner().invoke(cli.app, ["diff", str(reference), str(other)])
    assert told.exit_code == 1
    assert "they differ from step 4 on, by more than rounding explains" in told.output
    twin = CliRunner().invoke(cli.app, ["diff", str(reference), str(other), "--json"])
    assert '"site": "0:grad_output"' in twin.output
