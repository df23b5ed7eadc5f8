"""Damages of many kinds: each is a fault (or what else it is) at its own tensor, and leaves the others alone."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import layertap as lt
import saved_models

LAYER = "model.layers.1."
DAMAGES = []


def damage(kind, name, status="changed", detail="", *, of="model", rows=1, verdict="fault"):
    """Registers a function that damages a model or a checkpoint's tensors: which row is then loud, and how."""

    def register(change):
        DAMAGES.append(pytest.param(kind, of, change, name, status, detail, rows, verdict, id=change.__name__))
        return change

    return register


def weight(model, name):
    return model.get_parameter(name).data


def exchange(one, two):
    kept = one.clone()
    one.copy_(two)
    two.copy_(kept)


@damage("qwen3", LAYER + "self_attn.q_proj.weight", detail="transposed, and nothing")
def square_transposed(model):
    own = weight(model, LAYER + "self_attn.q_proj.weight")
    own.copy_(own.t().clone())


@damage("qwen3", "model.rotary_emb.inv_freq", detail="not what its module computes anew: relative error")
def rope_of_another_theta(model):
    model.model.rotary_emb.inv_freq.copy_(1e6 ** -(torch.arange(0, 8, 2) / 8))


@damage("qwen3", "model.rotary_emb.inv_freq", "cast", "float32 → bfloat16 → float32", verdict="noise")
def rope_through_bf16(model):
    model.model.rotary_emb.inv_freq.copy_(model.model.rotary_emb.inv_freq.bfloat16().float())


@damage("qwen3", LAYER + "mlp.gate_proj.weight", detail="has the values of model.layers.1.mlp.up_proj", rows=2)
def gate_and_up_exchanged(model):
    exchange(weight(model, LAYER + "mlp.gate_proj.weight"), weight(model, LAYER + "mlp.up_proj.weight"))


@damage("phi3", LAYER + "self_attn.qkv_proj.weight", detail="48 of 64 rows in another place")
def fused_in_another_order(model):
    own = weight(model, LAYER + "self_attn.qkv_proj.weight")
    q, k, v = own.split([32, 16, 16])
    own.copy_(torch.cat([k, q, v]))


@damage("gpt2", "transformer.h.1.attn.c_attn.weight", detail="3 runs of rows in another order")
def fused_columns_in_another_order(model):
    own = weight(model, "transformer.h.1.attn.c_attn.weight")
    q, k, v = own.chunk(3, 1)
    own.copy_(torch.cat([k, q, v], 1))


@damage("qwen3", LAYER + "self_attn.k_proj.weight", detail="8 of 16 rows differ (8 to 15)")
def one_head_of_keys_repeated(model):
    own = weight(model, LAYER + "self_attn.k_proj.weight")
    own[8:] = own[:8].clone()


@damage("mixtral", LAYER + "mlp.experts.down_proj", detail="another order")
def experts_rolled(model):
    own = weight(model, LAYER + "mlp.experts.down_proj")
    own.copy_(own.roll(1, 0))


@damage("mixtral", LAYER + "mlp.experts.down_proj", detail="model.layers.0.block_sparse_moe.experts.2.w2")
def an_expert_of_another_layer(model):
    weight(model, LAYER + "mlp.experts.down_proj")[2] = weight(model, "model.layers.0.mlp.experts.down_proj")[2]


@damage(
    "qwen3_moe", LAYER + "mlp.experts.down_proj", detail="1 of the 4 tensors that it should be made of are not in it"
)
def one_expert_twice(model):
    own = weight(model, LAYER + "mlp.experts.down_proj")
    own[3] = own[2].clone()


@damage("qwen3_moe", LAYER + "mlp.experts.gate_up_proj", detail="experts.3.gate_proj.weight + model.layers.1")
def one_expert_zero(model):
    weight(model, LAYER + "mlp.experts.gate_up_proj")[3] = 0


@damage("mixtral", LAYER + "mlp.gate.weight", detail="2 of 4 rows in another place")
def router_rows_exchanged(model):
    own = weight(model, LAYER + "mlp.gate.weight")
    own[[0, 1]] = own[[1, 0]]


@damage("qwen3", "model.embed_tokens.weight", detail="127 of 128 rows differ (1 to 127)")
def embedding_one_row_late(model):
    own = weight(model, "model.embed_tokens.weight")
    own[1:] = own[:-1].clone()


@damage("qwen3", "model.layers.2.mlp.up_proj.weight", detail="has the values of model.layers.1", rows=11)
def a_layer_twice(model):
    for own, other in zip(model.model.layers[2].parameters(), model.model.layers[1].parameters(), strict=True):
        own.data.copy_(other.data)


@damage("qwen3", "model.layers.0.mlp.up_proj.weight", detail="has the values of model.layers.2", rows=22)
def layers_in_reverse(model):
    model.model.layers = nn.ModuleList(list(model.model.layers)[::-1])


@damage("qwen3", LAYER + "self_attn.o_proj.weight", detail="multiplied by -1")
def sign_flipped(model):
    weight(model, LAYER + "self_attn.o_proj.weight").neg_()


@damage("qwen3", LAYER + "mlp.down_proj.weight", "nonfinite", "64 of 2048 values")
def a_row_of_nan(model):
    weight(model, LAYER + "mlp.down_proj.weight")[5] = float("nan")


@damage("qwen3", LAYER + "mlp.down_proj.weight", detail="1 of 32 rows differ (first: 3)")
def one_bit(model):
    weight(model, LAYER + "mlp.down_proj.weight").view(torch.int32)[3, 4] ^= 1


@damage("qwen3", LAYER + "input_layernorm.weight", detail="relative error")
def norm_without_its_one(model):
    weight(model, LAYER + "input_layernorm.weight").sub_(1)


@damage("qwen3", "lm_head.weight", detail="has the values of model.embed_tokens.weight")
def tied_by_mistake(model):
    model.lm_head.weight = model.model.embed_tokens.weight


@damage("tied", "lm_head.weight", "untied", "its tied partner")
def untied_by_mistake(model):
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach() + 0.01)


@damage("mamba", "backbone.layers.0.mixer.A_log", detail="multiplied by -1")
def decay_of_the_wrong_sign(model):
    weight(model, "backbone.layers.0.mixer.A_log").neg_()


@damage("mamba", "backbone.layers.1.mixer.conv1d.weight", detail="rows in another order")
def kernel_flipped(model):
    own = weight(model, "backbone.layers.1.mixer.conv1d.weight")
    own.copy_(own.flip(-1))


@damage("convolutions", "bn.running_mean", detail="all zeros")
def running_mean_fresh(model):
    model.bn.running_mean.zero_()


@damage("convolutions", "bn.num_batches_tracked", detail="relative error")
def a_counter_that_moved(model):
    model.bn.num_batches_tracked.fill_(7)


@damage("convolutions", "body.1.0.weight", detail="rows in another order")
def channels_in_and_out_exchanged(model):
    own = weight(model, "body.1.0.weight")
    own.copy_(own.transpose(0, 1).clone())


@damage("qwen3", LAYER + "mlp.up_proj.weight", "meta", "never loaded")
def left_without_memory(model):
    model.model.layers[1].mlp.up_proj.to("meta")


@damage("qwen3", "model.layers.3.mlp.up_proj.weight", "unexpected", "nothing in the model", of="file", rows=11)
def one_layer_too_many(tensors):
    tensors.update({name.replace(".2.", ".3."): tensors[name] * 2 for name in list(tensors) if ".2." in name})


@damage("qwen3", "model.embed_tokens.weight", "shape", "more are not zero", of="file", rows=1)
def a_vocabulary_that_grew(tensors):
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"][:100].clone()


@damage("qwen3", "lm_head.weight", "converted", "nowhere in this model", of="file", verdict="inconclusive")
def a_vocabulary_that_was_cut(tensors):
    tensors["lm_head.weight"] = torch.cat([tensors["lm_head.weight"], torch.ones(128, 32)])


@damage("qwen3", LAYER + "mlp.up_proj.weight", detail="multiplied by", of="file")
def eight_bits_without_their_scale(tensors):
    own = tensors[LAYER + "mlp.up_proj.weight"]
    tensors[LAYER + "mlp.up_proj.weight"] = (own * (448 / own.abs().max())).to(torch.float8_e4m3fn)


@damage("qwen3", LAYER + "mlp.up_proj.weight", detail="multiplied by 0.5: the scales are not those", of="file")
def scales_of_other_values(tensors):
    own = tensors[LAYER + "mlp.up_proj.weight"]
    scale = own.abs().amax(1) / 127
    tensors[LAYER + "mlp.up_proj.weight"] = (own / scale[:, None]).round().to(torch.int8)
    tensors[LAYER + "mlp.up_proj.weight_scale"] = scale * 2


@damage("mixtral", LAYER + "mlp.experts.gate_up_proj", detail="gate_up_proj is read as w1, w3", of="file", rows=2)
def gate_and_up_of_all_experts(tensors):
    for one in [name for name in tensors if ".w1." in name]:
        two = one.replace("w1", "w3")
        tensors[one], tensors[two] = tensors[two], tensors[one]


@damage("qwen3", LAYER + "self_attn.q_proj.weight", detail="k_proj.weight, which has to lie alike", of="file", rows=3)
def queries_alone_in_the_other_rope_layout(tensors):
    for name in [name for name in tensors if "q_proj" in name]:
        tensors[name] = tensors[name].view(4, 2, 4, 32).transpose(1, 2).reshape(32, 32)


@damage("qwen3", LAYER + "self_attn.k_proj.weight", detail="both sides are of the class qwen3", of="file", rows=6)
def queries_and_keys_in_the_other_rope_layout(tensors):
    for name in [name for name in tensors if "q_proj" in name or "k_proj" in name]:
        heads = len(tensors[name]) // 8
        tensors[name] = tensors[name].view(heads, 2, 4, 32).transpose(1, 2).reshape(tensors[name].shape)


@damage("qwen3", LAYER + "mlp.up_proj.weight", detail="transposed, unlike 2 others of its kind", of="file")
def one_of_a_kind_transposed(tensors):
    tensors[LAYER + "mlp.up_proj.weight"] = tensors[LAYER + "mlp.up_proj.weight"].t()


@damage("qwen3", LAYER + "mlp.up_proj.weight", "shape", "the same values in one row", of="file")
def rows_and_columns_reread(tensors):
    tensors[LAYER + "mlp.up_proj.weight"] = tensors[LAYER + "mlp.up_proj.weight"].reshape(32, 64)


@damage("bert", "embeddings.word_embeddings.weight", detail="1 of 128 rows differ (first: 3)", of="file")
def one_word(tensors):
    tensors["embeddings.word_embeddings.weight"][3] += 1


@pytest.mark.parametrize(("kind", "of", "change", "name", "status", "detail", "rows", "verdict"), DAMAGES)
def test_d1_a_damage_is_seen_where_it_is(tmp_path, kind, of, change, name, status, detail, rows, verdict):
    model, folder = saved_models.saved(kind)
    if of == "model":
        with torch.no_grad():
            change(model)
    else:
        tensors = saved_models.tensors(folder)
        change(tensors)
        for file in folder.glob("*.json"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
        save_file({key: value.contiguous() for key, value in tensors.items()}, tmp_path / "model.safetensors")
        folder = tmp_path
    found = lt.audit(model, folder)
    loud = {row.name or row.other: row for row in found.rows if row.weighs == verdict}
    assert found.verdict == verdict, str(found)
    assert name in loud, str(found)
    assert loud[name].status == status
    assert detail in loud[name].detail
    assert len(loud) == rows, "what was not damaged is left alone"
