"""`layertap audit A B`: the verdict, the JSON form, the exit code."""

import json

import pytest
import torch
from typer.testing import CliRunner

import models
from layertap import cli
from layertap.errors import BadArgument


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    healthy, damaged = tmp_path_factory.mktemp("healthy"), tmp_path_factory.mktemp("damaged")
    model, _ = models.qwen3()
    model.save_pretrained(healthy)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3] = 0
    model.save_pretrained(damaged)
    return healthy, damaged


def run(*arguments):
    return CliRunner().invoke(cli.app, ["audit", *map(str, arguments)])


def test_d1_exit_codes_and_text(folders):
    healthy, damaged = folders
    assert run(healthy, healthy).exit_code == 0
    assert run(f"hf:{healthy}", healthy).exit_code == 0
    found = run(damaged, healthy)
    assert found.exit_code == 1
    assert "model.layers.1.mlp.up_proj.weight  relative error" in found.stdout
    assert "1 of 64 rows differ (first: 3)" in found.stdout


def test_d1_json_holds_every_tensor(folders, tmp_path):
    healthy, damaged = folders
    found = json.loads(run(damaged, healthy, "--json", "-o", tmp_path / "audit.json").stdout)
    assert found["verdict"] == "fault"
    assert found["by_status"] == {"exact": 35, "changed": 1}
    assert json.loads((tmp_path / "audit.json").read_text()) == found


def test_what_is_not_there_says_so(folders):
    with pytest.raises(BadArgument, match=r"there is no .*nothing"):
        raise run(folders[0], "nothing").exception
