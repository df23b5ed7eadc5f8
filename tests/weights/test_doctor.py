"""Why a changed model goes wrong: four stories and their answers, from one command."""

import copy
import gc
import importlib.util
import json
import pickle
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import layertap as lt
import models
from layertap import cli
from layertap.errors import BadArgument
from layertap.weights import doctor, knockout
from layertap.weights.knockout import _SOURCES

EXAMPLE = Path(__file__).parents[2] / "examples" / "pruned_story.py"


@pytest.fixture(scope="module")
def story():
    spec = importlib.util.spec_from_file_location("pruned_story", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def trained(story):
    return story.trained(layers=4, steps=60)


@pytest.fixture(scope="module")
def inputs(story):
    return {"input_ids": story.sequences(4, seed=9999)}


def test_d7_the_class_was_lost(story, trained, inputs, tmp_path):
    found = doctor(trained, story.lost_class(trained, tmp_path), inputs)
    assert found.answer == "code"
    assert "runs model.layers.0.self_attn, model.layers.[2-3].mlp, which the plan skips" in found.sentence
    assert found.audit.verdict == "fault"


def test_d7_the_weights_did_not_arrive(story, trained, inputs):
    found = doctor(trained, story.skeleton(trained), inputs)
    assert found.answer == "loading"
    assert "model.layers.0.self_attn.q_proj.weight (changed" in found.sentence


def test_d5_d7_the_cache_was_not_told(story, trained, inputs):
    found = doctor(trained, story.forgetful(trained), inputs)
    assert found.answer == "cache"
    assert found.sentence.code == "doctor.cache_wrong"
    assert "the cache has 0 of 32 tokens" in found.sentence
    assert found.cuts == ("model.layers.0.self_attn",)


def test_d7_the_cut_is_too_deep(story, trained, inputs):
    found = doctor(trained, story.too_deep(trained), inputs)
    assert found.answer == "idea"
    assert found.harm[0].kl == max(row.kl for row in found.harm)
    assert {row.site for row in found.harm} == set(found.cuts)


def test_d7_a_wrong_rest_is_code(trained, inputs):
    wrong = lt.prune(trained, "mlp[3]", how="physical")
    wrong.model.layers[1].post_attention_layernorm.variance_epsilon = 0.5
    found = doctor(trained, wrong, inputs)
    assert (found.answer, found.site) == ("code", "model.layers.1.post_attention_layernorm")


def test_d4_a_plan_that_never_ran_is_a_placebo(trained, inputs):
    stock = copy.deepcopy(trained)
    stock.config.per_layer_config = {"1": {"skip": ["mlp"]}}
    found = doctor(trained, stock, inputs)
    assert found.answer == "code"
    assert "the plan skips model.layers.1.mlp" in found.sentence
    assert "the change has no effect" in found.sentence
    assert doctor(trained, trained, inputs, plan="mlp[1]").answer == "code"


def test_what_is_the_same_is_healthy(trained, inputs):
    found = doctor(trained, copy.deepcopy(trained), inputs)
    assert (found.answer, found.exit_code, found.cuts) == ("healthy", 0, ())


def test_d7_pairs_that_were_never_pruned():
    model, given = models.vit()
    other = copy.deepcopy(model)
    assert doctor(model, other, given).answer == "healthy"
    with torch.no_grad():
        other.get_parameter(next(name for name, p in other.named_parameters() if p.ndim == 2)).mul_(1.1)
    assert doctor(model, other, given).answer == "loading"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_d7_the_documents_story_on_28_layers(story, tmp_path):
    whole = story.trained()
    assert len(whole.model.layers) == 28
    with torch.no_grad():
        ids = story.sequences(8, seed=77)
        guessed = whole(input_ids=ids).logits.argmax(-1)[:, 12:-1]
    assert (guessed == ids[:, 13:]).double().mean() > 0.6, "it has something to lose"
    found = story.stories(whole, tmp_path)
    assert [diagnosis.answer for diagnosis in found.values()] == ["code", "loading", "cache", "idea", "healthy"]
    lost, arrived, told, deep, well = found.values()
    assert "model.layers.[14-27].mlp, which the plan skips" in lost.sentence
    assert "308 tensors differ from those of the reference" in arrived.sentence
    assert "the cache has 0 of 32 tokens" in told.sentence
    assert len(deep.cuts) == 35
    assert len(deep.harm) == 35
    assert len(well.cuts) == 1


def test_a_diagnosis_is_data(trained, inputs):
    found = doctor(trained, trained, inputs)
    assert pickle.loads(pickle.dumps(found)) == found
    assert json.loads(json.dumps(found.to_dict()))["answer"] == "healthy"


# Knock-out.


def test_d6_each_branch_is_measured_as_if_it_were_pruned(trained, inputs):
    found = knockout(trained, inputs, blocks=True, heads=True)
    by_site = {row.site: row for row in found.rows}
    assert len(found.rows) == 4 * 2 + 4 + 4 * 4
    assert [row.kl for row in found.rows] == sorted(row.kl for row in found.rows)
    with torch.no_grad():
        whole = trained(**inputs).logits.log_softmax(-1)
        for site in ("model.layers.2.mlp", "model.layers.0.self_attn"):
            with lt.prune(trained, {site: "skip"}):
                cut = trained(**inputs).logits.log_softmax(-1)
            kl = (whole.exp() * (whole - cut)).sum(-1).mean().item()
            assert by_site[site].kl == pytest.approx(kl, rel=1e-4)
            assert by_site[site].top1 == pytest.approx((whole.argmax(-1) == cut.argmax(-1)).double().mean().item())
    row = by_site["model.layers.1"]
    assert row.kind == "block"
    assert row.kl_low <= row.kl <= row.kl_high
    assert by_site["model.layers.0.self_attn[2]"].kind == "head"


def test_what_comes_before_is_not_computed_again(trained, inputs):
    calls = []
    handles = [
        layer.self_attn.register_forward_hook(lambda *_, i=i: calls.append(i))
        for i, layer in enumerate(trained.model.layers)
    ]
    try:
        knockout(trained, inputs, blocks=False)
    finally:
        for handle in handles:
            handle.remove()
    # Confirming and the whole run call all four; then each of eight branches only itself and what follows.
    assert calls[:8] == [0, 1, 2, 3] * 2
    assert len(calls) == 8 + 2 * (4 + 3 + 2 + 1)


def test_d6_a_plan_is_measured_and_not_added_up(trained, inputs):
    found = knockout(trained, inputs, blocks=False)
    joint = found.plan(size=0.8)
    assert joint.size <= 0.8
    with torch.no_grad(), lt.prune(trained, joint.plan.to_dict()):
        cut = trained(**inputs).logits.log_softmax(-1)
    with torch.no_grad():
        whole = trained(**inputs).logits.log_softmax(-1)
    assert joint.kl == pytest.approx((whole.exp() * (whole - cut)).sum(-1).mean().item(), rel=1e-4)
    again = pickle.loads(pickle.dumps(found))
    assert again.rows == found.rows
    with pytest.raises(BadArgument, match="does not exist in this process"):
        again.plan(size=0.8)


def test_a_knockout_is_data_and_keeps_no_model(inputs, trained):
    model = copy.deepcopy(trained)
    known = weakref.ref(model)
    found = knockout(model, inputs, blocks=False)
    assert found.plan(size=0.8).size <= 0.8
    assert not [value for value in vars(found).values() if isinstance(value, (nn.Module, torch.Tensor))]
    assert pickle.loads(pickle.dumps(found)) == found
    del model
    gc.collect()
    assert known() is None, "the result keeps the model"
    with pytest.raises(BadArgument, match="does not exist in this process"):
        found.plan(size=0.8)
    kept = len(_SOURCES)
    del found
    gc.collect()
    assert len(_SOURCES) == kept - 1


def test_knockout_leaves_the_model_as_it_was(trained, inputs):
    with torch.no_grad():
        before = trained(**inputs).logits
    knockout(trained, inputs)
    with torch.no_grad():
        assert torch.equal(trained(**inputs).logits, before)
    assert not any("forward" in module.__dict__ for module in trained.modules())


# The command line.

NETS = """
import copy, torch, models

def healthy():
    return models.qwen3()

def damaged():
    model, inputs = models.qwen3()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3] = 0
    return model, inputs
"""


def test_d7_doctor_and_prune_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(NETS)
    run = CliRunner().invoke
    found = run(cli.app, ["doctor", "nets.py:healthy", "nets.py:damaged"])
    assert (found.exit_code, found.stdout[:9]) == (1, "LOADING: "), found.output
    found = run(cli.app, ["doctor", "nets.py:healthy", "nets.py:healthy", "--ids", "3,5,7,9,2", "--json"])
    assert (found.exit_code, json.loads(found.stdout)["answer"]) == (0, "healthy"), found.output
    found = run(cli.app, ["prune", "nets.py:healthy", "--plan", "mlp[1:]", "-o", "small"])
    assert found.exit_code == 0, found.output
    assert found.stdout.startswith("wrote small: ")
    found = run(cli.app, ["doctor", "nets.py:healthy", "pruned:small", "--ids", "3,5,7,9,2", "--json"])
    assert found.exit_code == 0, (found.exception, found.output)
    assert json.loads(found.stdout)["answer"] == "healthy"
    assert json.loads(found.stdout)["cuts"] == ["model.layers.1.mlp", "model.layers.2.mlp"]
    with pytest.warns(UserWarning, match="initialised at random"):
        found = run(cli.app, ["doctor", "nets.py:healthy", "hf:small", "--ids", "3,5,7,9,2"])
    assert (found.exit_code, found.stdout[:6]) == (1, "CODE: "), found.output
    found = run(cli.app, ["prune", "pruned:small", "--plan", "attention[0]", "-o", "smaller"])
    assert found.exit_code == 0, found.output
    with pytest.raises(BadArgument, match=r"small was saved pruned, .*; give pruned:small"):
        raise run(cli.app, ["prune", "hf:small", "--plan", "attention[0]", "-o", "smaller"]).exception
    found = run(cli.app, ["prune", "nets.py:healthy", "--scan", "--size", "0.9", "--json", "--ids", "3,5,7,9,2"])
    assert json.loads(found.stdout)["plan"]["size"] <= 0.9, found.output
    with pytest.raises(BadArgument, match="give either --plan and -o, or --scan"):
        raise run(cli.app, ["prune", "nets.py:healthy"]).exception


def test_models_without_branches_say_so():
    with pytest.raises(BadArgument, match="has no repeated blocks"):
        knockout(nn.Linear(2, 2), {"input": torch.ones(1, 2)})
