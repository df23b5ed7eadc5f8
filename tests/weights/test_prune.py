"""Branches that are skipped: gone round or removed, the same bits, and a cache that still counts."""

import copy
import json

import pytest
import torch
import transformers
from torch import nn

import layertap as lt
import models
import saved_models
from layertap.errors import BadArgument
from layertap.weights import load_pruned, save_pruned
from layertap.weights.skip import bypass, restore

KINDS = ["qwen3", "llama", "mixtral", "minimax_m2", "gpt2"]


def opt():
    torch.manual_seed(0)
    config = transformers.OPTConfig(
        vocab_size=128, hidden_size=32, ffn_dim=64, num_hidden_layers=3, num_attention_heads=4, word_embed_proj_dim=32,
        max_position_embeddings=128,
    )  # fmt: skip
    ids = torch.randint(0, 128, (2, 9))
    return transformers.OPTForCausalLM(config).eval(), {"input_ids": ids}


def made(kind):
    return opt() if kind == "opt" else getattr(models, kind)()


def logits(model, inputs):
    with torch.no_grad():
        return model(**inputs).logits


@pytest.mark.parametrize("kind", [*KINDS, "opt"])
def test_d2_going_round_and_removing_give_the_same_bits(kind):
    model, inputs = made(kind)
    whole, before = logits(model, inputs), {name: t.clone() for name, t in model.state_dict().items()}
    small = lt.prune(model, "attention[:1] mlp[n//2:]", how="physical")
    with lt.prune(model, "attention[:1] mlp[n//2:]") as handle:
        pruned = logits(model, inputs)
        assert [b.kind for b in handle.plan.branches][:1] == ["attention"]
    assert torch.equal(pruned, logits(small, inputs))
    assert not torch.equal(pruned, whole)
    assert torch.equal(logits(model, inputs), whole), "undone, it is what it was"
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert small.num_parameters() < model.num_parameters()
    gone = set(before) - set(small.state_dict())
    assert gone
    assert all(any(name.startswith(f"{path}.") for b in handle.plan.branches for path in b.members) for name in gone)


def residual(model, inputs, skipped):
    """What is right: a decoder written out, without the branches."""
    with torch.no_grad():
        base = model.model
        hidden = base.embed_tokens(inputs["input_ids"])
        positions = base.rotary_emb(hidden, torch.arange(hidden.shape[1])[None])
        mask = torch.full((hidden.shape[1],) * 2, torch.finfo(hidden.dtype).min).triu(1)[None, None]
        for index, layer in enumerate(base.layers):
            if ("attention", index) not in skipped:
                given = layer.input_layernorm(hidden)
                hidden = hidden + layer.self_attn(given, position_embeddings=positions, attention_mask=mask)[0]
            if ("mlp", index) not in skipped:
                hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return model.lm_head(base.norm(hidden))


def test_d3_the_documents_rule_is_what_a_model_written_out_gives():
    model, inputs = models.qwen3(layers=8)
    inputs = {"input_ids": inputs["input_ids"]}
    skipped = {("attention", i) for i in range(3)} | {("mlp", i) for i in range(4, 8)}
    with lt.prune(model, "attention[:3] mlp[n//2:]"):
        found = logits(model, inputs)
    assert torch.allclose(found, residual(model, inputs, skipped), atol=1e-5)


@pytest.mark.parametrize("how", ["bypass", "physical"])
@pytest.mark.parametrize("kind", [*KINDS, "opt"])
def test_d5_generating_with_a_cache_is_generating_without_one(kind, how):
    model, inputs = made(kind)
    pruned = lt.prune(model, "attention[:1] mlp[1]", how=how)
    model = pruned if how == "physical" else model
    ids = inputs["input_ids"][:1, :5]
    how = dict(max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=None)
    cached = model.generate(ids, use_cache=True, **how)
    assert torch.equal(cached, model.generate(ids, use_cache=False, **how))
    with torch.no_grad():
        cache = model(ids, use_cache=True).past_key_values
    assert cache.get_seq_length() == 5, "a skipped first layer still counts its tokens"


def test_a_compiled_model_is_pruned_and_restored():
    model, inputs = models.qwen3()
    compiled = torch.compile(model, backend="eager")
    whole = logits(compiled, inputs)
    with lt.prune(model, {"model.layers.0.self_attn": "skip"}):
        assert torch.equal(logits(compiled, inputs), logits(model, inputs))
        assert not torch.equal(logits(compiled, inputs), whole)
    assert torch.equal(logits(compiled, inputs), whole)


@pytest.mark.parametrize("kind", ["qwen3", "mixtral"])
def test_d3_saved_and_loaded_it_is_still_pruned(kind, tmp_path):
    model, inputs = made(kind)
    small = lt.prune(model, "attention[:1] mlp[1:]", how="physical")
    save_pruned(small, tmp_path)
    again = load_pruned(tmp_path)
    assert torch.equal(logits(again, inputs), logits(small, inputs))
    assert set(again.state_dict()) == set(small.state_dict())
    assert lt.audit(again, tmp_path).verdict == "identical"
    assert json.loads((tmp_path / "config.json").read_text())["layertap_pruning"]["model.layers.0.self_attn"] == "skip"


def test_d3_loaded_by_accident_as_a_whole_model_it_is_found(tmp_path):
    model, _ = models.qwen3()
    save_pruned(lt.prune(model, "mlp[1]", how="physical"), tmp_path)
    stock = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    found = lt.audit(stock, tmp_path)
    assert found.verdict == "fault"
    assert found.by_status["missing"] == 3
    assert "model.layers.1.mlp" in found.faults[0]
    assert "load_pruned" in found.faults[0]


def test_a_model_that_goes_round_its_branches_is_saved_without_them(tmp_path):
    model, inputs = models.qwen3()
    with lt.prune(model, "mlp[1]") as handle:
        save_pruned(handle, tmp_path)
        pruned = logits(model, inputs)
    assert torch.equal(logits(load_pruned(tmp_path), inputs), pruned)
    assert "model.layers.1.mlp.up_proj.weight" in model.state_dict()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return x + self.two(torch.relu(self.one(x)))


def test_any_other_model_by_site(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).eval()
    x = torch.randn(3, 8)
    small = lt.prune(model, {"1.two": "skip"}, how="physical", inputs=x)
    assert torch.equal(small(x), model[0](x))
    save_pruned(small, tmp_path, inputs=x)
    assert torch.equal(load_pruned(tmp_path, copy.deepcopy(model), inputs=x)(x), small(x))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("heads[:3]", r"'heads\[:3\]' is not part of a plan; expected attention, attn, mlp, block"),
        ("mlp[n//0:]", r"'n//0:' is not a layer or a range; n is the number of layers \(3\)"),
        ("mlp[7]", r"there is no layer 7, the model has 3"),
        ("mlp[__import__('os')]", "is not a layer or a range"),
        ({"model.layers.9.mlp": "skip"}, r"is not a branch of the model; it has model.layers.\[0-2\].self_attn"),
        ({"model.layers.1.mlp": "remove"}, "'remove' is not an action of a plan; expected 'skip'"),
        ("mlp[3:]", "the plan skips nothing"),
        (3, "a plan is text or a mapping of paths to 'skip', got int"),
    ],
)
def test_a_plan_that_means_nothing_says_why(plan, message):
    model, _ = models.qwen3()
    with pytest.raises(BadArgument, match=message):
        lt.prune(model, plan)


def test_a_branch_is_not_skipped_twice_and_undo_is_idempotent():
    model, inputs = models.qwen3()
    whole = logits(model, inputs)
    handle = lt.prune(model, "mlp[1]")
    with pytest.raises(BadArgument, match=r"model.layers.1.mlp is skipped already"):
        lt.prune(model, "mlp[1]")
    other = lt.prune(model, "mlp[2]")
    handle.undo()
    handle.undo()
    other.undo()
    assert torch.equal(logits(model, inputs), whole)


def test_a_copy_of_a_bypassed_model_is_bypassed():
    model, inputs = models.qwen3()
    with lt.prune(model, "mlp[1]"):
        pruned, twin = logits(model, inputs), copy.deepcopy(model)
    assert torch.equal(logits(twin, inputs), pruned)
    assert not torch.equal(logits(model, inputs), pruned)


def test_what_is_not_added_as_it_is_is_refused():
    model, inputs = models.qwen3()

    class Scaled(type(model.model.layers[0])):
        def forward(self, hidden_states, **kwargs):
            return 0.5 * super().forward(hidden_states, **kwargs)

    model.model.layers[1].__class__ = Scaled
    with pytest.raises(BadArgument, match=r"model.layers.1 adds something else than what"):
        lt.prune(model, "mlp[1]", inputs=inputs)


def generated(model, ids, **options):
    return model.generate(input_ids=ids, max_new_tokens=6, do_sample=False, pad_token_id=0, **options)


@pytest.mark.parametrize(
    ("kind", "plan"),
    [
        (kind, "attention[:1] mlp[n//2:]")
        for kind in ("gemma3", "mistral", "opt", "phi3", "qwen3_moe", "deepseek", "tied")
    ]
    + [("mamba", "attention[1:]")],
)
def test_d2_both_ways_agree_and_survive_the_disk(tmp_path, kind, plan):
    model, _ = saved_models.saved(kind)
    ids = torch.randint(3, 128, (2, 10), generator=torch.Generator().manual_seed(0))
    small = lt.prune(model, plan, how="physical")
    whole = model(input_ids=ids, use_cache=False).logits
    with lt.prune(model, plan):
        bypassed = model(input_ids=ids, use_cache=False).logits
        tokens = [generated(one, ids, use_cache=cache) for one in (model, small) for cache in (True, False)]
    assert all(torch.equal(tokens[0], others) for others in tokens[1:])
    assert not torch.equal(bypassed, whole)
    assert torch.equal(bypassed, small(input_ids=ids, use_cache=False).logits)
    assert torch.equal(whole, model(input_ids=ids, use_cache=False).logits), "undone"
    save_pruned(small, tmp_path)
    again = load_pruned(tmp_path)
    assert torch.equal(bypassed, again(input_ids=ids, use_cache=False).logits)
    assert lt.audit(again, tmp_path).verdict == "identical"
    stock = type(model).from_pretrained(tmp_path)
    found = lt.audit(stock, tmp_path)
    assert [fault.code for fault in found.faults] == ["audit.pruning_lost"]
    assert found.verdict == "fault"


def test_d2_a_model_that_was_cast_is_loaded_as_it_was(tmp_path):
    model, _ = saved_models.saved("qwen3")
    small = lt.prune(model.bfloat16(), "attention[0]", how="physical")  # rounds the rope frequencies too
    save_pruned(small, tmp_path)
    ids = torch.arange(3, 12)[None]
    assert torch.equal(load_pruned(tmp_path)(input_ids=ids).logits, small(input_ids=ids).logits)
    assert lt.audit(load_pruned(tmp_path), tmp_path).verdict in ("identical", "noise")


@pytest.mark.parametrize("plan", ["attention[1:]", "mlp[1:]"])
def test_d4_torchs_own_encoder_does_not_run_past_what_is_skipped(plan):
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    inputs = (torch.randn(2, 8, 32),)
    with torch.inference_mode():
        whole = model(*inputs)
        small = lt.prune(model, plan, how="physical", inputs=inputs)
        with lt.prune(model, plan, inputs=inputs):
            bypassed = model(*inputs)
        assert torch.equal(bypassed, small(*inputs))
        assert not torch.allclose(bypassed, whole)
        assert torch.equal(model(*inputs), whole)
    assert not any(module._forward_pre_hooks for module in model.modules()), "no hook is left"


def test_d4_a_branch_that_its_caller_reads_without_calling_is_refused():
    class Reading(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn, self.mlp = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            x = x + (
                self.attn(x) if self.attn._forward_hooks else nn.functional.linear(x, self.attn.weight, self.attn.bias)
            )
            return x + self.mlp(x)

    model = nn.Sequential(*(Reading() for _ in range(3)))
    with pytest.raises(BadArgument, match=r"1\.attn is never called: its caller reads its parameters"):
        lt.prune(model, "attention[1]", inputs=(torch.randn(2, 8),))
    assert type(model[1].attn) is nn.Linear


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("", "the plan skips nothing"),
        ("mlp[n*9:]", "the plan skips nothing"),
        ("attention[9]", "there is no layer 9, the model has 3"),
        ("attn[:1", r"'attn\[:1' is not part of a plan"),
        ("mlp[n//0:]", "'n//0:' is not a layer or a range"),
        ("mlp[::0]", "'::0' is not a layer or a range"),
        ("mlp[1:2:3:4]", "'1:2:3:4' is not a layer or a range"),
        ("mlp[open('x')]", "is not a layer or a range"),
        ({"model.layers.1.mlp": "drop"}, "'drop' is not an action of a plan; expected 'skip'"),
        (5, "got int"),
    ],
)
def test_a_plan_that_cannot_be_read_says_where(plan, message):
    model, _ = saved_models.saved("qwen3")
    with pytest.raises(BadArgument, match=message):
        lt.prune(model, plan)


def test_skips_nest_and_come_off_in_any_order():
    model, _ = saved_models.saved("qwen3")
    ids = torch.arange(3, 12)[None]
    whole = model(input_ids=ids).logits
    one, two = lt.prune(model, "attention[0]"), lt.prune(model, "mlp[1]")
    one.undo()
    alone = model(input_ids=ids).logits
    two.undo()
    two.undo()
    assert torch.equal(model(input_ids=ids).logits, whole)
    with lt.prune(model, "mlp[1]"):
        assert torch.equal(model(input_ids=ids).logits, alone)
    with pytest.raises(KeyError), lt.prune(model, "mlp[1]"):
        raise KeyError
    assert torch.equal(model(input_ids=ids).logits, whole)
    twice = lt.prune(lt.prune(model, "attention[0]", how="physical"), "mlp[1]", how="physical")
    with lt.prune(model, "attention[0] mlp[1]"):
        assert torch.equal(twice(input_ids=ids).logits, model(input_ids=ids).logits)


def test_the_runs_that_confirm_a_plan_are_in_no_recording(tmp_path):
    model, inputs = models.qwen3()
    with lt.record(model, sites="*") as recording:
        model(**inputs)
        small = lt.prune(model, "mlp[1]", how="physical", inputs=inputs)
        save_pruned(small, tmp_path)
        with lt.prune(model, "attention[0]", inputs=inputs):
            model(**inputs)
    handle = lt.prune(model, "attention[0]", inputs=inputs)
    skips = {path: vars(model.get_submodule(path))["_layertap_skip"] for path in handle.plan.paths}
    handle.undo()
    with lt.record(model, sites="*") as expected:
        model(**inputs)
        for path, skip in skips.items():
            bypass(model.get_submodule(path), skip)
        model(**inputs)
        for path in skips:
            restore(model.get_submodule(path))
    found, wanted = (
        [(record.site, record.step, record.fingerprint) for record in one.run.records()]
        for one in (recording, expected)
    )
    assert found == wanted
    assert {row.path: row.fired for row in recording.receipt.sites}["lm_head"] == 2
