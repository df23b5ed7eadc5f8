"""What comparing costs, beside the formulas that people write by hand in torch, on the same data in the same process.

Times are the least of several interleaved repetitions, and only their ratios are judged: exit code 1 on a miss.

    python benchmarks/compare.py [megabytes]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

from layertap.measure.pair import Array, compare
from layertap.measure.pair import native as pair_native
from layertap.measure.pair.difference import Difference

REPETITIONS = 5
WANTED = 6.0
"""So many times as fast as by hand, with all metrics instead of six."""


def by_hand(a: torch.Tensor, b: torch.Tensor) -> float:
    d = (a.float() - b.float()).abs()
    most, _ = d.max(), d.mean()
    r = d / (a.float().abs() + 1e-8)
    r.max(), r.mean()
    torch.nn.functional.cosine_similarity(a.float().flatten(), b.float().flatten(), dim=0)
    torch.allclose(a, b, rtol=1e-3, atol=1e-3)
    return float(most)


def by_layertap(a: torch.Tensor, b: torch.Tensor) -> Difference:
    return compare(_array(a), _array(b))


def _array(x: torch.Tensor) -> Array:
    raw = x.view(-1).view(torch.uint8).numpy()
    return Array(raw=raw, dtype=str(x.dtype).removeprefix("torch."), shape=tuple(x.shape))


def least_seconds(ways: list[Callable[[], object]]) -> list[float]:
    best = [float("inf")] * len(ways)
    for _ in range(REPETITIONS):
        for i, way in enumerate(ways):
            begin = time.perf_counter()
            way()
            best[i] = min(best[i], time.perf_counter() - begin)
    return best


def pairs_in_memory(megabytes: int) -> list[str]:
    """Two tensors of `megabytes` each; returns what was missed."""
    print(f"pairs of {megabytes} MB, {torch.get_num_threads()} threads, compiled: {pair_native.available()}")
    print(f"{'dtype':9} {'by hand ms':>11} {'layertap ms':>12} {'GB/s':>6} {'ns/element':>11} {'times as fast':>14}")
    missed = []
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.randn(megabytes * 2**20 // dtype.itemsize // 4096, 4096)
        b = (a + 1e-3 * torch.randn_like(a)).to(dtype)
        a, name = a.to(dtype), str(dtype).removeprefix("torch.")
        assert by_layertap(a, b).max_abs == by_hand(a, b)  # the same work, on the same data
        hand, ours = least_seconds([lambda a=a, b=b: by_hand(a, b), lambda a=a, b=b: by_layertap(a, b)])
        speed = f"{2e-9 * a.nbytes / ours:6.2f} {1e9 * ours / a.numel():11.3f}"
        print(f"{name:9} {1e3 * hand:11.1f} {1e3 * ours:12.1f} {speed} {hand / ours:14.2f}")
        if hand / ours < WANTED:
            missed.append(f"{name}: should be {WANTED:g} times as fast as by hand, is {hand / ours:.2f}")
    return missed


def main(megabytes: int = 256) -> int:
    missed = pairs_in_memory(megabytes)
    print("\n".join(["missed: " + text for text in missed] or ["all targets met"]))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
