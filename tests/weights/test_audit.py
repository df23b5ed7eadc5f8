"""What an audit proves, and what it finds: damages that loading passes over in silence."""

import copy
import json
import os
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

import layertap as lt
import models
from layertap import cli
from layertap.errors import BadArgument, LayertapError
from layertap.weights import STATUSES, Audit

KINDS = ["qwen3", "llama", "mixtral", "minimax_m2", "gpt2", "vit", "mamba"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Model and checkpoint of a kind, saved by transformers once."""
    made = {}

    def get(kind):
        if kind not in made:
            model, _ = getattr(models, kind)()
            folder = tmp_path_factory.mktemp(kind)
            model.save_pretrained(folder)
            made[kind] = model, folder
        model, folder = made[kind]
        return copy.deepcopy(model), folder

    return get


def rows(audit, *statuses):
    return {row.name or row.other: row for row in audit.rows if row.status in (statuses or STATUSES)}


@pytest.mark.parametrize("kind", KINDS)
def test_d1_what_transformers_saved_is_all_there(saved, kind):
    model, folder = saved(kind)
    found = lt.audit(model, folder)
    assert found.verdict == "identical", str(found)
    assert set(found.by_status) <= {"exact", "converted"}
    assert {row.name for row in found.rows} >= {name for name, _ in model.named_parameters()}
    assert lt.audit(folder, model).by_status == found.by_status


@pytest.mark.parametrize("kind", ["qwen3", "mixtral"])
def test_a_cast_is_noise_and_says_what_it_lost(saved, kind):
    model, folder = saved(kind)
    found = lt.audit(model.bfloat16(), folder)
    assert found.verdict == "noise", str(found)
    assert "float32 → bfloat16, loses 0.00" in rows(found, "cast")["model.embed_tokens.weight"].detail


def test_d1_a_mixture_that_names_its_gates_and_its_ups_apart(tmp_path):
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    model = transformers.Qwen3MoeForCausalLM(config)
    model.save_pretrained(tmp_path)
    found = lt.audit(model, tmp_path)
    assert found.verdict == "identical", str(found)
    assert found.by_status["converted"] == 4
    with torch.no_grad():  # of one expert, gate and up exchanged
        weight = model.model.layers[1].mlp.experts.gate_up_proj
        weight[2] = weight[2].roll(16, 0)
    found = lt.audit(model, tmp_path)
    assert rows(found, "changed").keys() == {"model.layers.1.mlp.experts.gate_up_proj"}
    assert "experts.2.up_proj.weight" in rows(found, "changed")["model.layers.1.mlp.experts.gate_up_proj"].detail


def test_experts_are_found_without_transformers_tables(saved):
    model, folder = saved("mixtral")
    found = lt.audit(dict(model.state_dict()), folder)
    assert found.verdict == "identical"
    stacked = rows(found, "converted")["model.layers.0.mlp.experts.gate_up_proj"]
    assert (stacked.rule, stacked.detail) == ("stacked", "8 tensors")


# Every way of damaging a model, what is seen of it, and where.


def parameter(model, name):
    return model.get_parameter(name).data


def transposed(model):
    weight = parameter(model, "model.layers.1.self_attn.q_proj.weight")
    weight.copy_(weight.t().clone())


def experts_swapped(model):
    for name in ("gate_up_proj", "down_proj"):
        weight = parameter(model, f"model.layers.0.mlp.experts.{name}")
        weight[[1, 2]] = weight[[2, 1]]


def exchanged(one, two):
    def damage(model):
        a, b = parameter(model, one), parameter(model, two)
        kept = a.clone()
        a.copy_(b)
        b.copy_(kept)

    return damage


def zeros_in_a_buffer(model):
    model.model.rotary_emb.inv_freq.zero_()


def one_row_of_the_embedding(model):
    parameter(model, "model.embed_tokens.weight")[17] += 0.1


def scaled(model):
    parameter(model, "model.layers.2.post_attention_layernorm.weight").mul_(1.5)


def not_finite(model):
    parameter(model, "model.layers.0.mlp.up_proj.weight")[3, 3] = float("nan")


def all_zero(model):
    parameter(model, "model.layers.0.mlp.up_proj.weight").zero_()


def a_stale_shard(model):
    parameter(model, "model.layers.1.mlp.down_proj.weight")[16:] = torch.randn(16, 64) * 0.02


def rows_moved(model):
    weight = parameter(model, "model.layers.1.mlp.down_proj.weight")
    weight.copy_(weight.roll(1, 0))


def left_on_meta(model):
    model.model.layers[1].mlp.up_proj.to("meta")


def newly_initialised(model):
    parameter(model, "model.layers.1.mlp.up_proj.weight").normal_(std=0.02)


DAMAGE = [
    ("qwen3", transposed, "model.layers.1.self_attn.q_proj.weight", "changed", "transposed, and nothing"),
    ("mixtral", experts_swapped, "model.layers.0.mlp.experts.down_proj", "changed", "come in another order"),
    (
        "qwen3",
        exchanged("model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight"),
        "model.layers.0.self_attn.k_proj.weight",
        "changed",
        "has the values of model.layers.0.self_attn.v_proj.weight",
    ),
    (
        "qwen3",
        exchanged("model.layers.0.mlp.gate_proj.weight", "model.layers.2.mlp.gate_proj.weight"),
        "model.layers.2.mlp.gate_proj.weight",
        "changed",
        "has the values of model.layers.0.mlp.gate_proj.weight",
    ),
    ("qwen3", zeros_in_a_buffer, "model.rotary_emb.inv_freq", "changed", "not what its module computes anew"),
    ("qwen3", one_row_of_the_embedding, "model.embed_tokens.weight", "changed", "1 of 128 rows differ (first: 17)"),
    ("qwen3", scaled, "model.layers.2.post_attention_layernorm.weight", "changed", "multiplied by 1.5"),
    ("qwen3", not_finite, "model.layers.0.mlp.up_proj.weight", "nonfinite", "1 of 2048 values are NaN or infinite"),
    ("qwen3", all_zero, "model.layers.0.mlp.up_proj.weight", "changed", "all zeros"),
    ("qwen3", a_stale_shard, "model.layers.1.mlp.down_proj.weight", "changed", "16 of 32 rows differ (16 to 31)"),
    ("qwen3", rows_moved, "model.layers.1.mlp.down_proj.weight", "changed", "32 of 32 rows in another place"),
    ("qwen3", left_on_meta, "model.layers.1.mlp.up_proj.weight", "meta", "never loaded"),
    ("qwen3", newly_initialised, "model.layers.1.mlp.up_proj.weight", "changed", "relative error"),
]


@pytest.mark.parametrize(
    ("kind", "damage", "name", "status", "detail"), DAMAGE, ids=lambda v: getattr(v, "__name__", None)
)
def test_d1_a_damage_is_a_fault_at_its_tensor(saved, kind, damage, name, status, detail):
    model, folder = saved(kind)
    with torch.no_grad():
        damage(model)
    found = lt.audit(model, folder)
    assert found.verdict == "fault"
    loud = rows(found, *(s for s in STATUSES if s not in ("exact", "converted", "cast")))
    assert name in loud, str(found)
    assert loud[name].status == status, str(found)
    assert detail in loud[name].detail
    assert len(loud) <= 3, "what was not damaged is left alone"


def changed_file(folder, tmp_path, change):
    """A copy of the checkpoint with its tensors changed."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    return tmp_path


def test_d1_missing_and_unexpected_are_named(saved, tmp_path):
    model, folder = saved("qwen3")

    def change(tensors):
        del tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["model.layers.7.extra.weight"] = torch.randn(4, 4)

    found = lt.audit(model, changed_file(folder, tmp_path, change))
    assert rows(found, "missing").keys() == {"model.layers.1.mlp.up_proj.weight"}
    assert (
        "looks newly initialised: normal, std 0.0" in found.rows[[r.status for r in found.rows].index("missing")].detail
    )
    assert rows(found, "unexpected").keys() == {"model.layers.7.extra.weight"}
    assert found.verdict == "fault"


def test_d1_another_shape_is_not_compared(saved, tmp_path):
    model, folder = saved("qwen3")

    def change(tensors):
        tensors["lm_head.weight"] = torch.randn(64, 32)

    found = lt.audit(model, changed_file(folder, tmp_path, change))
    assert rows(found, "shape")["lm_head.weight"].detail == "(64, 32) there, (128, 32) here"


def test_a_weight_that_came_loose_from_its_tied_partner_is_untied(tmp_path):
    import transformers

    config = transformers.Qwen3Config(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, head_dim=8,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.Qwen3ForCausalLM(config)
    model.save_pretrained(tmp_path)
    assert rows(lt.audit(model, tmp_path))["lm_head.weight"].rule == "tied"
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach() * 1.01)
    found = lt.audit(model, tmp_path)
    assert rows(found, "untied").keys() == {"lm_head.weight"}
    assert found.verdict == "fault"


# Forms that keep every value.


def test_forms_that_keep_the_values_are_proven():
    torch.manual_seed(0)
    q, k, v = torch.randn(32, 16), torch.randn(8, 16), torch.randn(8, 16)
    experts = [torch.randn(6, 10) for _ in range(4)]
    norm, bias = torch.randn(16), [torch.randn(5), torch.randn(3)]
    wide, tall = torch.randn(12, 20), torch.randn(20, 12)
    there = {
        "a.q.weight": q,
        "a.k.weight": k,
        "a.v.weight": v,
        "n.weight": norm,
        "b.x": bias[0],
        "b.y": bias[1],
        **{f"e.{i}.w": expert for i, expert in enumerate(experts)},
        "side.weight": wide,
        "turn.weight": tall,
        "long.weight": torch.randn(64, 4),
    }
    here = {
        "attn.qkv": torch.cat([q, k, v]),
        "renamed_norm": norm.clone(),
        "bias": torch.cat(bias),
        "experts": torch.stack(experts),
        "left": wide[:, :8].clone(),
        "turned": tall.t().contiguous(),
        "shard": there["long.weight"][16:32].clone(),
    }
    found = {row.name: row for row in lt.audit(here, there).rows if row.name}
    assert {name: (row.status, row.rule) for name, row in found.items()} == {
        "attn.qkv": ("converted", "concatenated"),
        "renamed_norm": ("exact", "renamed"),
        "bias": ("converted", "concatenated"),
        "experts": ("converted", "stacked"),
        "left": ("converted", "shard"),
        "turned": ("converted", "transposed"),
        "shard": ("converted", "shard"),
    }
    assert found["attn.qkv"].other == "a.q.weight + a.k.weight + a.v.weight" or "a.k.weight" in found["attn.qkv"].other
    assert found["shard"].detail.startswith("rows 16 to 31 of 64; the others are nowhere in this model")


def test_a_transposed_stack_of_experts():
    experts = [torch.randn(6, 10) for _ in range(3)]
    there = {f"e.{i}.w": expert for i, expert in enumerate(experts)}
    (row,) = lt.audit({"experts": torch.stack([expert.t() for expert in experts])}, there).rows
    assert (row.status, row.rule, row.detail) == ("converted", "stacked", "3 tensors, transposed")


def test_a_square_matrix_is_taken_as_transposed_only_where_others_show_it():
    square, oblong = torch.randn(16, 16), torch.randn(16, 24)
    there = {"a.weight": square, "b.weight": oblong}
    alone = lt.audit({"a.weight": square.t().contiguous(), "b.weight": oblong}, there)
    assert rows(alone, "changed").keys() == {"a.weight"}
    together = lt.audit({"a.weight": square.t().contiguous(), "b.weight": oblong.t().contiguous()}, there)
    assert together.verdict == "identical"
    assert together.by_status == {"converted": 2}


def test_rope_layouts_are_recognised_and_other_orders_are_not():
    weight = torch.randn(64, 24)
    turned = weight.view(4, 8, 2, 24).transpose(1, 2).reshape(64, 24)
    (row,) = lt.audit({"q.weight": turned}, {"q.weight": weight}).rows
    assert (row.status, row.rule) == ("converted", "rows permuted")
    assert "heads of 16" in row.detail
    (row,) = lt.audit({"q.weight": weight[torch.randperm(64)]}, {"q.weight": weight}).rows
    assert (row.status, row.rule) == ("changed", "rows permuted")


def test_quantised_and_merged_weights_are_what_they_stand_for():
    torch.manual_seed(0)
    values = torch.randn(32, 64)
    scale = values.abs().amax(1) / 127
    small = (values / scale[:, None]).round().clamp(-127, 127).to(torch.int8)
    a, b = torch.randn(4, 64), torch.randn(32, 4)
    there = {"w.weight": small, "w.weight_scale": scale, "l.weight": values, "l.lora_A.weight": a, "l.lora_B.weight": b}
    here = {"w.weight": small.float() * scale[:, None], "l.weight": values + 2 * b @ a}
    found = rows(lt.audit(here, there))
    assert (found["w.weight"].status, found["w.weight"].rule) == ("converted", "dequantised")
    assert (found["l.weight"].rule, found["l.weight"].detail[:14]) == ("LoRA merged", "base + 2 × B·A")
    spoilt = rows(lt.audit({**here, "w.weight": here["w.weight"].roll(1, 0)}, there))
    assert spoilt["w.weight"].status == "changed"


# Where weights lie.


def test_checkpoints_in_every_form(saved, tmp_path):
    import torch.distributed.checkpoint as dcp

    model, folder = saved("qwen3")
    state = model.state_dict()
    sharded, plain, spread = tmp_path / "sharded", tmp_path / "plain.pt", tmp_path / "dcp"
    model.save_pretrained(sharded, max_shard_size="20KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    torch.save({"state_dict": state, "step": 3}, plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process, as meant
        dcp.save({"model": state}, checkpoint_id=spread)
    for source in (folder / "model.safetensors", sharded, sharded / "model.safetensors.index.json", plain, spread):
        assert lt.audit(model, source).verdict == "identical", source
    assert lt.audit(folder, sharded).verdict == "identical"


def test_a_pickle_with_code_is_refused(tmp_path):
    import pickle

    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    (tmp_path / "x.bin").write_bytes(pickle.dumps({"w": Payload()}))
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / ".metadata").write_bytes(pickle.dumps(Payload()))
    for source in (tmp_path / "x.bin", tmp_path / "d"):
        with pytest.raises(BadArgument, match="damaged, or not"):
            lt.audit({"w": torch.ones(1)}, source)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere", "there is no .*nowhere; give a checkpoint file"),
        (3, "audit takes a model, a state dict, the path of a checkpoint, or a list of these on either side, got int"),
        ({"a": 1}, "the mapping contains no tensors"),
    ],
)
def test_what_is_no_checkpoint_says_so(source, message):
    with pytest.raises(BadArgument, match=message):
        lt.audit(nn.Linear(2, 2), source)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("name", ["x.safetensors", "x.bin", "model.safetensors.index.json", "plain"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(LayertapError, match=r"not a regular file|of an unknown kind"):
        lt.audit({"w": torch.ones(1)}, tmp_path / name)


def test_names_of_tensors_do_not_command_the_terminal(tmp_path):
    save_file({"\x1b[2Jw": torch.ones(2)}, tmp_path / "x.safetensors")
    found = CliRunner().invoke(cli.app, ["audit", str(tmp_path / "x.safetensors"), str(tmp_path / "x.safetensors")])
    assert found.exit_code == 0
    assert "\x1b" not in found.stdout


def test_a_shard_that_is_not_there_is_named(saved, tmp_path):
    model, _ = saved("qwen3")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    next(tmp_path.glob("model-00002*.safetensors")).unlink()
    with pytest.raises(BadArgument, match="which is not there: the download or copy is incomplete"):
        lt.audit(model, tmp_path)


# The result.


def test_the_result_is_data(saved, tmp_path):
    import pickle

    model, folder = saved("mixtral")
    experts_swapped(model)
    found = lt.audit(model, folder)
    assert pickle.loads(pickle.dumps(found)) == found
    found.to_json(tmp_path / "audit.json")
    assert Audit.from_dict(json.loads((tmp_path / "audit.json").read_text())) == found


def test_layers_fold_and_what_stands_out_comes_first(saved):
    model, folder = saved("qwen3")
    scaled(model)
    lines = str(lt.audit(model, folder)).splitlines()
    assert lines[0].startswith("FAULT: Qwen3ForCausalLM against ")
    assert lines[2].split() == [
        "changed",
        "model.layers.2.post_attention_layernorm.weight",
        "scaled:",
        "multiplied",
        "by",
        "1.5",
    ]
    assert any("model.layers.[0-2].mlp.up_proj.weight (3 ×)" in line for line in lines)


def test_the_class_that_was_built_is_held_against_the_one_that_was_saved(saved, tmp_path):
    model, folder = saved("qwen3")
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["PrunedForCausalLM"]
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_pruned.PrunedForCausalLM"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = lt.audit(model, tmp_path)
    assert found.verdict == "fault"
    assert "a Qwen3ForCausalLM was built; the checkpoint was written by PrunedForCausalLM" in found.faults
    assert any("modeling_pruned.PrunedForCausalLM" in fault for fault in found.faults)


def test_a_skip_that_the_class_ignores_is_named(saved):
    model, folder = saved("qwen3")
    model.config.per_layer_config = {"1": {"skip": ["mlp"]}}
    found = lt.audit(model, folder)
    assert found.verdict == "fault"
    assert found.faults[0].startswith("the configuration asks to skip model.layers.1.mlp (per_layer_config), and Qwen3")


def test_a_tensor_larger_than_a_block_is_read_in_pieces(tmp_path, monkeypatch):
    from layertap.weights import checkpoints, hashes

    monkeypatch.setattr(checkpoints, "BLOCK", 256)
    monkeypatch.setattr(hashes, "PIECE", 64)
    weight = torch.randn(37, 11)
    save_file({"a": weight}, tmp_path / "x.safetensors")
    assert lt.audit({"a": weight}, tmp_path / "x.safetensors").verdict == "identical"
    assert lt.audit({"b": weight[5:30].clone()}, tmp_path / "x.safetensors").rows[0].detail == "rows 5 to 29 of 37"
    assert lt.audit({"b": weight.t().contiguous()}, tmp_path / "x.safetensors").rows[0].rule == "transposed"


def test_details_that_differ_in_their_numbers_fold_and_outliers_do_not():
    torch.manual_seed(0)
    there = {f"layers.{i}.w": torch.randn(16, 24) for i in range(6)}
    here = {name: weight + 1e-3 * torch.randn_like(weight) for name, weight in there.items()}
    here["layers.4.w"] += 0.1 * torch.randn(16, 24)
    lines = str(lt.audit(here, there)).splitlines()[2:]
    assert len(lines) == 2, lines
    assert lines[0].startswith("changed    layers.[0-3,5].w (5 ×)  relative error 0.000")
    assert " to 0.00" in lines[0]
    assert lines[1].startswith("changed    layers.4.w  relative error 0.")
    moved = {f"layers.{i}.w": there[f"layers.{i - 1}.w"] if i else there["layers.5.w"] for i in range(6)}
    lines = str(lt.audit(moved, there)).splitlines()[2:]
    assert lines == ["changed    layers.[0-5].w (6 ×)  has the values of layers.[0-5].w"]


LIMITED = """
import resource, sys
from pathlib import Path
import torch
from layertap.weights import audit

def peak():
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("VmHWM"))
    return int(line.split()[1]) // 1024

audit({"w": torch.ones(2)}, {"w": torch.ones(2)})
before = peak()
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
found = audit(sys.argv[1], sys.argv[2])
print(found.verdict, sum(row.status == "changed" for row in found.rows), peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads the peak from /proc")
@pytest.mark.parametrize("form", ["safetensors", "pt", "stacked"])
def test_a_checkpoint_larger_than_what_an_audit_takes(tmp_path, form):
    import subprocess
    import sys

    for side in "ab":
        torch.manual_seed(0)
        tensors = {f"layers.{i}.w": torch.randn(1 << 12, 1 << 12) for i in range(12)}  # 768 MiB
        tensors["layers.5.w"][3] *= 1 + (side == "b")
        if form == "stacked" and side == "b":
            tensors = {"stack": torch.stack(list(tensors.values()))}
        file = tmp_path / f"{side}.{'pt' if form == 'pt' else 'safetensors'}"
        torch.save(tensors, file) if form == "pt" else save_file(tensors, file)
        del tensors
    files = sorted(file for file in tmp_path.iterdir())
    done = subprocess.run([sys.executable, "-c", LIMITED, *files], capture_output=True, text=True, check=True)
    verdict, changed, grown = done.stdout.split()
    assert verdict == "fault"
    assert form == "stacked" or int(changed) == 1
    assert int(grown) < 300, "MiB beyond what importing takes, for 1,536 MiB"


def test_tensors_of_torchs_files_are_found_where_they_lie(tmp_path):
    weight = torch.randn(6, 8)
    state = {
        "a": weight,
        "view": weight[2:4],
        "turned": weight.t(),
        "scalar": torch.tensor(3),
        "none": torch.ones(0, 4),
    }
    state |= {
        "bf16": torch.randn(3).bfloat16(),
        "flag": torch.tensor([True, False]),
        "z": torch.randn(2).to(torch.cfloat),
    }
    torch.save({"model": state, "optimizer": {"m": torch.ones(2)}}, tmp_path / "new.pt")
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for name in ("new.pt", "old.pt"):
        found = lt.audit(state, tmp_path / name)
        assert found.by_status == {"exact": len(state)}, str(found)
    from layertap.weights.torch_files import torch_entries

    placed = torch_entries(tmp_path / "new.pt")
    assert placed["view"].stored is not None
    assert torch.equal(placed["turned"].read(), weight.t())
