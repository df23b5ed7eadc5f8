"""The culprit, and why: planted faults in a real decoder, in both precisions."""

import copy
import types

import pytest
import torch

import models
from layertap.capture import taps
from layertap.fault import find_fault

LAYER = "model.layers.1"


def scaled(block):
    block.mlp.down_proj.weight.mul_(1.03)


def zero_row(block):
    block.self_attn.q_proj.weight[3] = 0


def eps(block):
    block.input_layernorm.variance_epsilon = 1e-4


def scaling(block):
    block.self_attn.scaling *= 1.2


def activation(block):
    block.mlp.act_fn = torch.nn.GELU()


def sign(block):
    right = block.mlp.forward
    block.mlp.forward = types.MethodType(lambda self, x: -right(x), block.mlp)


def skipped(block):
    block.mlp.forward = types.MethodType(lambda self, x: x, block.mlp)


def nan(block):
    right = block.mlp.forward

    def forward(self, x):
        out = right(x)
        out[0, 0, 0] = float("nan")
        return out

    block.mlp.forward = types.MethodType(forward, block.mlp)


FAULTS = {
    scaled: ("mlp.down_proj", "weights"),
    zero_row: ("self_attn.q_proj", "weights"),
    eps: ("input_layernorm", "config"),
    scaling: ("self_attn", "config"),
    activation: ("mlp.act_fn", "config"),
    sign: ("mlp", "sign"),
    skipped: ("mlp", "skipped"),
    nan: ("mlp", "nonfinite"),
}


@pytest.fixture(scope="module")
def qwen3():
    return models.qwen3()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_the_planted_module_is_named_with_its_cause(qwen3, plant, dtype):
    reference, inputs = qwen3
    candidate = copy.deepcopy(reference)
    with torch.no_grad():
        plant(candidate.model.layers[1])
    path, cause = FAULTS[plant]
    found = find_fault(reference, candidate.to(dtype), inputs)
    assert (found.verdict, found.site, found.cause) == ("fault", f"{LAYER}.{path}", cause)
    assert not found.others
    assert max(found.forwards.values()) <= 10


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("family", models.ALL)
def test_another_precision_alone_is_noise(family, dtype):
    reference, inputs = models.ALL[family]()
    found = find_fault(reference, copy.deepcopy(reference).to(dtype), inputs)
    assert (found.verdict, found.site) == ("noise", "")
    assert found.total > 0


def test_other_attention_kernels_are_noise(qwen3):
    reference, inputs = qwen3
    candidate = copy.deepcopy(reference)
    candidate.set_attn_implementation("eager")
    assert find_fault(reference, candidate, inputs).verdict in ("identical", "noise")


def test_two_faults_at_once_show_both(qwen3):
    reference, inputs = qwen3
    candidate = copy.deepcopy(reference)
    with torch.no_grad():
        scaled(candidate.model.layers[0])
        zero_row(candidate.model.layers[2])
    found = find_fault(reference, candidate, inputs)
    assert found.site == "model.layers.0.mlp.down_proj"
    assert [other.site for other in found.others] == ["model.layers.2.self_attn.q_proj"]


def test_putting_the_reference_back_explains_the_error(qwen3):
    reference, inputs = qwen3
    candidate = copy.deepcopy(reference)
    with torch.no_grad():
        zero_row(candidate.model.layers[1])
    assert find_fault(reference, candidate, inputs).explained > 0.99


@pytest.mark.parametrize(("at", "told"), [((1, 3), "[1, 3]"), ((..., 7), "[..., 7]")])
def test_the_token_or_channel_that_gave_it_away_is_told(qwen3, at, told):
    reference, inputs = qwen3
    candidate = copy.deepcopy(reference)
    right = candidate.model.layers[1].mlp.forward

    def forward(self, x):
        out = right(x)
        out[at] *= 1.5
        return out

    candidate.model.layers[1].mlp.forward = types.MethodType(forward, candidate.model.layers[1].mlp)
    found = find_fault(reference, candidate, inputs)
    assert found.site == f"{LAYER}.mlp"
    assert found.evidence[-1] == f"seen at its output, largest in {told}"


def test_it_says_so_in_words(qwen3):
    reference, inputs = qwen3
    candidate = copy.deepcopy(reference)
    with torch.no_grad():
        candidate.model.layers[1].mlp.down_proj.weight.mul_(1.25)
    lines = str(find_fault(reference, candidate, inputs)).splitlines()
    assert lines[0].startswith(
        "model.layers.1.mlp.down_proj is wrong (weights): weight: scaled by 1.25; "
        "its output is 1.25 × what it should be (slope ± "
    )
    assert lines[1].startswith("The two sides first differ at aten.mm.default at linear.py:")
    assert lines[2].startswith("Putting the reference's output back removes 100.0% of the final error.")
    assert lines[5].startswith("model.layers.1.mlp.down_proj")


def test_the_same_model_is_identical_and_left_alone(qwen3):
    reference, inputs = qwen3
    before = copy.deepcopy(reference.state_dict())
    random = torch.get_rng_state()
    assert find_fault(reference, copy.deepcopy(reference), inputs).verdict == "identical"
    assert taps.attached() == 0
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(before[name], value) for name, value in reference.state_dict().items())


def test_a_function_may_run_the_model_many_times(qwen3):
    reference, inputs = qwen3

    def write(model):
        return model.generate(inputs["input_ids"][:, :5], max_new_tokens=3, do_sample=False, pad_token_id=0)

    candidate = copy.deepcopy(reference).to(torch.bfloat16)
    assert find_fault(reference, candidate, write).verdict == "noise"
    with torch.no_grad():
        candidate.model.layers[2].self_attn.k_proj.weight[1] = 0
    found = find_fault(reference, candidate, write)
    assert (found.site, found.cause) == ("model.layers.2.self_attn.k_proj", "weights")
    assert not found.others


def _int8(weight):
    scale = weight.abs().amax(1, keepdim=True) / 127
    return (weight / scale).round() * scale


class _Int8Linear(torch.nn.Module):
    """Quantised by hand: whole numbers in a buffer."""

    def __init__(self, linear):
        super().__init__()
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("whole", (linear.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, x):
        return torch.nn.functional.linear(x, self.whole.to(x.dtype) * self.scale.to(x.dtype))


@pytest.mark.parametrize("form", ["rounded", "packed"])
def test_weights_that_are_quantised_everywhere_are_no_fault_and_a_bad_one_among_them_is(qwen3, form):
    reference, inputs = qwen3
    candidate = copy.deepcopy(reference)
    for layer in candidate.model.layers:
        for name in ("gate_proj", "up_proj", "down_proj"):
            linear = getattr(layer.mlp, name)
            if form == "packed":
                setattr(layer.mlp, name, _Int8Linear(linear))
            else:
                linear.weight.data = _int8(linear.weight.data)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            linear = getattr(layer.self_attn, name)
            if form == "packed":
                setattr(layer.self_attn, name, _Int8Linear(linear))
            else:
                linear.weight.data = _int8(linear.weight.data)
    found = find_fault(reference, candidate, inputs)
    assert (found.verdict, found.site, found.cause) == ("noise", "", "quantization")
    if form == "packed":
        candidate.model.layers[1].mlp.up_proj.scale[3] *= 4
    else:
        candidate.model.layers[1].mlp.up_proj.weight.data[3] *= 4
    assert find_fault(reference, candidate, inputs).site == "model.layers.1.mlp.up_proj"


def test_another_checkpoint_is_not_taken_for_quantisation(qwen3):
    reference, inputs = qwen3
    candidate = copy.deepcopy(reference)
    torch.manual_seed(7)
    with torch.no_grad():
        for layer in candidate.model.layers:
            for module in layer.modules():
                if isinstance(module, torch.nn.Linear):
                    module.weight.normal_(0, 0.02)
    found = find_fault(reference, candidate, inputs)
    assert (found.verdict, found.cause) == ("fault", "weights")
    assert found.site == "model.layers.0.self_attn.q_proj"


def _all_norms(model):
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 0.1


def _all_scaled(model):
    for layer in model.model.layers:
        for module in layer.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.data *= 1.1


def _layers_swapped(model):
    model.model.layers[0], model.model.layers[1] = model.model.layers[1], model.model.layers[0]


EVERYWHERE = {
    _all_norms: ("model.layers.0.input_layernorm", "config"),
    _all_scaled: ("model.layers.0.self_attn.q_proj", "weights"),
    _layers_swapped: ("model.layers.0.input_layernorm", "weights"),
}


@pytest.mark.parametrize("plant", EVERYWHERE, ids=lambda plant: plant.__name__)
def test_a_fault_of_every_layer_is_no_quantisation(qwen3, plant):
    reference, inputs = qwen3
    with torch.no_grad():
        for layer in reference.model.layers:
            layer.input_layernorm.weight.normal_(1, 0.2)
    candidate = copy.deepcopy(reference)
    plant(candidate)
    found = find_fault(reference, candidate, inputs)
    assert (found.verdict, found.site, found.cause) == ("fault", *EVERYWHERE[plant])


def test_few_quantised_modules_are_no_fault_and_a_bad_one_is():
    torch.manual_seed(0)
    reference = torch.nn.Sequential(
        torch.nn.Linear(32, 32, bias=False), torch.nn.ReLU(), torch.nn.Linear(32, 32, False)
    )
    candidate = torch.nn.Sequential(_Int8Linear(reference[0]), torch.nn.ReLU(), _Int8Linear(reference[2]))
    inputs = (torch.randn(8, 32),)
    found = find_fault(reference, candidate, inputs)
    assert (found.verdict, found.cause) == ("noise", "quantization")
    candidate[2].scale[5] *= 2
    assert find_fault(reference, candidate, inputs).site == "2"
