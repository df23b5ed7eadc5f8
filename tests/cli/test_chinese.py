"""With `LAYERTAP_LANG=zh` no English sentence is left in what the ten most common commands print (F4)."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

NET = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def make():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(8, 4)).eval()


def bad():
    model = make()
    with torch.no_grad():
        model[1].up.weight.mul_(1.1)
    return model
"""
TRAIN = """
import torch
from net import make

model = make().train()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""
MODES = """
target = "net.py:make"
[input]
file = "x.npz"
[modes.fp32]
[modes.bf16]
dtype = "bfloat16"
"""
COMMANDS = (
    "record net.py:make --inputs x.npz --keep tensor -o a",
    "record net.py:bad --inputs x.npz --keep tensor -o b",
    "record net.py:make --inputs x.npz --plan",
    "show a",
    "show a 1.up",
    "diff a b -v",
    "fault net.py:make net.py:bad --inputs x.npz -v",
    "audit net.py:make net.py:bad",
    "report a b -o page.md",
    "export a --layout npz -o a.npz",
    "diff a nowhere",
    "show a 9.up",
    "record net.py:absent -o c",
)
SLOW = (f"watch -o w -- {sys.executable} train.py", "show w", "sweep modes.toml -o s")
VERBS = ("record", "show", "diff", "fault", "audit", "doctor", "prune", "sweep", "watch", "export", "report", "view")
QUOTED = re.compile(r"`[^`]*`|'[^']*'|\"[^\"]*\"|（?docs/\S+|\{[^}]*\}|<[^>]*>")
CHINESE = re.compile(r"[\u4e00-\u9fff]")
ENGLISH = re.compile(r"(?<![\w.:/_=-])[a-z]{2,}(?: [a-z]{2,}){2,}(?![\w.:/_=-])")
"""Three words of small letters in a row: a name, an option or a metric has fewer."""


RUNNER = """
import json, sys
from layertap.cli import main

for arguments in json.loads(sys.argv[1]):
    sys.argv = ["layertap", *arguments]
    try:
        main()
    except SystemExit:
        pass
    sys.stdout.write("\\0")
    sys.stdout.flush()
"""


def chinese(folder, *commands):
    """What each command prints; all run in one process, one after the other."""
    environment = {**os.environ, "LAYERTAP_LANG": "zh", "COLUMNS": "240", "PYTHONPATH": _path(folder)}
    command = [sys.executable, "-c", RUNNER, json.dumps([one.split() for one in commands])]
    found = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    texts = found.stdout.split("\0")[:-1]
    assert len(texts) == len(commands)
    assert "Traceback" not in found.stdout, found.stdout
    return dict(zip(commands, texts, strict=True))


def _path(folder):
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def english(text):
    """Lines in which English is left, once quotations, tables of numbers and code are put aside."""
    return [line for line in text.splitlines() if ENGLISH.search(QUOTED.sub("", line))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zh")
    (folder / "net.py").write_text(NET)
    (folder / "train.py").write_text(TRAIN)
    (folder / "modes.toml").write_text(MODES)
    np.savez(folder / "x.npz", input=np.random.RandomState(0).randn(4, 8).astype("float32"))
    return folder


def test_the_finder_sees_english():
    assert english("误差：the error is above what rounding explains")
    assert not english("layers.1  Linear  max rel  0.1  位置 `a b c d` aten.addmm.default")


@pytest.mark.slow
def test_f4_the_commands_speak_chinese(folder):
    texts = chinese(folder, *COMMANDS, *SLOW)
    left = {command: english(text) for command, text in texts.items()}
    assert {command: lines for command, lines in left.items() if lines} == {}
    assert all(CHINESE.search(text) for text in texts.values())
    assert not english((folder / "page.md").read_text())


def test_f4_the_help_speaks_chinese(folder):
    texts = chinese(folder, "--help", *(f"{verb} --help" for verb in VERBS))
    assert {command: lines for command, text in texts.items() if (lines := english(text))} == {}
    assert all("用法" in text for text in texts.values())
