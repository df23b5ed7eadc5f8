"""`layertap export` as a user types it; the verb alone, since an app of its own registers it here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from formats.foreign import bits, recorded
from layertap.cli.export import export as verb
from layertap.errors import BadArgument, RunExists
from layertap.formats import open_run
from layertap.store import RunWriter


@pytest.fixture
def run(tmp_path: Path) -> Path:
    source = recorded(["model.embed_tokens", "model.layers.0:input", "model.layers.0", "other"], dtype=torch.bfloat16)
    writer = RunWriter(tmp_path / "run", info={"model": "Toy"})
    for record in source.records():
        writer.add(record, source.kept_bytes(record))
    writer.close()
    return tmp_path / "run"


def call(*arguments: Any) -> str:
    app = typer.Typer()
    app.command()(verb)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, Exception) and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_f3_export_says_what_it_wrote_and_left_out(run: Path, tmp_path: Path) -> None:
    text = call(run, "-o", tmp_path / "x")
    assert f"wrote 4 file(s) in the layers layout to {tmp_path}/x" in text
    assert "left out: model.layers.0:input: the layout has a place for output tensors only" in text
    assert "left out: other: not the embedding" in text
    found = open_run(tmp_path / "x")["layer_1"].tensor()
    assert bits(found) == bits(open_run(run)["model.layers.0"].tensor())


def test_f3_export_json(run: Path, tmp_path: Path) -> None:
    told = json.loads(call(run, "-o", tmp_path / "io.npz", "--layout", "npz", "--mode", "fp32", "--json"))
    assert told["run"] == str(run)
    assert told["problems"] == []
    assert told["exported"]["files"] == ["io.npz", "io_stats.json"]
    assert {item["site"] for item in told["exported"]["left_out"]} == {"model.embed_tokens", "other"}
    assert "numpy has no bfloat16" in told["exported"]["notes"][1]
    again = json.loads(call(f"{tmp_path}/io.npz#fp32", "-o", tmp_path / "m", "--layout", "monitor", "--json"))
    assert again["exported"]["files"] == ["epoch_1_batch_0_layer_0.pt"]


def test_f3_export_names_steps_and_replace(run: Path, tmp_path: Path) -> None:
    call(run, "-o", tmp_path / "x", "--name", "other=extra", "--step", "0")
    assert (tmp_path / "x" / "extra_output.pt").exists()
    with pytest.raises(RunExists, match="already contains"):
        call(run, "-o", tmp_path / "x")
    call(run, "-o", tmp_path / "x", "--replace")
    assert not (tmp_path / "x" / "extra_output.pt").exists()


def test_f3_export_wants_a_place(run: Path, tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="no destination"):
        call(run)
    with pytest.raises(BadArgument, match="expected PATH=NAME"):
        call(run, "-o", tmp_path / "x", "--name", "other")


def test_f3_export_tells_the_problems_of_what_it_opened(tmp_path: Path) -> None:
    torch.save(torch.ones(2), tmp_path / "layer_1_output.pt")
    (tmp_path / "layer_2_output.pt").write_bytes(b"")
    assert f"problem: {tmp_path}/layer_2_output.pt: damaged" in call(tmp_path, "-o", tmp_path / "x")
