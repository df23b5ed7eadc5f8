"""The pair kernel on a CUDA device: is it right, how near to the read limit is it, which settings are best.

    PYTHONPATH=src:benchmarks python3 benchmarks/gpu_pair.py          # checks, then the table
    PYTHONPATH=src:benchmarks python3 benchmarks/gpu_pair.py --tune   # the same, then many settings

The read limit is half the time of a device-to-device copy of the bytes of both tensors, measured in the same run.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from gpu_kernel import milliseconds, read_limit

from layertap.measure.pair import kernel as pair_kernel
from layertap.measure.pair.many import read_pairs

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "measure"))
from test_pair_kernel import FLAVOURS, differences, pair  # type: ignore[import-not-found]

WIDTH = 4096
SIZES = (1 << 28, 1 << 29, 1 << 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    dtype: str
    bytes: int
    """Of each tensor."""
    ms: float
    """What rounding is judged by: error, slope, offset, worst row and column."""
    limit_ms: float
    """One read of both tensors, at the speed of a copy."""
    formulas_ms: float
    """The same sums, as people write them."""

    @property
    def share(self) -> float:
        return self.limit_ms / self.ms


def pair_table(kinds: tuple[str, ...] = ("float32", "bfloat16", "float16"), width: int = WIDTH) -> list[Row]:
    """A row a dtype and size, for tensors that are many times the size of the cache."""
    rows = []
    for kind in kinds:
        for size in SIZES:
            a, b = large(kind, size, width)
            rows.append(
                Row(
                    dtype=kind,
                    bytes=a.nbytes,
                    ms=queued(lambda a=a, b=b: pair_kernel.launch_pair(a, b)),  # type: ignore[misc]
                    limit_ms=2 * read_limit(a),
                    formulas_ms=milliseconds(lambda a=a, b=b: formulas(a, b), 3),  # type: ignore[misc]
                )
            )
            del a, b
            torch.cuda.empty_cache()
    return rows


def queued(call: Callable[[], object], times: int = 60) -> float:
    """The device's time for a call, median: all calls wait behind a pause, lest the device waits for the host's."""

    def first() -> None:
        nonlocal begun
        if begun == 5:  # the calls that warm up are over
            torch.cuda._sleep(100_000_000)
        begun += 1
        call()

    begun = 0
    return milliseconds(first, times)


def formulas(a: torch.Tensor, b: torch.Tensor) -> None:
    """The comparison as it is usually written."""
    r = a.float()
    d = b.float() - r
    wrong, size = d.square(), r.square()
    wrong.sum(), size.sum(), (r * d).sum(), d.sum()
    for axis in (0, 1):
        (wrong.sum(axis) / size.sum(axis)).max()


KINDS = (("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float16"), ("float32", "bfloat16"))


def check_pair(kinds: tuple[tuple[str, str], ...] = KINDS) -> list[str]:
    """What the kernel gets wrong on fresh numbers, holes and odd sizes included; empty if nothing."""
    wrong = []
    shapes = ((7, 64), (300, 256), (1001, 1000), (5, 77, 130), (100_003,), (64, 9000), (333, 4096), (4096, 2880))
    for one, two in kinds:
        for shape in shapes:
            for flavour in FLAVOURS if one == two and shape[-1] in (256, 1000) else FLAVOURS[:2]:
                if flavour in ("tiny", "huge") and one == "float16":
                    continue
                a, b = (side.cuda() for side in pair(one, two, shape, flavour))
                first = pair_kernel.launch_pair(a, b)
                first.block.slabs.view(torch.uint8).fill_(0xAA)  # what the next leave out would be seen
                kept = [pair_kernel.launch_pair(a, b) for _ in range(2)]
                found = read_pairs(kept[:1])[0]
                where = f"{one}, {two} {shape} {flavour}"
                wrong += [f"{where}: {text}" for text in differences(found, a, b)]
                if not torch.equal(*(row.slab.view(torch.int64) for row in kept)):
                    wrong.append(f"{where}: two launches differ")
    for (kind, two), flavour in itertools.product(kinds, ("plain", "dead", "holes")):
        a, b = (side.cuda() for side in pair(kind, two, (4096, 4096), flavour))
        found = read_pairs([pair_kernel.launch_pair(a, b)])[0]
        wrong += [f"{kind}, 4096 rows, {flavour}: {text}" for text in differences(found, a, b)]
        if flavour == "dead" and not (found[5] == 1365 and found[4] > 0.98):
            wrong.append(f"{kind}: the dead row was not found: {found[4:6]}")
    return wrong


def tune() -> None:
    """Prints the share of the read limit for many settings, best first; the names are the module's own."""
    names = ("_BLOCKS", "_WARPS", "_STAGES", "_PER_SM")
    kept = {name: getattr(pair_kernel, name) for name in names}
    print(f"{'dtype':10}{'blocks':>7}{'warps':>6}{'stages':>7}{'per SM':>7}{'ms':>9}{'share':>7}")
    for kind, words in (("bfloat16", True), ("float32", False)):
        a, b = large(kind, SIZES[1], WIDTH)
        limit, found = 2 * read_limit(a), []
        for (blocks, most), warps, stages in itertools.product(((2, 12), (4, 8), (8, 8)), (1, 2, 4), (1, 2, 3, 4)):
            if words and blocks == 8:
                continue  # more registers than there are
            for name, value in zip(names, (blocks, warps, stages, most // warps), strict=True):
                setattr(pair_kernel, name, {words: value})
            pair_kernel._plan.cache_clear()
            ms = queued(lambda: pair_kernel.launch_pair(a, b), 15)  # noqa: B023
            found.append((ms, blocks, warps, stages, most // warps))
        for ms, blocks, warps, stages, per_sm in sorted(found)[:12]:
            print(f"{kind:10}{blocks:7}{warps:6}{stages:7}{per_sm:7}{ms:9.4f}{limit / ms:7.3f}", flush=True)
    for name, value in kept.items():
        setattr(pair_kernel, name, value)


def large(kind: str, size: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = getattr(torch, kind)
    a = (torch.randn(size // dtype.itemsize // width, width, device="cuda") * 3).to(dtype)
    return a, (a.float() + 0.01 * torch.randn(a.shape, device="cuda")).to(dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tune", action="store_true")
    arguments = parser.parse_args()
    wrong = check_pair()
    print("\n".join(wrong[:40]) or "check: everything right", flush=True)
    for row in pair_table():
        print(f"{row.dtype:10}{row.bytes:12}{row.ms:9.4f} ms {row.share:6.3f} of the read limit, formulas", end=" ")
        print(f"{row.formulas_ms:8.3f} ms", flush=True)
    a, b = large("bfloat16", 1 << 20, WIDTH)
    kept = [pair_kernel.launch_pair(a, b)]  # or their block would be allocated again and again
    begin = time.perf_counter()
    kept += (pair_kernel.launch_pair(a, b) for _ in range(500))
    print(f"host: {(time.perf_counter() - begin) * 2e3:.1f} us a launch")
    if arguments.tune:
        tune()


if __name__ == "__main__":
    main()
