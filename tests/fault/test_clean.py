"""Pairs that look wrong and are not: padding, caches, routers that flip."""

import copy

import pytest
import torch
from torch import nn

import models
from layertap.fault import find_fault


@pytest.fixture
def padded():
    reference, inputs = models.qwen3()
    ids = inputs["input_ids"].repeat(2, 1)[:2]
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    return reference, {"input_ids": ids, "attention_mask": mask}


@pytest.fixture
def eager(padded):
    candidate = copy.deepcopy(padded[0])
    candidate.set_attn_implementation("eager")
    return candidate


def test_tokens_that_see_no_key_have_no_right_value(padded, eager):
    reference, inputs = padded
    found = find_fault(reference, eager, inputs)
    assert found.verdict == "noise"
    assert "3 tokens attend to no key, as padding does: their values are not judged" in found.notes


def test_a_fault_beside_padding_is_found(padded, eager):
    reference, inputs = padded
    with torch.no_grad():
        eager.model.layers[1].self_attn.v_proj.weight[2] = 0
    found = find_fault(reference, eager, inputs)
    assert (found.site, found.cause) == ("model.layers.1.self_attn.v_proj", "weights")


def test_nan_from_padding_is_judged(padded, eager):
    reference, inputs = padded
    broken = eager.model.layers[0].self_attn

    def forward(*args, **kwargs):
        output, weights = type(broken).forward(broken, *args, **kwargs)
        output[0, :3] = float("nan")
        return output, weights

    broken.forward = forward
    found = find_fault(reference, eager, inputs)
    assert (found.site, found.cause) == ("model.layers.0.self_attn", "nonfinite")


def test_a_cache_among_the_inputs_is_cast_as_they_are():
    reference, inputs = models.qwen3()
    ids = inputs["input_ids"]
    with torch.no_grad():
        cache = reference(ids[:, :4], use_cache=True).past_key_values
    candidate = copy.deepcopy(reference).to(torch.bfloat16)
    found = find_fault(reference, candidate, {"input_ids": ids[:, 4:6], "past_key_values": cache})
    assert found.verdict == "noise"
    assert cache.get_seq_length() == 4
    assert cache.layers[0].keys.dtype == torch.float32


class Routed(nn.Module):
    """Each expert is given the tokens that chose it; two experts tie, so that rounding decides."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.gate = nn.Linear(16, 8)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))
        self.head = nn.Linear(16, 4)
        with torch.no_grad():
            self.gate.weight[1], self.gate.bias[1] = self.gate.weight[0], self.gate.bias[0]

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        output = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, rank = (chosen == number).nonzero(as_tuple=True)
            output.index_add_(0, token, expert(x[token]) * weights[token, rank][:, None])
        return self.head(output)


def test_a_router_that_flips_by_rounding_sends_other_tokens_and_that_is_noise():
    x = torch.randn(40, 16, generator=torch.Generator().manual_seed(0))
    verdicts = {find_fault(Routed(), Routed().to(dtype), (x,)).verdict for dtype in (torch.bfloat16, torch.float16)}
    assert verdicts == {"noise"}


def test_a_caller_that_hands_on_another_shape_is_to_blame():
    class Net(nn.Module):
        def __init__(self, stride):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second, self.stride = nn.Linear(8, 8), nn.Linear(8, 8), stride

        def forward(self, x):
            return self.second(self.first(x)[:, :: self.stride]).mean(1)

    class Holder(nn.Module):
        def __init__(self, stride):
            super().__init__()
            self.net = Net(stride)

        def forward(self, x):
            return self.net(x)

    found = find_fault(Holder(1), Holder(2), (torch.randn(2, 6, 8),))
    assert (found.verdict, found.site) == ("fault", "net")
    assert found.cause in ("config", "structure")


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.convs = nn.ModuleList(nn.Conv2d(3 if not i else 8, 8, 3, padding=1) for i in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(3))
        self.head = nn.Linear(8, 5)
        for norm in self.norms:
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2.0)

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x)).relu()
        return self.head(x.mean((2, 3)))


@pytest.fixture
def folded():
    """A model, and the same with each normalisation folded into the convolution before it."""
    reference = Images().eval().requires_grad_(False)
    candidate = copy.deepcopy(reference)
    for i, (conv, norm) in enumerate(zip(candidate.convs, candidate.norms, strict=True)):
        candidate.convs[i] = nn.utils.fusion.fuse_conv_bn_eval(conv, norm)
        candidate.norms[i] = nn.Identity()
    return reference, candidate, torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_what_is_folded_into_its_neighbour_is_right_together(folded):
    found = find_fault(*folded)
    assert found.verdict == "noise", str(found)
    assert any(note.startswith("wrong individually, right together: convs.0, norms.0") for note in found.notes)


@pytest.mark.parametrize("fault", ["convs.1", "head"])
def test_a_fault_beside_what_is_folded_is_found(folded, fault):
    reference, candidate, x = folded
    with torch.no_grad():
        candidate.get_submodule(fault).weight[2] *= 1.3
    found = find_fault(reference, candidate, x)
    assert (found.verdict, found.site, found.cause) == ("fault", fault, "weights"), str(found)
