"""What a sweep costs: eight modes of a 24-layer model, `python benchmarks/sweep.py [FOLDER]`.

Wall time as a multiple of the slowest mode alone, with as many modes at once as there are cores for; bytes on the disk
against those of one mode, and of eight runs that share nothing. The model is a stack of 24 blocks of width 512 on
4 x 256 tokens; the input and the output of every block are kept.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

import layertap as lt  # noqa: E402

MODEL = """
import os
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        h = self.up(self.norm(x))
        if os.environ.get("GRID"):
            step = h.abs().amax() / 127
            h = (h / step).round() * step
        return x + self.down(torch.relu(h))


class Net(nn.Module):
    def __init__(self, layers=24, width=512):
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def make():
    torch.manual_seed(0)
    return Net().eval()
"""
MODES = {
    "fp32": {},
    "same": {"env": {"UNUSED": "1"}},
    "again": {"env": {"UNUSED": "2"}},
    "grid": {"env": {"GRID": "1"}},
    "bf16": {"dtype": "bfloat16"},
    "fp16": {"dtype": "float16"},
    "int8": {"quantize": "int8_weight_only"},
    "batch": {"batch": 2},
}


def main() -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        folder = Path(name)
        (folder / "net.py").write_text(MODEL, encoding="utf-8")
        definition = {
            "target": f"{folder / 'net.py'}:make",
            "input": {"random": [4, 256, 512], "seed": 0},
            "sensitivity": False,
            "modes": MODES,
        }
        found = lt.sweep(definition, folder / "together")
        assert not found.failed, str(found)
        slowest = max(found.modes.values(), key=lambda mode: mode.seconds).name
        alone = lt.sweep(definition, folder / "alone", [slowest], reference=slowest)
        again = lt.sweep(definition, folder / "together")
        assert all(mode.resumed for mode in again.modes.values())
        folders = [Path(mode.path) for mode in found.modes.values()]
        apart = sum(path.stat().st_size for one in folders for path in one.rglob("*") if path.is_file())
        print(found)
        print(f"\n{os.cpu_count()} cores, at most {found.jobs} modes at once, load {os.getloadavg()[0]:.1f}")
        print(f"the slowest mode ({slowest}) alone: {alone.seconds:.1f} s")
        print(f"eight modes: {found.seconds:.1f} s, {found.seconds / alone.seconds:.2f} x that")
        print(f"again, with every run there: {again.seconds:.1f} s")
        mib = 1 << 20
        print(
            f"on disk: {found.disk / mib:.1f} MiB, {found.disk / found.disk_of_one:.2f} x the largest mode "
            f"({found.disk_of_one / mib:.1f} MiB); eight runs that share nothing: {apart / mib:.1f} MiB"
        )


if __name__ == "__main__":
    main()
