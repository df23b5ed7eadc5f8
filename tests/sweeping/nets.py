"""The target that the sweeps of these tests run, and sweeps of it."""

NET = """
import os
import torch
from torch import nn
import helper


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, width)

    def forward(self, x):
        h = self.fc.forward(self.norm(x))
        if os.environ.get("SCAN") == "torch":
            step = h.abs().max() / 127
            h = (h / step).round().clamp(-128, 127) * step
        return helper.add(x, h), h


class Net(nn.Module):
    def __init__(self, layers=3, width=32, vocabulary=100):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for layer in self.layers:
            x, _ = layer(x)
        return self.head(x)


def make(vandal=False, mute=False, **arguments):
    if "SEEN" in os.environ:
        raise RuntimeError("a variable of the caller is seen")
    if vandal:
        os.environ["SCAN"] = "torch"
        os.environ["SEEN"] = "1"
        nn.functional.layer_norm = torch.layer_norm = lambda x, *a, **k: x * 0
        torch.manual_seed(99)
    torch.manual_seed(0)
    net = Net(**arguments).eval()
    if mute:
        net.forward = lambda input_ids: torch.zeros(1)
    return net
"""
HELPER = "def add(x, h):\n    return x + h\n"
MODES = """
target = "net.py:make"
reference = "fp32"
sites = ["first", "last"]
input = { random = [2, 32], vocabulary = 100, seed = 0 }

[modes.fp32]
[modes."0"]
env = { UNUSED = "1" }
[modes."2-1"]
env = { SCAN = "torch" }
[modes.vandal]
arguments = { vandal = true }
[modes.after]
[modes.wrong]
arguments = { nothing = 1 }
[modes.mute]
arguments = { mute = true }

[presets]
essential = ["fp32", "2-1"]

[questions]
"what the grid costs" = ["fp32", "2-1"]
"is 0 the reference" = ["fp32", "0"]
"""


def write(folder, modes=MODES):
    """The definition's path in a folder that holds the target too."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "net.py").write_text(NET)
    (folder / "helper.py").write_text(HELPER)
    (folder / "modes.toml").write_text(modes)
    return folder / "modes.toml"
