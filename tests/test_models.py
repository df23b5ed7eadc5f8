"""The small models build, run, and give the same numbers each time."""

import pytest
import torch

import models


@pytest.mark.parametrize("make", models.ALL.values(), ids=models.ALL)
def test_models_run_and_are_deterministic(make):
    first, again, other = [_output(*make(seed=seed)) for seed in (0, 0, 1)]
    assert first.isfinite().all()
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_building_a_model_leaves_the_callers_random_numbers_alone():
    before = torch.get_rng_state()
    models.qwen3()
    assert torch.equal(torch.get_rng_state(), before)


def test_the_encoder_takes_its_fused_path():
    model, inputs = models.encoder()
    called = []
    # A hook would itself switch the fused path off, so the class is watched.
    original = torch.nn.Linear.forward
    torch.nn.Linear.forward = lambda self, x: called.append(self) or original(self, x)
    try:
        models.run(model, inputs)
    finally:
        torch.nn.Linear.forward = original
    assert called == []


def _output(model, inputs):
    assert not model.training
    output = models.run(model, inputs)
    return output if isinstance(output, torch.Tensor) else output.logits
