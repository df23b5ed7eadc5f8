"""`loading()` around code that loads and says nothing."""

import pytest
import torch
import transformers
from torch import nn

import models
from layertap.errors import BadArgument, WeightsWrong
from layertap.weights import loading


def two():
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def test_what_from_pretrained_passes_over_is_named(tmp_path):
    model, _ = models.qwen3()
    state = model.state_dict()
    del state["model.layers.1.mlp.up_proj.weight"]
    model.save_pretrained(tmp_path, state_dict=state)
    with loading() as load:
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert load.audit.verdict == "fault"
    assert load.audit.by_status["missing"] == 1


def test_a_healthy_load_is_identical(tmp_path):
    model, _ = models.mixtral()
    model.save_pretrained(tmp_path)
    with loading(strict=True) as load:
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert load.audit.verdict == "identical"


def test_a_file_loaded_with_strict_off(tmp_path):
    state = {f"net.{name}": tensor for name, tensor in two().state_dict().items()}  # a prefix: nothing fits
    torch.save(state, tmp_path / "x.pt")
    model = two()
    with loading() as load:
        model.load_state_dict(torch.load(tmp_path / "x.pt"), strict=False)
    assert load.audit.by_status == {"unwritten": 4}
    assert load.audit.other == str(tmp_path / "x.pt")
    with pytest.raises(WeightsWrong, match="it holds what it held before loading"), loading(strict=True):
        model.load_state_dict(torch.load(tmp_path / "x.pt"), strict=False)


def test_parts_loaded_one_after_another_are_one_checkpoint():
    model, saved = two(), two().state_dict()
    with loading() as load:
        for layer in ("0", "1"):
            part = {name: tensor for name, tensor in saved.items() if name.startswith(layer)}
            model.load_state_dict(part, strict=False)
    assert load.audit.verdict == "identical"


def test_code_that_copies_by_hand_names_its_model(tmp_path):
    model, saved = two(), two().state_dict()
    torch.save(saved, tmp_path / "x.pt")
    with loading(model) as load:
        held = torch.load(tmp_path / "x.pt")
        for name, parameter in model.named_parameters():
            if name != "1.bias":
                parameter.data.copy_(held[name])
    assert {row.name: row.status for row in load.audit.rows if row.status != "exact"} == {"1.bias": "unwritten"}


def test_nothing_loaded_says_so_and_everything_is_put_back():
    before = nn.Module.load_state_dict, transformers.PreTrainedModel.__dict__["from_pretrained"], torch.load
    with pytest.raises(BadArgument, match="nothing was loaded inside the block"), loading():
        pass
    with pytest.raises(ZeroDivisionError), loading():
        _ = 1 / 0
    assert before == (
        nn.Module.load_state_dict,
        transformers.PreTrainedModel.__dict__["from_pretrained"],
        torch.load,
    )
