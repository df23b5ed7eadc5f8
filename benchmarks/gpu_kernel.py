"""The fused kernel on a CUDA device: is it right, how near to the read limit is it, which settings are best.

    PYTHONPATH=src python3 benchmarks/gpu_kernel.py          # checks, then the table
    PYTHONPATH=src python3 benchmarks/gpu_kernel.py --tune   # the table for many settings

The read limit is half the time of a device-to-device copy of the same bytes, measured in the same run.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from layertap.measure import kernel
from layertap.measure.slab import SLAB_BYTES

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "measure"))
from test_kernel import FLAVOURS, differences, tensor  # type: ignore[import-not-found]

ELEMENTS = 1 << 28
KINDS = ("float32", "bfloat16", "float16", "float8_e4m3fn", "int8", "float64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    dtype: str
    bytes: int
    ms: float
    """The fused kernel: statistics, fingerprint and sketch."""
    limit_ms: float
    """One read of the tensor, at the speed of a copy."""
    six_calls_ms: float
    """The statistics only, as six separate torch calls."""

    @property
    def share(self) -> float:
        return self.limit_ms / self.ms


def kernel_table(kinds: tuple[str, ...] = KINDS) -> list[Row]:
    """One row a dtype, for tensors that are many times the size of the cache."""
    rows = []
    for kind in kinds:
        x = large(kind)
        slab = new_slab()
        rows.append(
            Row(
                dtype=kind,
                bytes=x.nbytes,
                ms=milliseconds(lambda x=x, slab=slab: kernel.launch(x, slab)),  # type: ignore[misc]
                limit_ms=read_limit(x),
                six_calls_ms=milliseconds(lambda x=x: six_calls(x), 10),  # type: ignore[misc]
            )
        )
        del x
    return rows


def six_calls(x: torch.Tensor) -> None:
    """Statistics as they are usually taken."""
    f = x.float()
    f.mean(), f.std(), f.min(), f.max(), torch.isnan(f).any(), torch.isinf(f).any()


def read_limit(x: torch.Tensor) -> float:
    y = torch.empty_like(x)
    return milliseconds(lambda: y.copy_(x)) / 2


def milliseconds(call: Callable[[], object], times: int = 60) -> float:
    """Median over events; the first calls compile and warm up."""
    for _ in range(5):
        call()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(times)]
    torch.cuda.synchronize()
    for begin, end in marks:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return float(statistics.median(begin.elapsed_time(end) for begin, end in marks))


def check() -> list[str]:
    """What the kernel gets wrong on fresh numbers, holes and odd sizes included; empty if nothing."""
    wrong = []
    deferred = kernel.Deferred(torch.device("cuda", torch.cuda.current_device()))
    for name in kernel._FAST + kernel._EXACT:
        for count in (0, 1, 9, 4015, 4016, 4017, 1_000_003, 30_000_000 if name in ("float32", "bfloat16") else 70_001):
            for flavour in FLAVOURS if name in ("float32", "bfloat16", "float16") else FLAVOURS[:2]:
                x = tensor(name, count, flavour).cuda()
                slabs = [new_slab(), new_slab()]
                for slab in slabs:
                    kernel.launch(x, slab)
                if count:
                    together = torch.full((2, SLAB_BYTES), 0xAA, dtype=torch.uint8, device="cuda")
                    deferred.launch(x, together, 0)
                    deferred.launch(x, together, 1)
                    deferred.finish()
                    wrong += [f"{name}[{count}] {flavour}, deferred: {text}" for text in differences(x, together[1])]
                wrong += [f"{name}[{count}] {flavour}: {text}" for text in differences(x, slabs[0])]
                if not torch.equal(*slabs):
                    wrong.append(f"{name}[{count}] {flavour}: two launches differ")
        x = tensor(name, 200_003, "holes").cuda()[1:]
        kernel.launch(x, slabs[0])
        wrong += [f"{name}, not aligned: {text}" for text in differences(x.clone(), slabs[0])]
    return wrong + check_streams()


def check_streams() -> list[str]:
    """Two streams at once, and a graph: none may see another's partial results."""
    wrong = []
    xs = [tensor("bfloat16", 30_000_000 + i, "holes").cuda() for i in range(2)]
    slabs, streams = [new_slab() for _ in xs], [torch.cuda.Stream() for _ in xs]
    torch.cuda.synchronize()
    for _ in range(20):
        for x, slab, stream in zip(xs, slabs, streams, strict=True):
            with torch.cuda.stream(stream):
                kernel.launch(x, slab)
    torch.cuda.synchronize()
    for x, slab in zip(xs, slabs, strict=True):
        wrong += [f"two streams: {text}" for text in differences(x, slab)]
    graph, slab = torch.cuda.CUDAGraph(), new_slab()
    with torch.cuda.graph(graph):
        kernel.launch(xs[0], slab)
    for x in xs:
        xs[0].copy_(x[: len(xs[0])])
        graph.replay()
        wrong += [f"graph: {text}" for text in differences(xs[0], slab)]
    return wrong


def tune() -> None:
    """Prints the share of the read limit for many settings, best first; the names are the module's own."""
    print(f"{'dtype':10}{'warps':>6}{'rows':>5}{'chunk':>6}{'stages':>7}{'per SM':>7}{'ms':>9}{'share':>7}")
    for kind in ("float32", "bfloat16"):
        x, slab = large(kind), new_slab()
        limit, found = read_limit(x), []
        for warps, rows, stages, per_sm in itertools.product((16, 32), (2, 4, 8), (1, 2, 3, 4), (1, 2)):
            if rows * x.element_size() * stages > 48 or (warps == 32 and per_sm == 2):
                continue
            kernel._WARPS, kernel._ROWS, kernel._CHUNK = warps, rows, 64 // rows
            kernel._STAGES, kernel._PER_SM = stages, per_sm
            kernel._programs.cache_clear()
            kernel._ready.clear()
            try:
                ms = milliseconds(lambda: kernel.launch(x, slab), 30)  # noqa: B023
            except Exception as error:  # noqa: BLE001  out of shared memory
                print(warps, rows, stages, per_sm, repr(error)[:90])
                continue
            found.append((ms, warps, rows, 64 // rows, stages, per_sm))
        for ms, warps, rows, chunk, stages, per_sm in sorted(found)[:12]:
            setting = f"{kind:10}{warps:6}{rows:5}{chunk:6}{stages:7}{per_sm:7}"
            print(f"{setting}{ms:9.4f}{limit / ms:7.3f}", flush=True)


def large(kind: str) -> torch.Tensor:
    x = torch.randn(ELEMENTS // (2 if kind == "float64" else 1), device="cuda") * 9
    return x.to(getattr(torch, kind))


def new_slab() -> torch.Tensor:
    return torch.full((SLAB_BYTES,), 0xAA, dtype=torch.uint8, device="cuda")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--table", action="store_true", help="the table alone, without the check before it")
    arguments = parser.parse_args()
    if arguments.tune:
        tune()
        return
    if not arguments.table:
        print("\n".join(check()) or "check: everything right")
    for row in kernel_table():
        print(f"{row.dtype:14}{row.bytes:12}{row.ms:9.4f} ms {row.share:6.3f} of the read limit, six calls", end=" ")
        print(f"{row.six_calls_ms:8.3f} ms")
    small, slab = torch.randn(100, device="cuda"), new_slab()
    for count in (100, 1 << 20, 1 << 24):
        x = torch.randn(count, device="cuda")
        print(f"float32[{count}]: {milliseconds(lambda x=x: kernel.launch(x, slab)) * 1e3:.1f} us")  # type: ignore[misc]
    deferred = kernel.Deferred(small.device)
    slabs = torch.empty((500, SLAB_BYTES), dtype=torch.uint8, device="cuda")
    for megabytes in (1, 8, 24):
        x = torch.randn(megabytes << 19, device="cuda").to(torch.bfloat16)

        def thirty_two(x: torch.Tensor = x) -> None:
            for index in range(32):
                deferred.launch(x, slabs, index)
            deferred.finish()

        alone = milliseconds(lambda x=x: kernel.launch(x, slab)) * 1e3  # type: ignore[misc]
        together = milliseconds(thirty_two, 20) * 1e3 / 32
        print(
            f"bfloat16, {megabytes} MB: {alone:.1f} us alone, {together:.1f} us each of 32 that are finished together"
        )
    for name, work in (
        ("launch", lambda index: kernel.launch(small, slab)),
        ("deferred launch", lambda index: deferred.launch(small, slabs, index)),
    ):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for index in range(500):
            work(index)
        print(f"host: {(time.perf_counter() - begin) * 2e3:.1f} us a {name}")
        deferred.finish()


if __name__ == "__main__":
    main()
