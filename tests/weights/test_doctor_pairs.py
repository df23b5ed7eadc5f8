"""Pairs of models that were never pruned, or were pruned in many ways: one answer each, and one sentence."""

import copy
import types

import pytest
import torch
from torch import nn

import layertap as lt
import saved_models
from layertap.weights import doctor

PAIRS = []


def pair(answer, code, site=None, *, kind="qwen3", plan=None):
    def register(change):
        PAIRS.append(pytest.param(kind, change, plan, answer, code, site, id=change.__name__))
        return change

    return register


def patch(module, forward):
    module.forward = types.MethodType(forward, module)


@pair("healthy", "doctor.same")
def in_half_precision(model):
    return model.bfloat16()


@pair("healthy", "doctor.same")
def through_the_disk(model, tmp_path):
    model.save_pretrained(tmp_path)
    return type(model).from_pretrained(tmp_path)


@pair("healthy", "doctor.same")
def compiled(model):
    return torch.compile(model, backend="eager")


@pair("healthy", "doctor.same", kind="gpt2")
def in_training_mode(model):
    return model.train()


@pair("loading", "doctor.tensors", "model.layers.0.mlp.gate_proj")
def gate_and_up_exchanged(model):
    for layer in model.model.layers:
        layer.mlp.gate_proj, layer.mlp.up_proj = layer.mlp.up_proj, layer.mlp.gate_proj
    return model


@pair("loading", "doctor.tensor", "model.rotary_emb")
def rope_of_another_theta(model):
    model.model.rotary_emb.inv_freq.mul_(0.9)
    return model


@pair("loading", "doctor.tensor", "lm_head")
def tied_by_mistake(model):
    model.lm_head.weight = model.model.embed_tokens.weight
    return model


@pair("loading", "doctor.tensors", kind="mixtral")
def experts_rolled(model):
    for name in ("gate_up_proj", "down_proj"):
        weight = getattr(model.model.layers[0].mlp.experts, name).data
        weight.copy_(weight.roll(1, 0))
    return model


@pair("code", "doctor.computes_else", "model.layers.1.input_layernorm")
def another_epsilon(model):
    model.model.layers[1].input_layernorm.variance_epsilon = 0.1
    return model


@pair("code", "doctor.computes_else", "model.layers.0.self_attn")
def keys_that_come_later_are_seen(model):
    """Wrong with a cache and without: it is not the cache."""
    own = model.model.forward

    def forward(self, *args, **kwargs):
        length = kwargs["input_ids"].shape[1]
        return own(*args, **{**kwargs, "attention_mask": {"full_attention": torch.zeros(1, 1, length, length)}})

    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    patch(model.model, forward)
    return model


@pair("code", "doctor.computes_else", "model.layers.1.mlp")
def dropout_that_stays_on(model):
    own = model.model.layers[1].mlp.forward
    patch(model.model.layers[1].mlp, lambda _, x: nn.functional.dropout(own(x), 0.3, True))
    return model


@pair("code", "doctor.not_skipped", "model.layers.1.mlp", plan="mlp[1]")
def another_layer_was_cut(model):
    return lt.prune(model, "mlp[2]", how="physical")


class Given(nn.Module):
    def forward(self, hidden_states, **_):
        return hidden_states, None


@pair("code", "doctor.computes_else", "model.layers.1.self_attn")
def skipped_by_handing_on_the_input(model):
    model.model.layers[1].self_attn = Given()
    return model


@pair("cache", "doctor.cache_wrong")
def positions_from_zero(model):
    own = model.model.rotary_emb.forward
    patch(model.model.rotary_emb, lambda _, x, position_ids: own(x, position_ids - position_ids.min()))
    return model


@pair("cache", "doctor.cache_wrong")
def keys_that_are_not_kept(model):
    own = model.model.layers[1].self_attn.forward
    patch(model.model.layers[1].self_attn, lambda _, *args, **kwargs: own(*args, **{**kwargs, "past_key_values": None}))
    return model


@pair("idea", "doctor.idea_wrong")
def a_layer_fewer(model):
    model.model.layers = model.model.layers[:2]
    model.config.num_hidden_layers = 2
    return model


@pytest.mark.parametrize(("kind", "change", "plan", "answer", "code", "site"), PAIRS)
def test_d7_a_pair_has_its_answer(tmp_path, kind, change, plan, answer, code, site):
    reference, _ = saved_models.saved(kind)
    inputs = {"input_ids": torch.randint(3, 128, (4, 16), generator=torch.Generator().manual_seed(5))}
    candidate = copy.deepcopy(reference)
    with torch.no_grad():
        candidate = change(candidate, tmp_path) if change is through_the_disk else change(candidate)
    found = doctor(reference, candidate, inputs, plan=plan)
    assert (found.answer, found.sentence.code) == (answer, code), str(found)
    assert site is None or found.site == site
    assert all(line.code.startswith("doctor.") for line in found.evidence)


def test_what_changes_by_itself_is_inconclusive():
    class Restless(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, x):
            return self.layer(x) + torch.randn(4)

    reference = Restless()
    found = doctor(reference, copy.deepcopy(reference), (torch.randn(3, 8),))
    assert found.answer == "inconclusive", str(found)
    assert "doctor.not_repeatable" in [line.code for line in found.evidence]


def test_d7_the_diagnosis_in_chinese(monkeypatch):
    monkeypatch.setenv("LAYERTAP_LANG", "zh")
    reference, _ = saved_models.saved("qwen3")
    candidate = copy.deepcopy(reference)
    found = doctor(
        reference, lt.prune(candidate, "mlp[2]", how="physical"), {"input_ids": torch.arange(9)[None]}, plan="mlp[1]"
    )
    assert str(found).splitlines()[0].startswith("代码：计划跳过 model.layers.1.mlp")
    assert all(line.startswith("- ") for line in str(found).splitlines()[1:])
