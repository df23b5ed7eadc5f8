"""`diff` from disk, end to end: speed beside plain reading of the same files, and peak memory.

    python benchmarks/diff.py [gigabytes of each run, 1] [--keep FOLDER]

Exits 1 if a target is missed: 1.5 GB/s of pairs or 0.7 of what reading costs, whichever is lower; less than 1 GB of
memory, however large the runs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import layertap as lt

PIECE = 64 << 20
REPETITIONS = 3


class Stack(nn.Module):
    """Passes its input on through many places, a little changed at each."""

    def __init__(self, depth: int, off: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Identity() for _ in range(depth))
        self.off = off

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x * (1.0 + self.off))
        return x


def make(folder: Path, gigabytes: float) -> None:
    depth = int(gigabytes * 2**30 / PIECE)
    x = torch.randn(PIECE // 4 // 4096, 4096)
    for name, off in (("reference", 0.0), ("candidate", 1e-7)):
        model = Stack(depth, off)
        with lt.record(model, folder / name, sites="layers.*", keep="tensor", budget="256MiB"):
            model(x)


def read_all(folder: Path) -> int:
    """Reads every byte of both runs' tensors, as fast as the system gives them."""
    buffer, total = bytearray(8 << 20), 0
    for file in sorted(folder.glob("*/tensors/*")):
        with file.open("rb", buffering=0) as stream:
            while count := stream.readinto(buffer):
                total += count
    return total


PEAK = """
import sys, layertap as lt
lt.diff(sys.argv[1] + "/reference", sys.argv[1] + "/candidate")
# Not getrusage: on Linux its peak begins with that of the process that started this one.
print(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def peak_memory(folder: Path) -> int:
    """Of a fresh process that does nothing but compare, in bytes."""
    done = subprocess.run([sys.executable, "-c", PEAK, str(folder)], capture_output=True, text=True, check=True)
    return 1024 * int(done.stdout)


def main(gigabytes: float, folder: Path) -> int:
    if not (folder / "candidate").exists():
        make(folder, gigabytes)
    best = {"read": float("inf"), "diff": float("inf")}
    for _ in range(REPETITIONS):
        begin = time.perf_counter()
        total = read_all(folder)
        best["read"] = min(best["read"], time.perf_counter() - begin)
        begin = time.perf_counter()
        report = lt.diff(folder / "reference", folder / "candidate")
        best["diff"] = min(best["diff"], time.perf_counter() - begin)
    assert report.verdict in ("noise", "inconclusive"), str(report)
    assert all(row.difference is not None for row in report.rows[1:]), "some pairs were not read"
    speed, share = total / best["diff"] / 1e9, best["read"] / best["diff"]
    peak = peak_memory(folder)
    print(f"two runs of {total / 2e9:.1f} GB, {len(report.rows)} pairs of {PIECE >> 20} MB")
    print(f"  reading      {best['read']:7.2f} s  {total / best['read'] / 1e9:6.2f} GB/s")
    print(f"  diff         {best['diff']:7.2f} s  {speed:6.2f} GB/s of pairs, {share:.2f} of the speed of reading")
    print(f"  peak memory  {peak / 1e6:7.0f} MB")
    missed = []
    if speed < 1.5 and share < 0.7:
        missed.append(f"speed: {speed:.2f} GB/s and {share:.2f} of reading; wanted 1.5 GB/s or 0.7")
    if peak > 1e9:
        missed.append(f"memory: {peak / 1e6:.0f} MB; wanted less than 1000")
    print("\n".join(["missed: " + text for text in missed] or ["all targets met"]))
    return int(bool(missed))


if __name__ == "__main__":
    kept = Path(sys.argv[sys.argv.index("--keep") + 1]) if "--keep" in sys.argv else None
    place = kept or Path(tempfile.mkdtemp(prefix="layertap-bench-"))
    try:
        amount = float(sys.argv[1]) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else 1.0
        code = main(amount, place)
    finally:
        if kept is None:
            shutil.rmtree(place)
    sys.exit(code)
