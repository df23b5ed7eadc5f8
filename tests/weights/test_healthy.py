"""Transformations that keep every value, or round it: no alarm, and nothing passed over."""

import warnings

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import layertap as lt
import saved_models
from saved_models import state

ATTENTION, MLP = "model.layers.{}.self_attn.", "model.layers.{}.mlp."
IDENTICAL, ROUNDED = "identical", "noise"
HEALTHY = []


def healthy(verdict):
    def register(make):
        HEALTHY.append(pytest.param(make, verdict, id=make.__name__))
        return make

    return register


@pytest.mark.parametrize("kind", saved_models.KINDS)
def test_d1_what_was_saved_is_identical_and_a_cast_is_noise(kind):
    model, folder = saved_models.saved(kind)
    assert lt.audit(model, folder).verdict == "identical"
    found = lt.audit(model.bfloat16(), folder)
    assert found.verdict == "noise", str(found)
    assert set(found.by_status) <= {"exact", "cast", "converted"}


@healthy(IDENTICAL)
def wrapped_for_training():
    model, _ = saved_models.saved("qwen3")
    return model, {f"module.{name}": tensor for name, tensor in state(model).items()}


@healthy(IDENTICAL)
def compiled_block_by_block():
    model, folder = saved_models.saved("qwen3")
    for index, layer in enumerate(model.model.layers):
        model.model.layers[index] = torch.compile(layer)
    return model, folder


@healthy(IDENTICAL)
def fused():
    model, _ = saved_models.saved("qwen3")
    held = state(model)
    for layer in range(3):
        parts = [held.pop(f"{ATTENTION.format(layer)}{part}_proj.weight") for part in "qkv"]
        held[f"{ATTENTION.format(layer)}qkv_proj.weight"] = torch.cat(parts)
        parts = [held.pop(f"{MLP.format(layer)}{part}_proj.weight") for part in ("gate", "up")]
        held[f"{MLP.format(layer)}gate_up_proj.weight"] = torch.cat(parts)
    return model, held


@healthy(IDENTICAL)
def linear_for_conv1d():
    model, _ = saved_models.saved("gpt2")
    held = state(model)
    for name in [name for name in held if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))]:
        held[name] = held[name].t().contiguous()
    return held, model


@healthy(IDENTICAL)
def llama_in_its_own_names_and_rope_layout():
    model, _ = saved_models.saved("llama")
    names = {"self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv"}
    names |= {"self_attn.o_proj": "attention.wo", "mlp.gate_proj": "ffn.w1", "mlp.up_proj": "ffn.w3"}
    names |= {"mlp.down_proj": "ffn.w2", "model.embed_tokens": "tok_embeddings", "lm_head": "output"}
    held = {}
    for name, tensor in state(model).items():
        if "q_proj" in name or "k_proj" in name:
            heads = len(tensor) // 8
            tensor = tensor.view(heads, 2, 4, 32).transpose(1, 2).reshape(tensor.shape)
        for one, two in names.items():
            name = name.replace(one, two)
        held[name] = tensor.contiguous()
    return model, held


@healthy(IDENTICAL)
def a_shard_of_two():
    model, folder = saved_models.saved("qwen3")
    held = {}
    for name, tensor in state(model).items():
        rows = any(part in name for part in ("q_proj", "k_proj", "v_proj", "gate", "up_proj", "embed", "lm_head"))
        columns = any(part in name for part in ("o_proj", "down_proj"))
        held[name] = tensor.chunk(2, int(columns))[1].clone() if rows or columns else tensor
    return held, folder


@healthy(IDENTICAL)
def a_padded_vocabulary():
    model, folder = saved_models.saved("qwen3")
    held = state(model)
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        held[name] = torch.cat([held[name], torch.zeros(16, 32)])
    return held, folder


@healthy(IDENTICAL)
def padding_that_was_cut_off():
    held, _ = a_padded_vocabulary()
    return saved_models.saved("qwen3")[0], held


@healthy(IDENTICAL)
def adapters_that_wrap_their_layers():
    class Adapted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base_layer = base
            self.lora_A = nn.ModuleDict({"default": nn.Linear(32, 4, bias=False)})
            self.lora_B = nn.ModuleDict({"default": nn.Linear(4, 32, bias=False)})

    model, _ = saved_models.saved("qwen3")
    for layer in model.model.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj)
    return model, {f"base_model.model.{name}": tensor for name, tensor in state(model).items()}


@healthy(ROUNDED)
def an_adapter_that_was_merged():
    model, _ = saved_models.saved("qwen3")
    held = state(model)
    make = torch.Generator().manual_seed(0)
    for layer in range(3):
        stem = f"{ATTENTION.format(layer)}q_proj."
        a, b = torch.randn(4, 32, generator=make), torch.randn(32, 4, generator=make)
        held[f"base_model.model.{stem}lora_A.weight"], held[f"base_model.model.{stem}lora_B.weight"] = a, b
        model.get_parameter(f"{stem}weight").data += 2 * b @ a
    return model, held


@healthy(ROUNDED)
def rounded_to_half_precision_twice():
    model, folder = saved_models.saved("qwen3")
    return model.half().bfloat16(), folder


@healthy(ROUNDED)
def blocks_of_eight_bit_floats():
    model, _ = saved_models.saved("qwen3")
    held = state(model)
    for name in [name for name in held if "proj" in name]:
        rows, columns = held[name].shape
        scale = held[name].view(rows // 8, 8, columns // 8, 8).abs().amax((1, 3)) / 448
        wide = scale.repeat_interleave(8, 0).repeat_interleave(8, 1)
        held[name] = (held[name] / wide).to(torch.float8_e4m3fn)
        held[f"{name}_scale_inv"] = scale
        model.get_parameter(name).data = held[name].float() * wide
    return model, held


@pytest.mark.parametrize("bits", [4, 8])
def test_torchaos_weights_are_what_they_stand_for(bits):
    pytest.importorskip("torchao")
    from torchao.quantization import IntxWeightOnlyConfig, quantize_
    from torchao.quantization.granularity import PerGroup

    model, folder = saved_models.saved("qwen3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dtype = {4: torch.int4, 8: torch.int8}[bits]
        quantize_(model, IntxWeightOnlyConfig(weight_dtype=dtype, granularity=PerGroup(32)))
        found = lt.audit(model, folder)
        assert found.verdict == "noise", str(found)
        assert any(f"int{bits} rounds it" in row.detail for row in found.rows)
        model.model.layers[1].mlp.up_proj.weight.qdata[3] *= -1
        assert lt.audit(model, folder).by_status["changed"] == 1


@healthy(ROUNDED)
def torchs_own_quantised_modules():
    model, folder = saved_models.saved("convolutions")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}), folder


@healthy(ROUNDED)
def weight_norm_removed():
    layer = nn.Linear(8, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        held = state(nn.utils.weight_norm(layer))
        nn.utils.remove_weight_norm(layer)
    return layer, held


@healthy(ROUNDED)
def weight_norm_as_a_parametrization():
    layer = nn.Linear(8, 6)
    held = state(layer)
    return nn.utils.parametrizations.weight_norm(layer), held


@healthy(IDENTICAL)
def an_average_of_a_training():
    model = torch.optim.swa_utils.AveragedModel(saved_models.saved("convolutions")[0])
    return model, state(model)


@healthy(IDENTICAL)
def one_module_twice():
    block = nn.Linear(4, 4)
    model = nn.Sequential(block, block)
    return model, state(model)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("make", "verdict"), HEALTHY)
def test_d1_what_keeps_the_values_raises_no_alarm(make, verdict):
    with torch.no_grad():
        one, two = make()
    found = lt.audit(one, two)
    assert found.verdict == verdict, str(found)
    assert set(found.by_status) <= {"exact", "cast", "converted"}


def test_several_sources_are_one_side(tmp_path):
    model, _ = saved_models.saved("qwen3")
    held = state(model)
    first = {name: tensor for name, tensor in held.items() if "layers.0" in name}
    save_file(first, tmp_path / "one.safetensors")
    save_file({name: held[name] for name in held.keys() - first.keys()}, tmp_path / "two.safetensors")
    files = [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    assert lt.audit(model, files).verdict == "identical"
    with pytest.raises(lt.errors.BadArgument, match="is in more than one of the sources"):
        lt.audit(model, [files[0], files[0]])
    assert lt.audit(model, files[:1]).by_status["missing"] > 20


def test_an_adapter_merged_twice_is_held_against_its_own_configuration(tmp_path):
    make = torch.Generator().manual_seed(0)
    base, a, b = (torch.randn(*size, generator=make) for size in ((32, 32), (4, 32), (32, 4)))
    save_file({"l.lora_A.weight": a, "l.lora_B.weight": b}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text('{"lora_alpha": 8, "r": 4}')
    sources = [{"l.weight": base}, tmp_path]
    assert lt.audit({"l.weight": base + 2 * b @ a}, sources).by_status == {"converted": 1}
    (row,) = lt.audit({"l.weight": base + 4 * b @ a}, sources).rows
    assert (row.status, row.rule) == ("changed", "LoRA merged")
    assert row.detail == "base + 4 × B·A, while the adapter's configuration has 2"


def test_a_layer_that_is_frozen_on_one_side_is_noted():
    one, two = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    two.load_state_dict(one.state_dict())
    two[1].requires_grad_(False)
    found = lt.audit(one, two)
    assert found.verdict == "identical"
    assert [note.code for note in found.notes] == ["audit.frozen"]
    assert "1.weight" in found.notes[0]
    assert lt.audit(one, one).notes == ()


def test_a_buffer_of_which_nothing_can_be_known_is_named():
    model, folder = saved_models.saved("convolutions")
    (note,) = lt.audit(model, folder).notes
    assert (note.code, note.values["names"]) == ("audit.not_checked", "table")


def test_the_same_findings_in_chinese(monkeypatch):
    model, folder = saved_models.saved("qwen3")
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight.neg_()
    monkeypatch.setenv("LAYERTAP_LANG", "zh")
    lines = str(lt.audit(model, folder)).splitlines()
    assert lines[0].startswith("存在错误：Qwen3ForCausalLM 对比 ")
    assert lines[2].endswith("乘以 -1")
