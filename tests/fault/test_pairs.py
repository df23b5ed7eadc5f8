"""Models that are not two copies of one class: wrapped, renamed, written anew, with parts missing."""

import copy
import sys

import pytest
import torch
from torch import nn

import models
from layertap.errors import BadArgument
from layertap.fault import find_fault
from layertap.fault.pairing import Pairing


class Block(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, hidden, mask=None):
        return hidden + self.down(torch.relu(self.up(self.norm(hidden))))


class Net(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Other(nn.Module):
    """The same network under other names, with keywords where `Net` has positions."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln = nn.LayerNorm(16)
            self.fc1 = nn.Linear(16, 32)
            self.fc2 = nn.Linear(32, 16)

        def forward(self, hidden):
            return hidden + self.fc2(self.fc1(self.ln(hidden)).clamp(min=0))

    def __init__(self, net):
        super().__init__()
        self.layer = nn.ModuleList(Other.Layer() for _ in net.blocks)
        self.classifier = nn.Linear(16, 5)
        self.load_state_dict(dict(zip(self.state_dict(), net.state_dict().values(), strict=True)))

    def forward(self, x):
        for layer in self.layer:
            x = layer(hidden=x)
        return self.classifier(x)


NAMES = {
    r"^layer\.(\d+)$": r"blocks.\1",
    r"^layer\.(\d+)\.ln$": r"blocks.\1.norm",
    r"^layer\.(\d+)\.fc1$": r"blocks.\1.up",
    r"^layer\.(\d+)\.fc2$": r"blocks.\1.down",
    "classifier": "head",
}


@pytest.fixture
def net():
    return Net().eval()


@pytest.fixture
def x():
    return torch.randn(4, 7, 16, generator=torch.Generator().manual_seed(1))


class Wrapper(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.module = model

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)


class Adapter(nn.Module):
    """As PEFT nests a model."""

    def __init__(self, model):
        super().__init__()
        self.base_model = nn.Module()
        self.base_model.model = model

    def forward(self, *args, **kwargs):
        return self.base_model.model(*args, **kwargs)


@pytest.mark.parametrize(("wrap", "prefix"), [(Wrapper, "module."), (Adapter, "base_model.model.")])
def test_a_wrapper_is_seen_through(net, x, wrap, prefix):
    candidate = copy.deepcopy(net)
    with torch.no_grad():
        candidate.blocks[1].up.weight[2] = 0
    found = find_fault(net, wrap(candidate), (x,))
    assert (found.verdict, found.site, found.cause) == ("fault", f"{prefix}blocks.1.up", "weights")
    assert find_fault(wrap(net), copy.deepcopy(net), (x,)).verdict == "identical"


def test_ddp_is_seen_through(net, x):
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        candidate = copy.deepcopy(net)
        candidate.blocks[2].norm.eps = 1e-2
        found = find_fault(net, nn.parallel.DistributedDataParallel(candidate), (x,))
    finally:
        dist.destroy_process_group()
    assert (found.site, found.cause) == ("module.blocks.2.norm", "config")


def test_another_class_by_a_mapping(net, x):
    other = Other(net).eval()
    assert find_fault(net, other, (x,), mapping=NAMES).verdict == "identical"
    with torch.no_grad():
        other.layer[1].fc2.bias += 0.5
    found = find_fault(net, other, (x,), mapping=NAMES)
    assert (found.verdict, found.site, found.cause) == ("fault", "layer.1.fc2", "weights")


def test_without_a_mapping_modules_are_paired_by_order_and_shape_and_that_is_said(net, x):
    other = Other(net).eval()
    with torch.no_grad():
        other.layer[2].fc1.weight *= -1
    found = find_fault(net, other, (x,))
    assert (found.verdict, found.site) == ("fault", "layer.2.fc1")
    assert "paired by order and shape: blocks.2.up with layer.2.fc1" in found.notes


def test_a_mapping_that_leads_nowhere_is_an_error(net, x):
    with pytest.raises(BadArgument, match="no rule leads from a module of the candidate to one of the reference"):
        find_fault(net, Other(net), (x,), mapping={"layer": "stages"})


def test_of_a_wrapper_and_what_it_wraps_the_inner_one_is_paired(net):
    pairing = Pairing(net, Wrapper(copy.deepcopy(net)))
    assert pairing.names[""] == "module"
    assert pairing.extra == [""]


def test_values_that_differ_in_form_are_listed_and_not_judged(x):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.inner = Block()

    class AsBool(Masked):
        def forward(self, x):
            return self.inner(x, torch.ones(7, dtype=torch.bool))

    class AsFloat(Masked):
        def forward(self, x):
            return self.inner(x, torch.zeros(7))

    found = find_fault(AsBool(), AsFloat(), (x,))
    assert found.verdict == "identical"
    assert "has another form, so it is neither forced nor judged: inner:input.mask" in found.notes


def test_a_module_that_is_never_called_is_skipped(net, x):
    candidate = copy.deepcopy(net)
    del candidate.blocks[1]
    found = find_fault(net, candidate, (x,), mapping={r"blocks\.1": "blocks.2"})
    assert (found.verdict, found.site, found.cause) == ("fault", "", "structure")
    assert "the candidate has no blocks.1" in found.evidence[0]

    class Lazy(Net):
        def forward(self, x):
            return self.head(self.blocks[2](self.blocks[0](x)))

    found = find_fault(net, Lazy().eval(), (x,))
    assert (found.verdict, found.site, found.cause) == ("fault", "", "skipped")
    assert found.evidence[0] == "blocks.1 is never called, but it is in the reference"


def test_a_module_that_is_called_twice_is_a_matter_of_structure(net, x):
    class Twice(Net):
        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.head(self.blocks[2](x))

    found = find_fault(net, Twice().eval(), (x,))
    assert (found.verdict, found.site, found.cause) == ("fault", "", "structure")
    assert "blocks.2 is called 2 ×, in the reference 1 ×" in found.evidence[0]


def test_a_difference_of_structure_without_effect_is_only_said(net, x):
    class Extra(Net):
        def __init__(self):
            super().__init__()
            self.idle = nn.Identity()

        def forward(self, x):
            return super().forward(self.idle(x))

    found = find_fault(Extra().eval(), net, (x,))
    assert found.verdict == "identical"
    assert "without effect: structure: the candidate has no idle" in found.notes


class Masked(nn.Module):
    """A caller that makes a mask, and a child that uses it."""

    class Attend(nn.Module):
        def forward(self, x, mask):
            return torch.softmax((x @ x.mT).masked_fill(~mask, float("-inf")), -1) @ x

    class Body(nn.Module):
        def __init__(self, ahead):
            super().__init__()
            self.attend, self.ahead = Masked.Attend(), ahead

        def forward(self, x):
            length = x.shape[1]
            seen = torch.arange(length)[:, None] + self.ahead >= torch.arange(length)
            return self.attend(x, seen.expand(len(x), -1, -1))

    def __init__(self, ahead=0):
        super().__init__()
        self.body = Masked.Body(ahead)

    def forward(self, x):
        return self.body(x)


def test_a_mask_of_true_and_false_that_is_off_by_one_is_its_makers(x):
    found = find_fault(Masked(), Masked(ahead=1), (x,))
    assert (found.verdict, found.site) == ("fault", "body")
    assert found.cause in ("mask", "config")


def _looks_ahead(made):
    """One key too many, whatever form the mask has."""
    if made is None:
        made = torch.ones(1, 1, 8, 8, dtype=torch.bool).tril()
    wrong, at = made.clone(), torch.arange(made.shape[-1] - 1)
    wrong[..., at, at + 1] = True if made.dtype == torch.bool else 0.0
    return wrong


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_mask_of_another_form_is_its_makers(attention, monkeypatch):
    """Without padding the reference has no mask at all: its kernel is set to causal."""
    reference, inputs = models.llama()
    candidate = copy.deepcopy(reference)
    candidate.set_attn_implementation(attention)
    home = sys.modules[type(candidate.model).__module__]
    right = home.create_causal_mask
    ours = candidate.config
    monkeypatch.setattr(
        home,
        "create_causal_mask",
        lambda config, *args, **kwargs: (_looks_ahead if config is ours else lambda made: made)(
            right(config, *args, **kwargs)
        ),
    )
    found = find_fault(reference, candidate, {"input_ids": inputs["input_ids"][:, :8]})
    assert (found.verdict, found.site, found.cause) == ("fault", "model", "mask")
    assert not found.others


def test_an_attention_at_fault_is_not_excused_by_a_mask_of_another_form():
    reference, inputs = models.llama()
    candidate = copy.deepcopy(reference)
    candidate.set_attn_implementation("eager")
    for layer in candidate.model.layers:
        layer.self_attn.scaling *= 1.5
    found = find_fault(reference, candidate, inputs)
    assert (found.site, found.cause) == ("model.layers.0.self_attn", "config")


def test_one_position_that_is_wrong_is_enough():
    reference, inputs = models.gpt2()
    candidate = copy.deepcopy(reference)
    right = candidate.transformer.forward

    def forward(*args, **kwargs):
        positions = torch.arange(inputs["input_ids"].shape[1])[None]
        positions[0, -1] += 1
        return right(*args, **{**kwargs, "position_ids": positions})

    candidate.transformer.forward = forward
    found = find_fault(reference, candidate, inputs)
    assert (found.verdict, found.site, found.cause) == ("fault", "transformer", "shift")
