"""A training step: gradients are forced and judged as values are."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import models
from layertap.fault import find_fault


class _Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.relu(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x > 0) * 1.1


class Activation(nn.Module):
    wrong = False

    def forward(self, x):
        return _Wrong.apply(x) if self.wrong else torch.relu(x)


class Net(nn.Module):
    def __init__(self, checkpointed=None, p=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), Activation(), nn.Dropout(p), nn.Linear(32, 16)) for _ in range(3)
        )
        self.checkpointed = checkpointed

    def forward(self, x):
        x.requires_grad_()  # reentrant checkpoints see gradients only where an input asks for them
        for layer in self.layers:
            x = x + (layer(x) if self.checkpointed is None else checkpoint(layer, x, use_reentrant=self.checkpointed))
        return x


X = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))


def step(model):
    loss = model(X.clone()).square().mean()
    loss.backward()
    return loss


@pytest.mark.parametrize("checkpointed", [None, True, False], ids=["plain", "reentrant", "non-reentrant"])
def test_a_wrong_backward_is_found_where_it_is(checkpointed):
    reference = Net(checkpointed)
    candidate = copy.deepcopy(reference)
    candidate.layers[1][1].wrong = True
    found = find_fault(reference, candidate, step)
    assert (found.verdict, found.site) == ("fault", "layers.1.1")
    assert any("the gradient of its input is 1.1 × what it should be" in text for text in found.evidence)
    assert found.explained > 0.99
    assert max(found.forwards.values()) <= 10


@pytest.mark.parametrize("checkpointed", [None, True, False], ids=["plain", "reentrant", "non-reentrant"])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_a_clean_step_is_clean(checkpointed, p):
    reference = Net(checkpointed, p).train()
    assert find_fault(reference, copy.deepcopy(reference), step).verdict == "identical"


def test_dropout_draws_alike_on_both_sides_and_a_fault_behind_it_is_found():
    reference = Net(p=0.3).train()
    candidate = copy.deepcopy(reference)
    with torch.no_grad():
        candidate.layers[1][3].weight[5] = 0
    found = find_fault(reference, candidate, step)
    assert (found.site, found.cause) == ("layers.1.3", "weights")
    assert "the model draws random numbers: both sides were given the same seeds, module by module" in found.notes
    assert found.explained > 0.99


class _Noise(nn.Module):
    """Draws other numbers in each dtype, as kernels on a GPU may."""

    def forward(self, x):
        torch.rand(x.element_size())
        return x * torch.rand(x.shape).to(x.dtype) * 2


def test_draws_that_differ_between_dtypes_are_inconclusive():
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(16, 16), _Noise(), nn.Linear(16, 16))
    found = find_fault(reference, copy.deepcopy(reference).to(torch.bfloat16), (X,))
    assert found.verdict == "inconclusive"
    assert found.evidence[0] == "random numbers differ between the two sides (1): use eval() or one dtype"
    assert find_fault(reference, copy.deepcopy(reference), (X,)).verdict == "identical"


def test_a_wrong_weight_gradient_belongs_to_its_module():
    class Scaled(nn.Linear):
        def forward(self, x):
            weight = self.weight * 1.0
            if weight.requires_grad:
                weight.register_hook(lambda grad: grad * 0.5)
            return nn.functional.linear(x, weight, self.bias)

    reference = Net()
    candidate = copy.deepcopy(reference)
    wrong = Scaled(16, 32)
    wrong.load_state_dict(candidate.layers[2][0].state_dict())
    candidate.layers[2][0] = wrong
    found = find_fault(reference, candidate, step)
    assert (found.verdict, found.site) == ("fault", "layers.2.0")
    assert found.evidence[-1] == "seen at the gradient of its parameter (weight)"


def test_a_real_decoder_trains_in_bf16_as_in_fp32():
    reference, inputs = models.qwen3()
    ids = inputs["input_ids"]

    def train(model):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        return loss

    assert find_fault(reference, copy.deepcopy(reference).to(torch.bfloat16), train).verdict == "noise"
    candidate = copy.deepcopy(reference).to(torch.bfloat16)
    candidate.model.layers[1].mlp.act_fn = _WrongSilu()
    found = find_fault(reference, candidate, train)
    assert (found.verdict, found.site) == ("fault", "model.layers.1.mlp.act_fn")


class _Silu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return nn.functional.silu(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


class _WrongSilu(nn.Module):
    """Its backward passes gradients straight through."""

    def forward(self, x):
        return _Silu.apply(x)
