"""What measuring costs on the CPU, beside a plain sum and beside the statistics that people write by hand.

Times are the least of several interleaved repetitions, and only ratios within one run are judged.

    python benchmarks/cpu.py [megabytes]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

from layertap.measure import measure, native, plain

REPETITIONS = 20


def by_hand(x: torch.Tensor) -> None:
    f = x.float()
    f.mean(), f.std(), f.min(), f.max(), torch.isnan(x).any(), torch.isinf(x).any()


WAYS: dict[str, Callable[[torch.Tensor], object]] = {
    "x.sum()": lambda x: x.sum(),
    "statistics by hand": by_hand,
    "layertap, statistics only": lambda x: measure(x, statistics_only=True),
    "layertap, all": measure,
}
PLAIN = "layertap, plain torch"
"""Slow, and not judged, so it gets a sixteenth of the tensor."""


def least_seconds(x: torch.Tensor) -> dict[str, float]:
    best = dict.fromkeys(WAYS, float("inf"))
    slow = "statistics by hand"  # a few are enough of what takes a second
    for repetition in range(REPETITIONS):
        for name, way in WAYS.items():
            if name == slow and repetition % 4:
                continue
            begin = time.perf_counter()
            way(x)
            best[name] = min(best[name], time.perf_counter() - begin)
    begin = time.perf_counter()
    plain.finish(plain.start(x[: len(x) // 16]))
    best[PLAIN] = 16 * (time.perf_counter() - begin)
    return best


def main(megabytes: int = 256) -> int:
    print(f"{megabytes} MB, {torch.get_num_threads()} threads, compiled: {native.available()}")
    print(f"{'dtype':9} {'way':27} {'ms':>9} {'ns/element':>11} {'x by hand':>10} {'x sum':>7}")
    missed = []
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(megabytes * 2**20 // dtype.itemsize).to(dtype)
        best, name = least_seconds(x), str(dtype).removeprefix("torch.")
        total, hand = best["x.sum()"], best["statistics by hand"]
        for way, seconds in best.items():
            ratios = f"{hand / seconds:10.2f} {total / seconds:7.2f}"
            print(f"{name:9} {way:27} {1e3 * seconds:9.2f} {1e9 * seconds / x.numel():11.3f} {ratios}")
        if hand / best["layertap, all"] < 4:
            missed.append(f"{name}: all of it should be 4 times as fast as statistics by hand")
        if total / best["layertap, statistics only"] < 0.5:
            missed.append(f"{name}: statistics should take at most twice as long as a sum")
    print("\n".join(["missed: " + text for text in missed] or ["both targets met"]))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
