"""What is proven of each tensor by itself, and is still wrong beside the others."""

import pytest
import torch
from torch import nn

import layertap as lt


def checkpoint(layers=4, seed=0):
    make = torch.Generator().manual_seed(seed)
    names = {"q_proj": 32, "k_proj": 16, "v_proj": 16, "gate_proj": 48, "up_proj": 48}
    return {
        f"layers.{layer}.{name}.weight": torch.randn(rows, 32, generator=make)
        for layer in range(layers)
        for name, rows in names.items()
    }


def fused(saved, order=("q_proj", "k_proj", "v_proj"), odd=None, odd_order=()):
    state = {}
    for layer in range(4):
        parts = odd_order if layer == odd else order
        state[f"layers.{layer}.qkv_proj.weight"] = torch.cat([saved[f"layers.{layer}.{part}.weight"] for part in parts])
        gates = [saved[f"layers.{layer}.{part}.weight"] for part in ("gate_proj", "up_proj")]
        state[f"layers.{layer}.gate_up_proj.weight"] = torch.cat(gates)
    return state


def changed(audit):
    return {row.name: row.detail for row in audit.rows if row.status == "changed"}


def test_fused_tensors_show_their_parts_in_order():
    saved = checkpoint()
    found = lt.audit(fused(saved), saved)
    assert found.by_status == {"converted": 8}
    assert found.rows[0].other == "layers.0.q_proj.weight + layers.0.k_proj.weight + layers.0.v_proj.weight"


def test_parts_in_another_order_in_every_layer():
    saved = checkpoint()
    found = lt.audit(fused(saved, ("q_proj", "v_proj", "k_proj")), saved)
    assert found.by_status == {"changed": 4, "converted": 4}
    assert "qkv_proj is read as q_proj, k_proj, v_proj" in changed(found)["layers.0.qkv_proj.weight"]


def test_a_class_says_how_it_reads_what_it_fuses():
    class Model(nn.Module):
        packed_modules_mapping = {"mixed": ["one", "two"]}  # noqa: RUF012  as vLLM's classes have it

        def __init__(self):
            super().__init__()
            self.mixed = nn.Linear(6, 10, bias=False)

    model, one, two = Model(), torch.randn(4, 6), torch.randn(6, 6)
    saved = {"one.weight": one, "two.weight": two}
    with torch.no_grad():
        model.mixed.weight.copy_(torch.cat([one, two]))
        assert lt.audit(model, saved).verdict == "identical"
        model.mixed.weight[3, 2] += 1
        assert "1 of 10 rows differ (first: 3)" in changed(lt.audit(model, saved))["mixed.weight"]
        model.mixed.weight.copy_(torch.cat([two, one]))
    assert "mixed is read as one, two" in changed(lt.audit(model, saved))["mixed.weight"]


def test_one_layer_fused_in_another_order_without_a_name_that_says_so():
    saved = {name.replace("_proj", ""): weight for name, weight in checkpoint().items()}
    state = {}
    for layer in range(4):
        order = "vkq" if layer == 2 else "qkv"
        state[f"layers.{layer}.mix"] = torch.cat([saved[f"layers.{layer}.{part}.weight"] for part in order])
        for part in ("gate", "up"):
            state[f"layers.{layer}.{part}.weight"] = saved[f"layers.{layer}.{part}.weight"]
    found = lt.audit(state, saved)
    assert set(changed(found)) == {"layers.2.mix"}
    assert "unlike 3 others of its kind (concatenated from q, k, v; layers.0.mix)" in changed(found)["layers.2.mix"]


@pytest.mark.parametrize("axis", [0, 1])
def test_the_shard_of_another_rank(axis):
    saved = checkpoint()
    state = {name: weight.chunk(2, axis)[1].contiguous() for name, weight in saved.items()}
    assert lt.audit(state, saved).verdict == "identical"
    state["layers.3.v_proj.weight"] = saved["layers.3.v_proj.weight"].chunk(2, axis)[0].contiguous()
    assert changed(lt.audit(state, saved)) == {
        "layers.3.v_proj.weight": "the shard of rank 0 of 2, where 19 tensors are of rank 1"
    }


def test_rows_in_another_layout_in_one_layer_alone():
    saved = checkpoint()
    state = dict(saved)
    weight = saved["layers.1.q_proj.weight"]
    state["layers.1.q_proj.weight"] = weight.view(4, 2, 4, 32).transpose(1, 2).reshape(32, 32)
    found = lt.audit(state, saved)
    assert set(changed(found)) == {"layers.1.q_proj.weight"}
    for layer in range(4):
        name = f"layers.{layer}.q_proj.weight"
        state[name] = saved[name].view(4, 2, 4, 32).transpose(1, 2).reshape(32, 32)
    found = lt.audit(state, saved)  # of queries alone: keys have to lie as they do
    assert changed(found).keys() == {f"layers.{layer}.q_proj.weight" for layer in range(4)}
    assert "k_proj.weight, which has to lie alike (as it is there)" in changed(found)["layers.0.q_proj.weight"]
    for layer in range(4):
        name = f"layers.{layer}.k_proj.weight"
        state[name] = saved[name].view(2, 2, 4, 32).transpose(1, 2).reshape(16, 32)
    assert lt.audit(state, saved).verdict == "identical"


def test_tensors_of_one_value_under_names_that_say_nothing():
    ones = {f"norm.{i}": torch.ones(8) for i in range(3)}
    assert lt.audit({f"w{i}": torch.ones(8) for i in range(3)}, ones).verdict == "identical"
    assert lt.audit({f"w{i}": torch.ones(8) for i in range(2)}, ones).verdict != "identical"


# Casts that are more than one rounding.


def test_through_a_coarser_dtype_and_back():
    weight = torch.randn(64, 64)
    (row,) = lt.audit({"w": weight.bfloat16().float()}, {"w": weight}).rows
    assert (row.status, row.detail[:29]) == ("cast", "float32 → bfloat16 → float32,")
    (row,) = lt.audit({"w": weight.to(torch.float8_e4m3fn).float()}, {"w": weight}).rows
    assert (row.status, row.detail[:29]) == ("changed", "through float8_e4m3fn and bac")


def test_digits_that_were_cut_off():
    weight = torch.randn(64, 64)
    cut = (weight.view(torch.int32) >> 16 << 16).view(torch.float32).bfloat16()
    (row,) = lt.audit({"w": cut}, {"w": weight}).rows
    assert (row.status, row.rule) == ("cast", "cast")
    assert "digits cut off" in row.detail


def test_an_overflow_says_what_did_not_fit():
    weight = torch.randn(8, 8)
    weight[2, 2] = 1e5
    (row,) = lt.audit({"w": weight.half()}, {"w": weight}).rows
    assert row.status == "nonfinite"
    assert (
        row.detail
        == "1 of 64 values are NaN or infinite; the other side has none, its largest value is 1e+05 (float16 here)"
    )


def test_a_live_quantised_model_is_what_its_original_rounds_to():
    torchao = pytest.importorskip("torchao.quantization")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 32, bias=False)).bfloat16()
    saved = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    torchao.quantize_(net, torchao.Int8WeightOnlyConfig())
    found = lt.audit(net, saved)
    assert (found.verdict, {row.rule for row in found.rows}) == ("noise", {"quantised"}), str(found)
    saved["1.weight"][3] *= -1
    assert changed(lt.audit(net, saved)).keys() == {"1.weight"}


def test_eight_bit_values_with_zero_points_and_with_one_scale_a_row():
    values = torch.rand(16, 32)
    scale, zero = values.amax(1) / 255, torch.full((16,), 3, dtype=torch.uint8)
    small = ((values / scale[:, None]).round() + 3).clamp(0, 255).to(torch.uint8)
    there = {"w.weight": small, "w.weight_scale": scale, "w.weight_zero_point": zero}
    here = {"w.weight": (small.float() - 3) * scale[:, None]}
    found = lt.audit(here, there)
    assert [(row.status, row.rule) for row in found.rows] == [("converted", "dequantised")]
