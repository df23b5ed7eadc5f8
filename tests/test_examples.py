"""The examples run as they are, and print what they promise."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from targets.artefacts import quiet

EXAMPLES = Path(__file__).parents[1] / "examples"

PROMISED = {
    "record_layers": ["recorded 8 tensors from 7 of 7 sites"],
    "train_accelerate": [
        "recorded 24 tensors from 1 of 1 sites",
        "['epoch_1_batch_full_hidden.pt', 'epoch_3_batch_full",
    ],
    "train_lightning": ["from 1 of 1 sites", "epoch 5 train net.1: 800 values", "epoch 5 eval  net.1: 800 values"],
    "train_monitor": [  # C14: one average map, one set of statistics and one number a head, as the comments promise
        "from 2 of 2 sites",
        "epoch 10: loss ",
        "head importance: [",
        "sample 17 was in epoch 1 batch ",
        "24 files",
    ],
    "train_transformers": ["from 1 of 1 sites", "epoch 3 transformer.h.1: 10240 values"],
}


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs an example in this process: a process of its own would spend its time on imports."""

    def run(name, *args, code):
        monkeypatch.setattr(sys, "argv", [name, *map(str, args)])
        with quiet(stdout=False), pytest.raises(SystemExit) as ended:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        assert ended.value.code == code
        return capsys.readouterr().out

    return run


def test_there_is_a_test_for_every_example():
    # pruned_story, which takes a minute, is run in parts by tests/weights/test_doctor.py.
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"compiled_layer_by_layer", "pruned_story", *PROMISED}


@pytest.mark.parametrize("name", PROMISED)
def test_an_example_runs(name, tmp_path):
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    script = str(EXAMPLES / f"{name}.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    for text in PROMISED[name]:
        assert text in done.stdout


def test_c14_the_functions_of_the_documented_examples_give_what_their_comments_promise():
    example = runpy.run_path(str(EXAMPLES / "train_monitor.py"))
    outputs = [(torch.zeros(rows, 6, 8), torch.softmax(torch.randn(rows, 4, 6, 6), dim=-1)) for rows in (5, 3)]
    assert example["average_attention"](outputs).shape == (4, 6, 6)
    analysis = example["process_attention"](outputs)
    assert analysis["head_importance"].shape == (4,)
    assert analysis["head_importance"].unique().numel() == 4, "the mean weight would be 1 / 6 for every head"
    assert analysis["layer_patterns"].shape == (8, 6, 6)
    values = [torch.randn(5, 2), torch.randn(3, 2)]
    stats = example["feed_forward_statistics"](values)
    assert torch.equal(stats["std"], torch.cat(values).std(dim=0))


def test_b4_b6_compiled_layer_by_layer(run, tmp_path):
    text = run("compiled_layer_by_layer.py", "--folder", tmp_path, code=0)
    assert "freshness: on a second input 7 of 7 captures change" in text
    for screen in ("all layers\n  model.embed_tokens", "one layer: model.layers.2\n  shape (1, 32, 64)"):
        assert screen in text
    assert "adjacent layers\n  model.layers.0 → model.layers.1: max " in text
    assert "against the reference (relative: eps 1e-8)\n  model.embed_tokens " in text
    assert "first departing layer: none" in text
    assert ("IDENTICAL: " in text) or ("NOISE: " in text)
    files = sorted(path.name for path in (tmp_path / "full_model").iterdir())
    outputs = ("embedding", "layer_1", "layer_2", "layer_3", "layer_4", "final_norm", "logits")
    assert files == sorted([*(f"{name}_output.pt" for name in outputs), "statistics.pt", "metadata.pt"])
    statistics = torch.load(tmp_path / "full_model/statistics.pt")
    assert set(statistics["layer_1"]) == {"shape", "dtype", "mean", "std", "min", "max", "has_nan", "has_inf"}
    metadata = torch.load(tmp_path / "full_model/metadata.pt")
    assert set(metadata) == {"prompt", "input_ids", "attention_mask", "statistics"}


def test_b5_b7_the_planted_miscompilation_is_named_and_found_again_without_compiling(run, tmp_path):
    fault = ("compiled_layer_by_layer.py", "--folder", tmp_path, "--layers", "0", "2", "3")
    text = run(*fault, "--miscompile", 2, code=1)
    assert "FAULT: " in text
    assert "first departing layer: model.layers.2" in text
    assert (tmp_path / "full_model/layer_3_output.pt").exists(), "layer 2 keeps its true number, counted from 1"
    assert not (tmp_path / "full_model/layer_2_output.pt").exists()
    again = run("compiled_layer_by_layer.py", "--folder", tmp_path, "--skip-compile", code=1)
    assert "first departing layer: model.layers.2" in again
