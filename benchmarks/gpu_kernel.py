"""The fused kernel on a CUDA device: is it right, how near to the read limit is it, which settings are best.

    PYTHONPATH=src python3 benchmarks/gpu_kernel.py          # checks, then the table
    PYTHONPATH=src python3 benchmarks/gpu_kernel.py --tune   # many settings of kernel.GEOMETRY, within two minutes
    PYTHONPATH=src python3 benchmarks/gpu_kernel.py --against packed=False

The read limit is half the time of a device-to-device copy of the same bytes, measured in the same run.
"""

from __future__ import annotations

import argparse
import ast
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass, fields, replace
from multiprocessing import get_context
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
    kinds = (*kernel._FAST, *kernel._EXACT)
    with futures.ProcessPoolExecutor(min(14, os.cpu_count() or 1), get_context("spawn")) as pool:
        list(pool.map(compile_all, kinds))
    wrong = []
    deferred = kernel.Deferred(torch.device("cuda", torch.cuda.current_device()))
    for name in kinds:
        floats = name in ("float32", "bfloat16", "float16")
        for count in (0, 1, 9, 4015, 4016, 4017, 1_000_003, LARGE_CHECKED if floats or "8" in name else 70_001):
            for flavour in FLAVOURS if floats else FLAVOURS[:2]:
                x = tensor(name, count, flavour).cuda()
                slabs = [new_slab(), new_slab()]
                for slab in slabs:
                    kernel.launch(x, slab)
                if count:
                    together = torch.full((2, SLAB_BYTES), 0xAA, dtype=torch.uint8, device="cuda")
                    deferred.launch(x, together, 0)
                    deferred.launch(x, together, 1)
                    deferred.finish()
                    if not torch.equal(*together):
                        wrong.append(f"{name}[{count}] {flavour}, deferred: two launches differ")
                    # Numpy takes seconds over a large tensor: there each way is looked at once, on some flavours.
                    if count != LARGE_CHECKED:
                        wrong += [
                            f"{name}[{count}] {flavour}, deferred: {each}" for each in differences(x, together[1])
                        ]
                wrong += [f"{name}[{count}] {flavour}: {text}" for text in differences(x, slabs[0])]
                if not torch.equal(*slabs):
                    wrong.append(f"{name}[{count}] {flavour}: two launches differ")
        x = tensor(name, 200_003, "holes").cuda()[1:]
        kernel.launch(x, slabs[0])
        wrong += [f"{name}, not aligned: {text}" for text in differences(x.clone(), slabs[0])]
    return wrong + check_streams()


LARGE_CHECKED = 5_000_001
"""Elements: with 16 bits each more than `kernel.SHORT`."""


def compile_all(kind: str) -> None:
    """All kernels for one kind of number, in a process of its own; triton keeps them on disk."""
    whole = torch.zeros(LARGE_CHECKED, device="cuda", dtype=torch.int8 if kind == "bool" else getattr(torch, kind))
    whole = whole.view(getattr(torch, kind))
    deferred, slabs = kernel.Deferred(whole.device), torch.stack([new_slab()] * 2)
    for x in (whole, whole[:70_001], whole[1:70_001]):
        kernel.launch(x, slabs[0])
        deferred.launch(x, slabs, 0)
        deferred.finish()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One setting for one kind of number."""

    kind: str
    geometry: kernel.Geometry
    microseconds: dict[int, float]
    """By megabytes of the tensor; 0 for the large one."""
    limit: float
    """Microseconds of one read of the large one."""
    wrong: str = ""

    def __str__(self) -> str:
        times = " ".join(f"{f'{size} MB' if size else 'large'} {us:.1f}" for size, us in self.microseconds.items())
        share = f"{self.limit / self.microseconds[0]:.3f}" if self.microseconds else "-"
        return (
            f"{self.kind:14}{share:>6}  {settings(self.geometry)}  us: {times}{self.wrong and '  WRONG: ' + self.wrong}"
        )


SMALL = (1, 8, 24)
TRIED = {
    **{
        kind: [{"rows": rows, "chunk": total // rows} for rows in (2, 4, 8) for total in (64, 128, 256)]
        + [{"packed": False, "rows": 4, "chunk": 16}]
        for kind in ("bfloat16", "float16")
    },
    **{
        kind: [{"rows": rows, "chunk": total // rows} for rows in (4, 8, 16) for total in (64, 128)]
        for kind in ("float8_e4m3fn", "int8")
    },
    "float64": [{"rows": rows, "chunk": 64 // rows, "per_sm": per_sm} for rows in (4, 8, 16) for per_sm in (1, 2)],
    "float32": [{"rows": rows, "chunk": 64 // rows, "per_sm": per_sm} for rows in (2, 4, 8) for per_sm in (1, 2)],
}
"""What --tune tries, as changes of kernel.GEOMETRY."""


def settings(geometry: kernel.Geometry) -> str:
    return ", ".join(f"{field.name}={getattr(geometry, field.name)}" for field in fields(geometry))


def candidates() -> list[tuple[str, kernel.Geometry]]:
    found = []
    for kind, changes in TRIED.items():
        found += [(kind, replace(kernel.GEOMETRY[kind], **change)) for change in changes]
    return list(dict.fromkeys([*((kind, kernel.GEOMETRY[kind]) for kind in TRIED), *found]))


def use(kind: str, geometry: kernel.Geometry) -> None:
    kernel.GEOMETRY[kind] = geometry
    kernel.SHORT = 0  # what is tried is tried at every size
    kernel._ready.clear()


def compile_one(kind: str, geometry: kernel.Geometry) -> None:
    """In a process of its own, so that sixteen are compiled at once; triton keeps them on disk."""
    use(kind, geometry)
    x, slabs = torch.zeros(70_000, device="cuda").to(getattr(torch, kind)), torch.stack([new_slab()])
    kernel.launch(x, slabs[0])
    if kind in ("bfloat16", "float16"):
        kernel.Deferred(x.device).launch(x, slabs, 0)


def tune(seconds: float, chosen: list[str]) -> None:
    """Prints what is right and fast, sorted by dtype and speed; what is wrong comes with the difference."""
    begin, tried = time.perf_counter(), [each for each in candidates() if each[0] in chosen]
    with futures.ProcessPoolExecutor(min(14, os.cpu_count() or 1), get_context("spawn")) as pool:
        compiled = [pool.submit(compile_one, *each) for each in tried]
        found, checked, kinds = [], {}, {kind for kind, _ in tried}
        for kind in kinds:
            checked[kind] = [tensor(kind, 3_000_003, flavour).cuda() for flavour in FLAVOURS[:3]]
        for kind in chosen:
            x = large(kind)
            limit = read_limit(x) * 1e3
            for (its, geometry), ready in zip(tried, compiled, strict=True):
                if its != kind:
                    continue
                left = seconds - (time.perf_counter() - begin)
                try:
                    if left < 0:
                        raise futures.TimeoutError
                    ready.result(timeout=left)
                    found.append(trial(kind, geometry, x, limit, checked[kind]))
                except futures.TimeoutError:
                    found.append(
                        Trial(kind=kind, geometry=geometry, microseconds={}, limit=limit, wrong="no time left")
                    )
                except Exception as error:  # noqa: BLE001  a setting may ask for more than a chip has
                    wrong = " ".join(repr(error).split())[:90]
                    found.append(Trial(kind=kind, geometry=geometry, microseconds={}, limit=limit, wrong=wrong))
            del x
        pool.shutdown(cancel_futures=True)
    for one in sorted(found, key=lambda one: (one.kind, bool(one.wrong), one.microseconds.get(0, math.inf))):
        print(one)
    for size in SMALL:
        some = [one for one in found if size in one.microseconds and not one.wrong]
        for one in sorted(some, key=lambda one: (one.kind, one.microseconds[size])):
            print(f"{one.kind}, {size} MB: {one.microseconds[size]:.1f} us each of 32  {settings(one.geometry)}")
    print(f"{len(found)} settings in {time.perf_counter() - begin:.0f} s")


def trial(kind: str, geometry: kernel.Geometry, x: torch.Tensor, limit: float, checked: list[torch.Tensor]) -> Trial:
    use(kind, geometry)
    slab = new_slab()
    wrong = []
    for small in checked:
        kernel.launch(small, slab)
        wrong += differences(small, slab)
    times = {0: milliseconds(lambda: kernel.launch(x, slab), 20) * 1e3}
    if kind in ("bfloat16", "float16"):
        times |= {size: together(x[: size << 19]) for size in SMALL}
    return Trial(kind=kind, geometry=geometry, microseconds=times, limit=limit, wrong="; ".join(wrong)[:90])


def together(x: torch.Tensor) -> float:
    """Microseconds of the device for each of 32 tensors that are finished together.

    The device sleeps until all is in its queue: the host takes longer over a launch than it does over a small tensor.
    """
    deferred = kernel.Deferred(x.device)
    slabs = torch.empty((deferred.TOGETHER, SLAB_BYTES), dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(8):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(SLEEP)
        begin.record()
        for index in range(deferred.TOGETHER):
            deferred.launch(x, slabs, index)
        deferred.finish()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return float(statistics.median(times)) * 1e3 / deferred.TOGETHER


SLEEP = 10_000_000
"""Cycles, 5 ms or more."""


def host(work: Callable[[int], object], times: int = 200) -> float:
    """Microseconds of the host for one launch: once compiled, into a queue that is empty and stays open."""
    found = []
    for _ in range(6):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for index in range(times):
            work(index)
        found.append((time.perf_counter() - begin) / times)
    return min(found[1:]) * 1e6


def against(changes: str) -> None:
    """The table with the settings as they are, and with others: `packed=False`, `rows=4,chunk=16`."""
    change = {name: ast.literal_eval(value) for name, value in (each.split("=") for each in changes.split(","))}
    for kind in KINDS:
        now = kernel.GEOMETRY[kind]
        other = replace(now, **change)
        for geometry in (now, other, now, other):
            use(kind, geometry)
            (row,) = kernel_table((kind,))
            print(f"{kind:14}{row.ms:9.4f} ms {row.share:6.3f} of the read limit  {settings(geometry)}", flush=True)
        use(kind, now)


def large(kind: str) -> torch.Tensor:
    x = torch.randn(ELEMENTS // (2 if kind == "float64" else 1), device="cuda") * 9
    return x.to(getattr(torch, kind))


def new_slab() -> torch.Tensor:
    return torch.full((SLAB_BYTES,), 0xAA, dtype=torch.uint8, device="cuda")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tune", action="store_true", help="tries other settings, each checked")
    parser.add_argument("--seconds", type=float, default=110, help="of --tune")
    parser.add_argument("--kinds", default=",".join(TRIED), help="that --tune looks at, with commas")
    parser.add_argument("--against", metavar="SETTINGS", help="the table beside that of other settings, packed=False")
    parser.add_argument("--table", action="store_true", help="the table alone, without the check before it")
    arguments = parser.parse_args()
    if arguments.tune:
        tune(arguments.seconds, arguments.kinds.split(","))
        return
    if arguments.against:
        against(arguments.against)
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
    for megabytes in SMALL:
        x = torch.randn(megabytes << 19, device="cuda").to(torch.bfloat16)
        alone = milliseconds(lambda x=x: kernel.launch(x, slab)) * 1e3  # type: ignore[misc]
        each = together(x)
        print(f"bfloat16, {megabytes} MB: {alone:.1f} us alone, {each:.1f} us each of 32 that are finished together")
    deferred = kernel.Deferred(small.device)
    slabs = torch.empty((200, SLAB_BYTES), dtype=torch.uint8, device="cuda")
    print(f"host: {host(lambda index: kernel.launch(small, slab)):.1f} us a launch")
    print(f"host: {host(lambda index: deferred.launch(small, slabs, index)):.1f} us a deferred launch")


if __name__ == "__main__":
    main()
