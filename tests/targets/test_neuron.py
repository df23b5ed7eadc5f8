"""Neuron's adapter, on a stand-in app (see neuron_app.py): never run on the hardware itself."""

import importlib.util
import inspect
import subprocess
import sys

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import layertap as lt
from layertap import cli
from layertap.errors import BadArgument, MissingExtra, NothingCaptured, TargetError
from layertap.site import Sharding
from layertap.targets import neuron
from layertap.targets.neuron import Asked, Compiled, decode, prepare, to_hf, to_neuron
from literals import fixed_part
from targets.neuron_app import (
    CLASSES,
    HuggingFaceGenerationAdapter,
    NeuronConfig,
    NeuronTinyForCausalLM,
    decoder,
    ids,
    prompt,
)

HIDDEN = ["model.embed_tokens", "model.layers.*", "model.norm"]


def app_of(folder, sites=None, layers=4, experts=False, config=(), **options):
    neuron_config = NeuronConfig(**dict(config))
    prepare(neuron_config, sites, num_layers=layers, classes=CLASSES, **options)
    return NeuronTinyForCausalLM(decoder(layers, experts), neuron_config, folder)


def reference(given, sites, experts=False):
    model = decoder(experts=experts)
    given = given if isinstance(given, dict) else {"input_ids": given}
    with torch.inference_mode(), lt.record(model, sites=sites, keep="tensor") as rec:
        model(**given)
    return rec.run


def part_of(whole, record):
    """What a record's sharding says that it holds of a whole tensor."""
    sharding = record.sharding
    if sharding is None:
        return whole
    assert sharding.global_shape == tuple(whole.shape), record.site
    ends = zip(sharding.offset, record.shape, strict=True)
    return whole[tuple(slice(begin, begin + size) for begin, size in ends)]


def assert_parts(run, whole, *sites):
    for site in sites or run.sites:
        found = run[site].tensor()
        assert torch.allclose(found, part_of(whole[site].tensor(), run[site].record), atol=1e-6), site


def verdicts(report, *, inconclusive=()):
    """The verdicts of the rows, but for sites that cannot be judged."""
    return {row.verdict for row in report.rows if str(row.site) not in inconclusive}


def test_importing_the_adapter_imports_no_neuronx():
    script = "import sys, layertap.targets.neuron\nassert not [m for m in sys.modules if 'neuronx' in m]"
    subprocess.run([sys.executable, "-c", script], check=True)


# Before compiling.


def test_b1_the_switch_sets_the_three_fields_that_only_work_together():
    config = NeuronConfig()
    plan = prepare(config, record_layer_outputs=True, num_layers=62, classes=CLASSES)
    names = config.tensor_capture_config.modules_to_capture
    assert names == ["embed_tokens", *(f"layers.{number}" for number in range(62))]
    assert len(names) == 63
    assert config.output_logits is True
    assert isinstance(config.on_device_sampling_config, CLASSES.OnDeviceSamplingConfig)
    assert "63 modules will be captured; compile now" in str(plan)
    assert "sampling was off; it was turned on," in str(plan)


def test_b1_off_leaves_the_configuration_as_it_was():
    config = NeuronConfig()
    before = dict(vars(config))
    assert "costs nothing" in str(prepare(config))
    assert vars(config) == before


def test_b5_some_layers_by_their_true_names():
    config = NeuronConfig(tp_degree=64, enable_bucketing=True)
    plan = prepare(config, ["model.layers.[0,30,61]", "model.norm", "lm_head"], classes=CLASSES)
    assert plan.modules == ("layers.0", "layers.30", "layers.61", "norm", "lm_head")
    assert any("only the first bucket's captures are real" in note for note in plan.notes)
    assert any("rank 0's shard" in note for note in plan.notes)
    assert any(note.startswith("lm_head: ") and "only the last token" in note for note in plan.notes)
    assert prepare(config, "model.layers.*.mlp", model=decoder(2), classes=CLASSES).modules == (
        "layers.0.mlp",
        "layers.1.mlp",
    )
    with pytest.raises(BadArgument, match="needs num_layers="):
        prepare(config, "model.layers.*", classes=CLASSES)
    with pytest.raises(BadArgument, match="record_layer_outputs=True needs num_layers="):
        prepare(config, record_layer_outputs=True, classes=CLASSES)


def test_what_a_configuration_does_to_captures_is_told_before_compiling():
    config = NeuronConfig(
        tp_degree=2, sequence_parallel_enabled=True, qkv_kernel_fuse_residual_add=True, qkv_kernel_enabled=True
    )
    told = str(prepare(config, ["model.layers.0", "model.layers.0.mlp.experts"], classes=CLASSES))
    for text in ("rank 0's tokens", "its MLP's output", "rank 0's summand", "gives a placeholder"):
        assert text in told


@pytest.mark.skipif(importlib.util.find_spec("neuronx_distributed_inference") is not None, reason="neuronx is here")
def test_without_neuronx_it_says_what_to_install():
    with pytest.raises(MissingExtra, match="neuronx-distributed-inference"):
        prepare(NeuronConfig(), "model.norm")


NAMES = [
    ("model.embed_tokens", {}, ("embed_tokens",)),
    ("model.layers.3", {}, ("layers.3",)),
    ("model.norm", {}, ("norm",)),
    ("lm_head", {}, ("lm_head",)),
    ("model.layers.3.mlp.gate", {}, ("layers.3.mlp.router.linear_router",)),
    ("model.layers.3.mlp.experts", {}, ("layers.3.mlp.expert_mlps",)),
    ("model.layers.3.mlp.router", {}, ("layers.3.feed_forward.moe.router.linear_router",)),
    ("model.layers.3.block_sparse_moe.experts", {}, ("layers.3.block_sparse_moe.expert_mlps",)),
    ("model.layers.3.self_attn.q_norm", {}, ("layers.3.self_attn.q_layernorm",)),
    ("model.layers.3.self_attn.v_proj", {}, ("layers.3.self_attn.qkv_proj.v_proj",)),
    ("model.layers.3.self_attn.q_proj", {"fused_qkv": True}, ("layers.3.self_attn.qkv_proj",)),
    (
        "model.layers.3.self_attn.o_proj",
        {"cp_degree": 2},
        ("layers.3.self_attn.cte_o_proj.o_proj", "layers.3.self_attn.tkg_o_proj.o_proj"),
    ),
    (
        "model.layers.3.self_attn.q_proj",
        {"attention_dp_degree": 4},
        ("layers.3.self_attn.cte_qkv_proj.q_proj", "layers.3.self_attn.tkg_qkv_proj.q_proj"),
    ),
    (
        "model.layers.3.self_attn.o_proj",
        {"cp_degree": 2, "attention_dp_degree": 2},
        ("layers.3.self_attn.o_proj.o_proj",),
    ),
    ("model.layers.3.mlp", {"mlp_cp_degree": 2}, ("layers.3.cte_mlp", "layers.3.tkg_mlp")),
    (
        "model.layers.3.mlp.down_proj",
        {"mlp_cp_degree": 2},
        ("layers.3.cte_mlp.down_proj", "layers.3.tkg_mlp.down_proj"),
    ),
]


@pytest.mark.parametrize(("path", "options", "modules"), NAMES)
def test_names_there_and_back(path, options, modules):
    assert to_neuron(path, NeuronConfig(**options)) == modules
    assert [to_hf(module) for module in modules] == [path] * len(modules)


def test_keys_and_values_come_out_of_the_fused_projection():
    fused = to_neuron("model.layers.0.self_attn.k_proj", NeuronConfig(fused_qkv=True, cp_degree=2))
    assert fused == ("layers.0.self_attn.cte_qkv_proj.Wqkv", "layers.0.self_attn.tkg_qkv_proj.Wqkv")


# One call.


def test_a3_captures_become_sites_with_right_values_cut_to_the_true_length(tmp_path):
    app = app_of(tmp_path, ["model.norm"], record_layer_outputs=True)
    found = neuron.run(app, prompt(1), tmp_path / "device", sites=HIDDEN)
    run = reference(prompt(1), HIDDEN)
    for site in run.sites:
        assert torch.allclose(found.run[site].tensor(), run[site].tensor(), atol=1e-6), site
    assert found.run["model.layers.0"].record.shape == (1, 11, 8)
    notes = "\n".join(found.receipt.notes)
    assert "model.layers.2 and 2 more: padded to 16 tokens, cut to the true 11" in notes
    assert "freshness: on a second input 6 of 6 captures change" in notes
    report = lt.diff(run, found.run)
    assert report.verdict in ("identical", "noise"), str(report)
    assert lt.Run(tmp_path / "device").info["artefact"] == "NxD Inference"


def test_a_reference_that_was_given_no_positions_is_comparable(tmp_path):
    found = neuron.run(app_of(tmp_path, record_layer_outputs=True), prompt(1), sites="model.layers.*")
    report = lt.diff(reference(ids(1), "model.layers.*"), found.run)
    assert report.verdict in ("identical", "noise"), str(report)
    assert any("they count from 0" in note for note in report.notes)


def test_the_second_positional_argument_is_seq_ids_and_the_mask_is_the_third(tmp_path):
    app = app_of(tmp_path, "model.layers.0")
    given = prompt(1)
    by_place = (given["input_ids"], torch.arange(1), given["attention_mask"], given["position_ids"])
    run = neuron.run(app, by_place, sites=["**"]).run
    assert torch.allclose(
        run["model.layers.0"].tensor(), reference(ids(1), HIDDEN)["model.layers.0"].tensor(), atol=1e-6
    )
    assert torch.equal(run[":input.0"].tensor(), ids(1))


def test_a_mask_within_the_prompt_says_what_is_true(tmp_path):
    app = app_of(tmp_path, "model.layers.0")
    given = prompt(1)
    given["attention_mask"][:, 9:] = 0
    given["position_ids"][:, 9:] = 1
    record = neuron.run(app, given).run["model.layers.0"].record
    assert record.shape == (1, 9, 8)


def test_a_placeholder_is_no_capture(tmp_path):
    app = app_of(tmp_path, ["model.layers.[0,99]"])
    found = neuron.run(app, prompt(1))
    assert [site.path for site in found.receipt.silent if "placeholder" in site.why] == ["model.layers.99"]
    assert "zeros(1): the module was not called (is its name right?" in str(found.receipt)
    assert "model.layers.99" not in [site.path for site in found.run.sites]


def test_a5_logits_that_are_none_are_explained_and_captures_that_are_none_are_an_error(tmp_path):
    app = app_of(tmp_path, "model.layers.0")
    app.neuron_config.output_logits = False
    with pytest.raises(NothingCaptured, match="output_logits=True and an on_device_sampling_config together"):
        neuron.run(app, prompt(1))
    # A stack that hands out captures without logits, and always the same: then both are reported.
    neuron.release(app)
    stale = type("Output", (), {"logits": None, "captured_tensors": [torch.ones(1, 16, 8)]})()
    app._get_constructed_outputs = lambda outputs, is_run_on_neuron: stale
    found = neuron.run(app, prompt(1))
    assert any(note.startswith("logits: None. With sampling on the device") for note in found.receipt.notes)
    assert any(note.startswith("unmoved: model.layers.0") for note in found.receipt.notes)


def test_a1_an_app_that_captures_nothing_says_what_can_be_seen(tmp_path):
    app = NeuronTinyForCausalLM(decoder(), NeuronConfig(), tmp_path)
    with pytest.raises(TargetError, match=r"models\[0\]\.model is a RecursiveScriptModule without layers.*prepare\("):
        neuron.run(app, prompt(1))


def test_an_app_is_a_target(tmp_path):
    target = lt.open_target(app_of(tmp_path, record_layer_outputs=True))
    assert [str(site) for site in target.sites] == [
        ":output",
        "model.embed_tokens",
        *(f"model.layers.{n}" for n in range(4)),
    ]
    assert "NxD Inference NeuronTinyForCausalLM" in str(target.describe())
    assert "inputs: input_ids, seq_ids, attention_mask, position_ids" in str(target.describe())
    with lt.record(target, sites="model.layers.[1,3]") as rec:
        target.run(prompt(1))
    assert [str(site) for site in rec.run.sites] == ["model.layers.1", "model.layers.3"]
    with pytest.raises(TargetError, match="fixed when it is compiled"):
        target.save(tmp_path / "x", "model.layers.1")


# What a capture is a part of.


def test_logits_are_those_of_the_last_token_and_no_fault(tmp_path):
    app = app_of(tmp_path, ["model.norm", "lm_head"])
    found = neuron.run(app, prompt(1), sites=["model.norm", "lm_head"])
    record = found.run["lm_head"].record
    assert record.sharding == Sharding(
        placements=("Slice(dim=1)",), global_shape=(1, 11, 64), offset=(0, 10, 0), mesh_shape=(1,)
    )
    whole = reference(prompt(1), ["model.norm", "lm_head"])
    assert_parts(found.run, whole)
    assert "the last token only:" in str(found.receipt)
    report = lt.diff(whole, found.run)
    assert report.verdict in ("identical", "noise"), str(report)
    assert "compared: 1×1×64 of 1×11×64, from [0, 10, 0]" in report.rows[-1].why


def test_routers_and_experts_are_cut_along_tokens_and_never_along_experts(tmp_path):
    sites = ["model.layers.0.mlp.gate", "model.layers.0.mlp.experts", "model.layers.0.mlp"]
    app = app_of(tmp_path, sites, experts=True)
    found = neuron.run(app, prompt(1), sites=sites)
    assert found.run["model.layers.0.mlp.gate"].record.shape == (11, 32)
    assert_parts(found.run, reference(ids(1), sites, experts=True))
    # The router itself returns its logits in one row already, and holds them as its first output.
    app.neuron_config.tensor_capture_config.modules_to_capture[0] = "layers.0.mlp.router"
    other = NeuronTinyForCausalLM(decoder(experts=True), app.neuron_config, tmp_path)
    again = neuron.run(other, prompt(1), sites=sites)
    assert torch.equal(again.run["model.layers.0.mlp.gate"].tensor(), found.run["model.layers.0.mlp.gate"].tensor())


def test_tensor_parallelism_gives_rank_0s_shards_and_the_experts_summand(tmp_path):
    sites = [f"model.layers.0.self_attn.{name}_proj" for name in "qkvo"]
    sites += ["lm_head", "model.layers.0.mlp.experts", "model.layers.0"]
    app = app_of(tmp_path, sites, experts=True, config={"tp_degree": 2})
    found = neuron.run(app, prompt(1), sites=sites)
    whole = reference(ids(1), sites, experts=True)
    assert_parts(found.run, whole, *(site for site in found.run.sites if "experts" not in str(site)))
    assert found.run["model.layers.0.self_attn.q_proj"].record.sharding.offset == (0, 0, 0)
    assert found.run["lm_head"].record.sharding.offset == (0, 10, 0)
    assert found.run["lm_head"].record.shape == (1, 1, 32)
    assert found.run["model.layers.0"].record.sharding is None
    assert found.run["model.layers.0.mlp.experts"].record.sharding.partial
    told = "\n".join(found.receipt.notes)
    assert "rank 0's shard, 1 of 2 along the last axis: 2 of 4" in told
    assert "rank 0's summand, 1 of 2" in told
    report = lt.diff(reference(prompt(1), sites, experts=True), found.run)
    assert verdicts(report, inconclusive=["model.layers.0.mlp.experts"]) <= {"identical", "noise"}, str(report)
    assert report.verdict == "inconclusive"
    assert "summand of rank 0" in report.reasons[0]


def test_repeated_key_heads_are_no_slice_of_the_whole():
    compiled = Compiled(tp_degree=4, heads=4, kv_heads=2, head_dim=2, hidden_size=8)
    found = decode(
        [torch.ones(1, 5, 2)] * 2,
        ["layers.0.self_attn.qkv_proj.q_proj", "layers.0.self_attn.qkv_proj.k_proj"],
        compiled=compiled,
        asked=Asked(batch=1, length=5, last=5),
    )
    for site in found.captures:
        assert found.shardings[site].offset == (), "with fewer key heads than ranks nobody knows which heads these are"


@pytest.mark.parametrize("layers", [4])
def test_sequence_parallelism_gives_rank_0s_tokens(tmp_path, layers):
    sites = ["model.embed_tokens", "model.layers.0", "model.layers.0.mlp.gate", "model.norm", "lm_head"]
    config = {"tp_degree": 2, "sequence_parallel_enabled": True}
    app = app_of(tmp_path, sites, layers, experts=True, config=config)
    found = neuron.run(app, prompt(1), sites=sites)
    assert found.run["model.layers.0"].record.shape == (1, 8, 8)
    assert found.run["model.layers.0"].record.sharding == Sharding(
        placements=("Shard(dim=1)",), global_shape=(1, 11, 8), offset=(0, 0, 0), mesh_shape=(2,), mesh_names=("tp",)
    )
    assert_parts(found.run, reference(ids(1), sites, experts=True))
    assert "rank 0's 8 of the 11 tokens, 1 of 2 (sequence parallelism)" in str(found.receipt)
    report = lt.diff(reference(prompt(1), sites, experts=True), found.run)
    assert report.verdict in ("identical", "noise"), str(report)
    # Short prompts may lie on other ranks, or be dealt out in tiles.
    few = neuron.run(app, prompt(1, 5), sites=sites)
    assert few.run["model.layers.0"].record.shape == (1, 5, 8)
    tiled = decode(
        [torch.ones(1, 8, 8)],
        ["layers.0"],
        asked=Asked(batch=1, length=16, last=11),
        compiled=Compiled(tp_degree=2, sequence_parallel=True, tiled=True, hidden_size=8),
    )
    assert tiled.shardings["model.layers.0"].offset == ()
    padded = decode(
        [torch.ones(1, 8, 8)],
        ["layers.0"],
        asked=Asked(batch=1, length=16, first=9, last=16),
        compiled=Compiled(tp_degree=2, sequence_parallel=True, hidden_size=8),
    )
    assert "all padding" in padded.lost["model.layers.0"]


def test_a_layer_that_leaves_its_last_addition_to_the_next_is_its_mlp(tmp_path):
    app = app_of(tmp_path, experts=True, record_layer_outputs=True, config={"qkv_kernel_fuse_residual_add": True})
    found = neuron.run(app, prompt(1))
    whole = reference(ids(1), ["model.layers.*.mlp", "model.embed_tokens"], experts=True)
    assert_parts(found.run, whole, "model.embed_tokens", *(f"model.layers.{n}.mlp" for n in range(4)))
    assert "model.layers.2" not in [str(site) for site in found.run.sites]
    assert any(
        "qkv_kernel_fuse_residual_add" in site.why for site in found.receipt.silent if site.path == "model.layers.2"
    )
    with pytest.raises(
        NothingCaptured, match=r"4 of the 5 hidden states were not captured.*qkv_kernel_fuse_residual_add"
    ):
        neuron.get_layer_hidden_states(app)


def test_a_fused_projection_is_taken_apart(tmp_path):
    sites = [f"model.layers.1.self_attn.{name}_proj" for name in "qkv"]
    for degree in (1, 2):
        folder = tmp_path / str(degree)
        folder.mkdir()
        app = app_of(folder, sites, config={"fused_qkv": True, "tp_degree": degree})
        found = neuron.run(app, prompt(1), sites=sites)
        assert {str(site) for site in found.run.sites} == set(sites)
        assert_parts(found.run, reference(ids(1), sites))
    odd = decode(
        [torch.ones(1, 5, 7)], ["layers.0.self_attn.qkv_proj.Wqkv"], compiled=Compiled(heads=4, kv_heads=2, head_dim=2)
    )
    assert "queries, keys and values in one tensor" in odd.notes["model.layers.0.self_attn.qkv_proj.Wqkv"]


def test_projections_that_are_there_once_for_prompts_and_once_for_tokens(tmp_path):
    sites = ["model.layers.0.self_attn.o_proj"]
    app = app_of(tmp_path, sites, config={"cp_degree": 2})
    assert len(app.neuron_config.tensor_capture_config.modules_to_capture) == 2
    with neuron.record(app, sites=sites) as rec:
        HuggingFaceGenerationAdapter(app).generate(ids(1), torch.ones(1, 11, dtype=torch.long), 2)
    assert rec.run[sites[0]].record.shape == (1, 11, 8)
    assert rec.run[f"{sites[0]}@1"].record.shape == (1, 1, 8)
    assert not rec.receipt.silent or all(site.path != sites[0] for site in rec.receipt.silent)


# Who called, and when.


@pytest.mark.parametrize("made", ["before", "after"])
def test_an_adapter_is_listened_to_whenever_it_was_made(tmp_path, made):
    app = app_of(tmp_path, record_layer_outputs=True)
    adapter = HuggingFaceGenerationAdapter(app) if made == "before" else None
    neuron.open_app(app)
    adapter = adapter or HuggingFaceGenerationAdapter(app)
    for seed in (1, 2):
        adapter(**prompt(seed))
        states = neuron.get_layer_hidden_states()
        assert torch.equal(states[0], decoder().model.embed_tokens(ids(seed)))
    adapter.generate(ids(3), torch.ones(1, 11, dtype=torch.long), 3)
    assert neuron.get_layer_hidden_states(adapter)[0].shape == (1, 1, 8), "of the last call: one token"


def test_a_call_that_nobody_could_follow_to_its_end_makes_older_captures_void(tmp_path):
    app = app_of(tmp_path, record_layer_outputs=True)
    neuron.open_app(app)
    app(**prompt(1))
    assert len(neuron.get_layer_hidden_states(app)) == 5
    app._get_model_outputs(
        *(prompt(2)[name] for name in ("input_ids", "attention_mask", "position_ids")), torch.arange(1)
    )
    with pytest.raises(NothingCaptured, match="last call did not end"):
        neuron.get_layer_hidden_states(app)


def test_compiled_models_that_came_later_are_not_listened_to_and_it_is_told(tmp_path):
    app = app_of(tmp_path, record_layer_outputs=True)
    neuron.open_app(app)
    app(**prompt(1))
    app.models = [nn.Identity()]
    with pytest.raises(TargetError, match="other compiled models than when it was opened"):
        neuron.get_layer_hidden_states(app)


def test_listening_can_be_undone(tmp_path):
    app = app_of(tmp_path, record_layer_outputs=True)
    before = dict(vars(app))
    adapter = HuggingFaceGenerationAdapter(app)
    neuron.open_app(adapter)
    neuron.open_app(app)
    app(**prompt(1))
    neuron.release(adapter)
    neuron.release(app)
    assert set(vars(app)) == set(before)
    assert all(not wrapper._forward_pre_hooks for wrapper in app.models)
    with pytest.raises(NothingCaptured, match="no call of an app has been observed"):
        neuron.get_layer_hidden_states(app)
    # What somebody else has put in its place since is theirs.
    neuron.open_app(app)
    theirs = app.__dict__["_get_constructed_outputs"] = lambda *args: None
    neuron.release(app)
    assert app.__dict__["_get_constructed_outputs"] is theirs


def test_an_app_that_runs_ahead_or_is_none_is_refused(tmp_path):
    app = app_of(tmp_path, "model.layers.0")
    app.neuron_config.async_mode = True
    with pytest.raises(TargetError, match="compile with async_mode=False"):
        neuron.open_app(app)
    app.neuron_config.async_mode = False
    app.models = []
    with pytest.raises(TargetError, match="ModelWrapper, and _get_constructed_outputs;"):
        neuron.open_app(app)


def test_generate_is_recorded_step_by_step(tmp_path):
    app = app_of(tmp_path, ["model.norm"], record_layer_outputs=True)
    adapter = HuggingFaceGenerationAdapter(app)
    mask = torch.ones(1, 11, dtype=torch.long)
    bare = adapter.generate(ids(1), mask, 4)
    with neuron.record(app, tmp_path / "device", sites=HIDDEN) as rec:
        tokens = adapter.generate(ids(1), mask, 4)
    assert torch.equal(tokens, bare)
    assert [rec.run[f"model.layers.3@{n}" if n else "model.layers.3"].record.shape[1] for n in range(4)] == [
        11,
        1,
        1,
        1,
    ]
    # The reference, without a cache, sees the same tokens in one go.
    whole = reference(tokens[:, :-1], HIDDEN)
    for site in whole.sites:
        steps = [rec.run[f"{site}@{n}" if n else site].tensor() for n in range(4)]
        assert torch.allclose(torch.cat(steps, dim=1), whole[site].tensor(), atol=1e-5), site
    assert torch.equal(rec.run[":input.input_ids@2"].tensor(), tokens[:, 12:13])
    assert "freshness: on a second input 6 of 6 captures change" in str(rec.receipt)
    app(**prompt(2))
    assert not rec.run[":input.input_ids"].record.step, "after the block nothing is recorded"
    assert len(rec.run.sites) == len(lt.Run(tmp_path / "device").sites)


def test_a_model_of_hugging_face_in_its_own_generate_has_the_same_sites(tmp_path):
    app = app_of(tmp_path, record_layer_outputs=True)
    with neuron.record(app, sites="model.layers.*") as rec:
        tokens = HuggingFaceGenerationAdapter(app).generate(ids(1), torch.ones(1, 11, dtype=torch.long), 3)
    model = decoder()
    state = [{"sum": torch.zeros(1, 1, 4)} for _ in range(4)]
    with torch.inference_mode(), lt.record(model, sites="model.layers.*", keep="tensor") as whole:
        model(input_ids=tokens[:, :11], past=state)
        for place in (11, 12):
            model(input_ids=tokens[:, place : place + 1], past=state)
    report = lt.diff(whole.run, rec.run)
    assert {str(row.site) for row in report.rows} == {str(site) for site in whole.run.sites}
    assert {row.verdict for row in report.rows} <= {"identical", "noise"}, str(report)


def test_a_recording_in_which_the_device_handed_out_nothing_is_an_error(tmp_path):
    app = app_of(tmp_path, record_layer_outputs=True)
    app.neuron_config.on_device_sampling_config = None
    with pytest.raises(NothingCaptured, match=r"returned no captures|nothing was captured"), neuron.record(app):
        app(**prompt(1))


# The documented helper.


def test_b2_63_hidden_states_for_62_layers_of_this_call_and_no_other(tmp_path):
    app = app_of(tmp_path, record_layer_outputs=True, layers=62)
    neuron.open_app(app)
    states = []
    for seed in (1, 2):
        output = app(**prompt(seed))
        assert output.logits.shape == (1, 1, 64), "the app's own output is what it was"
        states.append(neuron.get_layer_hidden_states())
    for seed, found in zip((1, 2), states, strict=True):
        assert len(found) == 63
        model = decoder(62)
        x = model.model.embed_tokens(ids(seed))
        assert torch.equal(found[0], x)
        for number, layer in enumerate(model.model.layers):
            x = layer(x)
            assert torch.allclose(found[number + 1], x, atol=1e-5), number
    assert not torch.equal(states[0][62], states[1][62])


def test_b2_an_error_rather_than_the_states_of_an_older_call(tmp_path):
    app = app_of(tmp_path, record_layer_outputs=True)
    neuron.open_app(app)
    with pytest.raises(NothingCaptured, match="no call of an app has been observed"):
        neuron.get_layer_hidden_states(app)
    app(**prompt(1))
    assert len(neuron.get_layer_hidden_states(app)) == 5
    with pytest.raises(RuntimeError):
        app(**{**prompt(1), "input_ids": torch.full((1, 11), 999)})
    with pytest.raises(NothingCaptured, match="last call did not end"):
        neuron.get_layer_hidden_states(app)
    app.neuron_config.on_device_sampling_config = None
    app(**prompt(1))
    with pytest.raises(NothingCaptured, match="the device returned no captures"):
        neuron.get_layer_hidden_states(app)


def test_b2_a_list_with_holes_is_refused(tmp_path):
    app = app_of(tmp_path, "model.layers.[0,2]")
    neuron.open_app(app)
    app(**prompt(1))
    with pytest.raises(
        NothingCaptured, match=r"3 of the 5 hidden states were not captured: model.embed_tokens \(not requested\)"
    ):
        neuron.get_layer_hidden_states()


# Decoding alone.


def test_decoding_is_a_pure_function_of_the_tensors():
    nan = torch.full((1,), float("nan"))
    tensors = [torch.ones(1, 4, 2), torch.zeros(1, 4, 2), torch.zeros(1), torch.ones(2, 3), nan, nan]
    asked = Asked(batch=1, length=4, first=1, last=3)
    found = decode(tensors, ["layers.0", "layers.1"], capture_inputs=True, asked=asked)
    assert [str(site) for site in found.captures] == ["model.layers.0", "model.layers.0:input", "model.layers.1:input"]
    assert found.captures["model.layers.0"].shape == (1, 2, 2), "left padding is cut too"
    assert "placeholder" in found.lost["model.layers.1"]
    assert found.padding == 2
    assert found.manual == []
    assert len(decode([torch.ones(1, 2, 2)], ["layers.0", "layers.1"]).lost) == 1
    two = Asked(batch=2, length=4, last=3)
    assert decode([torch.arange(24.0).reshape(8, 3)], ["layers.0.mlp.router"], asked=two).captures[
        "model.layers.0.mlp.gate"
    ][:, 0].tolist() == [0, 3, 6, 12, 15, 18], "the padding of every sequence"
    unlike = decode([torch.ones(2, 1, 9)], ["lm_head"], asked=Asked(batch=2, length=4, last=4, ends=None))
    assert unlike.shardings["lm_head"].offset == (), "sequences that end at different places"


# A folder that NxD Inference's own hook wrote.


def test_a_capture_folder_is_read_and_compared_by_name(tmp_path):
    run = reference(ids(1), ["model.embed_tokens", "model.layers.*", "model.norm"])
    folder = tmp_path / "captured"
    folder.mkdir()
    for site in run.sites:
        tensor = run[site].tensor()
        if str(site) == "model.layers.2":
            tensor = tensor * 1.5
        torch.save(tensor, folder / f"captured_tensors_cte_step_1_module_{to_neuron(site.path)[0]}_output.pt")
    torch.save(torch.zeros(1), folder / "captured_tensors_cte_step_1_module_layers.9_output.pt")
    torch.save(torch.ones(2), folder / "captured_tensors_cte_step_1_manual_tensor_0.pt")
    (folder / "capture_metadata.json").write_text("{}")
    device = neuron.read_neuron(folder)
    assert [str(site) for site in device.sites] == [str(site) for site in run.sites]
    assert any("layers.9" in text and "placeholder" in text for text in device.problems)
    assert any(fixed_part("formats.neuron_manual") in text for text in device.problems)
    report = lt.diff(run, device)
    assert str(next(row for row in report.rows if row.verdict == "fault").site) == "model.layers.2"
    shown = CliRunner().invoke(cli.app, ["export", str(folder), "-o", str(tmp_path / "out"), "--layout", "layers"])
    assert shown.exit_code == 0, shown.output


# Where neuronx is installed, and only there.


def test_the_classes_and_signatures_are_those_that_we_set():
    config = pytest.importorskip("neuronx_distributed_inference.models.config")
    capture = config.TensorCaptureConfig(modules_to_capture=["layers.0"], capture_inputs=True)
    assert capture.modules_to_capture == ["layers.0"]
    made = config.NeuronConfig(batch_size=1, seq_len=32, tp_degree=1)
    prepare(made, "model.layers.0")
    assert made.tensor_capture_config.modules_to_capture == ["layers.0"]
    assert made.output_logits
    base = pytest.importorskip("neuronx_distributed_inference.models.model_base")
    assert "tensor_capture_hook" in inspect.signature(base.NeuronBaseForCausalLM.forward).parameters
