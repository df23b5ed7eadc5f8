"""The examples run as they are, and print what they promise."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))

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


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path, tmp_path):
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    for text in PROMISED[path.stem]:
        assert text in done.stdout


def test_c14_the_functions_of_the_documented_examples_give_what_their_comments_promise():
    example = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "train_monitor.py"))
    outputs = [(torch.zeros(rows, 6, 8), torch.softmax(torch.randn(rows, 4, 6, 6), dim=-1)) for rows in (5, 3)]
    assert example["average_attention"](outputs).shape == (4, 6, 6)
    analysis = example["process_attention"](outputs)
    assert analysis["head_importance"].shape == (4,)
    assert analysis["head_importance"].unique().numel() == 4, "the mean weight would be 1 / 6 for every head"
    assert analysis["layer_patterns"].shape == (8, 6, 6)
    values = [torch.randn(5, 2), torch.randn(3, 2)]
    stats = example["feed_forward_statistics"](values)
    assert torch.equal(stats["std"], torch.cat(values).std(dim=0))
