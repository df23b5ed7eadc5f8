"""A model in another process, by what its tensors are recognised by."""

import json
import pickle
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import layertap as lt
import models
from layertap import cli
from layertap.errors import BadArgument
from layertap.weights import Fingerprints, fingerprints


def statuses(audit):
    return {row.name or row.other: row.status for row in audit.rows if row.status not in ("exact", "converted")}


@pytest.fixture
def model():
    return models.qwen3()[0]


def test_of_another_process_it_is_identical(tmp_path, model):
    model.save_pretrained(tmp_path / "m")
    code = (
        "import sys, transformers; from layertap.weights import fingerprints;"
        "fingerprints(transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])).to_json(sys.argv[2])"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "m", tmp_path / "there.json"], check=True)
    for sides in ((model, tmp_path / "there.json"), (tmp_path / "there.json", tmp_path / "m")):
        found = lt.audit(*sides)
        assert found.verdict == "identical", str(found)


def test_what_differs_there_is_named_and_estimated(model):
    there = fingerprints(model)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(1.1)
        weight = model.model.layers[0].self_attn.k_proj.weight
        weight.copy_(model.model.layers[0].self_attn.v_proj.weight)
    found = lt.audit(model, there)
    assert found.verdict == "fault"
    rows = {row.name: row for row in found.rows}
    assert "relative error about 0.0" in rows["model.layers.1.mlp.up_proj.weight"].detail or (
        "relative error about 0.1" in rows["model.layers.1.mlp.up_proj.weight"].detail
    )
    assert "has the values of model.layers.0.self_attn.v_proj.weight" in rows[weight_name()].detail
    assert set(statuses(found)) == {"model.layers.1.mlp.up_proj.weight", weight_name()}


def weight_name():
    return "model.layers.0.self_attn.k_proj.weight"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cast_is_proven_and_not_estimated(model, dtype):
    there = fingerprints(model)
    assert lt.audit(model.to(dtype), there).verdict == "noise"
    back = fingerprints(model)
    whole = models.qwen3()[0]
    assert lt.audit(whole, back).verdict == "noise"
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 3] += 1e-2  # far below what a cast loses
    assert set(statuses(lt.audit(model, there))) >= {"model.layers.1.mlp.up_proj.weight"}


def test_fused_and_stacked_tensors_are_found_by_their_rows():
    q, k, v = torch.randn(16, 8), torch.randn(4, 8), torch.randn(4, 8)
    experts = [torch.randn(6, 8) for _ in range(3)]
    there = fingerprints({"qkv": torch.cat([q, k, v]), "experts": torch.stack(experts)})
    here = {"q": q, "k": k, "v": v, **{f"e.{i}": expert for i, expert in enumerate(experts)}}
    for sides in ((there, here), (here, there)):
        found = lt.audit(*sides)
        assert found.verdict == "identical", str(found)
    fused = {row.name: row for row in lt.audit(there, here).rows}
    assert (fused["qkv"].rule, fused["experts"].rule) == ("concatenated", "stacked")


@pytest.mark.parametrize("known", ["here", "there", "both"])
def test_a_transposed_tensor_is_found_by_its_columns(known):
    torch.manual_seed(0)
    there = {"0.w": torch.randn(24, 16), "1.w": torch.randn(24, 16), "1.square": torch.randn(16, 16)}
    here = {name: tensor.t().contiguous() for name, tensor in there.items()}

    def audited(here, there):
        return lt.audit(
            here if known == "there" else fingerprints(here), there if known == "here" else fingerprints(there)
        )

    found = audited(here, there)
    assert found.verdict == "identical", str(found)
    assert {row.rule for row in found.rows} == {"transposed"}
    found = audited(
        {"0.w": there["0.w"], "1.square": here["1.square"]}, {name: there[name] for name in ("0.w", "1.square")}
    )
    assert statuses(found)["1.square"] == "changed"
    assert found.verdict == "fault"
    spoilt = audited({"0.w": here["0.w"] * 1.5}, {"0.w": there["0.w"]})
    assert spoilt.verdict == "fault"
    bare = lt.audit(fingerprints(here, rows=False), there)
    assert bare.verdict == "fault", "without the numbers of rows and columns nothing proves it"


def test_they_are_data(tmp_path, model):
    with torch.no_grad():
        model.model.norm.weight[0] = float("inf")
    found = fingerprints(model)
    assert Fingerprints.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert pickle.loads(pickle.dumps(found)) == found
    found.to_json(tmp_path / "x.json")
    assert "NaN" not in (tmp_path / "x.json").read_text()
    assert lt.audit(model, tmp_path / "x.json").by_status["nonfinite"] == 1


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": "layertap fingerprints", "version": 1, "name": "x"}', "{"])
def test_other_files_say_so(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(BadArgument, match="fingerprints"):
        lt.audit({"w": torch.ones(1)}, tmp_path / "x.json")


def test_on_the_command_line(tmp_path, model, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model.save_pretrained("m")
    found = CliRunner().invoke(cli.app, ["audit", "m", "--fingerprints", "m.json"])
    assert found.exit_code == 0, found.output
    assert "wrote m.json: fingerprints of m: " in found.stdout
    found = CliRunner().invoke(cli.app, ["audit", "m", "m.json", "--json"])
    assert (found.exit_code, json.loads(found.stdout)["verdict"]) == (0, "identical"), found.output
    found = CliRunner().invoke(cli.app, ["audit", "m"])
    assert isinstance(found.exception, BadArgument) or found.exit_code == 2
