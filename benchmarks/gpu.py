"""What layertap costs on a GPU, in one table: the kernel against the read limit, recording against a bare forward pass.

    PYTHONPATH=src python3 benchmarks/gpu.py [--forward]

Every line is a ratio measured side by side in this run. Exits 1 if a target is missed.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from gpu_block import Block
from gpu_kernel import check, kernel_table
from torch import nn

import layertap as lt

BLOCKS, WIDTH, BATCH, LENGTH = 24, 2048, 4, 2048
ROUNDS, PASSES = 3, 12
SHARES = {"float32": 0.8, "bfloat16": 0.5}
"""The least share of the read limit for statistics, fingerprint and sketch together."""


def passes(
    model: nn.Module, x: torch.Tensor, call: Callable[[], object], recorder: lt.capture.Recorder | None = None
) -> float:
    """Milliseconds of one pass among many: a card that has just idled runs at a higher clock, so none may idle."""
    took = []
    for _ in range(PASSES):
        model(x)
        torch.cuda.synchronize()
        if recorder is not None:
            recorder.resume()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        took.append(1000 * (time.perf_counter() - start))
        if recorder is not None:
            recorder.pause()
    return statistics.median(took[PASSES // 3 :])


def forward_table(model: nn.Module, x: torch.Tensor) -> dict[str, float]:
    """Milliseconds of one forward pass: bare, with layertap, and with the hook that people write first."""
    naive: list[torch.Tensor] = []

    def naive_pass() -> None:
        naive.clear()
        handles = [block.register_forward_hook(lambda m, a, out: naive.append(out.detach().cpu())) for block in model]
        model(x)
        for handle in handles:
            handle.remove()

    def recorded(recorder: lt.capture.Recorder) -> float:
        took = passes(model, x, lambda: (model(x), recorder.step()), recorder)
        recorder.flush()
        return took

    stats = lt.record(model, sites="[0-23]", budget="16GiB").start()
    tensors = lt.record(model, sites="[0-23]", keep="tensor", budget="64GiB").start()
    stats.pause()
    tensors.pause()
    times: dict[str, list[float]] = {"bare": [], "stats": [], "tensor": []}
    for _ in range(ROUNDS):
        times["bare"].append(passes(model, x, lambda: model(x)))
        times["stats"].append(recorded(stats))
        times["bare"].append(passes(model, x, lambda: model(x)))
        times["tensor"].append(recorded(tensors))
    stats.close()
    tensors.close()
    for recorder in (stats, tensors):
        assert recorder.receipt.complete, str(recorder.receipt)
        assert recorder.receipt.records == ROUNDS * PASSES * (BLOCKS + 1), str(recorder.receipt)
    last = tensors.run["23"].at(step=ROUNDS * PASSES - 1).tensor()
    assert torch.equal(last, model(x).cpu()), "the recorded tensor is not the model's output"
    return {name: statistics.median(ms) for name, ms in times.items()} | {"naive .cpu()": passes(model, x, naive_pass)}


def synchronisations(model: nn.Module, x: torch.Tensor) -> int:
    """How many synchronising calls the recording thread makes: torch raises at the first."""
    with lt.record(model, sites="[0-23]", keep={"*": "tensor", "[0-11]": "stats"}, strict=True) as rec:
        model(x)  # the first pass compiles the kernel and allocates
        rec.flush()
        torch.cuda.set_sync_debug_mode("error")
        try:
            model(x)
        except RuntimeError as error:
            if "synchroniz" not in str(error):
                raise
            print(error)
            return 1
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return 0


def launches(model: nn.Module, x: torch.Tensor) -> tuple[int, float]:
    """Kernels that recording statistics adds to one forward pass, and the mean microseconds of ours on the device."""

    def kernels() -> tuple[int, float]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            model(x)
            torch.cuda.synchronize()
        events = [e for e in profile.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
        ours = [event for event in events if event.key == "_measure"]
        mean = sum(event.device_time_total for event in ours) / max(1, sum(event.count for event in ours))
        return sum(event.count for event in events if "mem" not in event.key.lower()), mean

    bare, _ = kernels()
    with lt.record(model, sites="[0-23]"):
        model(x)
        tapped, microseconds = kernels()
    return tapped - bare, microseconds


def kernel_misses() -> bool:
    """Prints the kernel's table; returns whether anything in it is wrong or too slow."""
    faults = check()
    print("\n".join(faults) or "the kernel agrees with the definition on every dtype and size")
    missed = bool(faults)
    print(f"\n{'one pass':14}{'size':>9}{'ms':>9}{'of the read limit':>19}{'six calls, ms':>15}")
    for row in kernel_table():
        least = SHARES.get(row.dtype, 0.0)
        missed |= row.share < least
        met = "" if not least else "ok" if row.share >= least else "MISSED"
        print(f"{row.dtype:14}{row.bytes >> 20:6} MB{row.ms:9.3f}{row.share:19.2f}{row.six_calls_ms:15.2f}  {met}")
    return missed


def main() -> int:
    torch.manual_seed(0)
    failed = "--forward" not in sys.argv and kernel_misses()
    model = (
        nn.Sequential(*(Block(WIDTH, 16) for _ in range(BLOCKS)))
        .to("cuda", torch.bfloat16)
        .eval()
        .requires_grad_(False)
    )
    x = torch.randn(BATCH, LENGTH, WIDTH, device="cuda", dtype=torch.bfloat16)
    model(x)
    times = forward_table(model, x)
    limits = {"stats": 1.03, "tensor": 1.05}
    print(f"\nforward of {BLOCKS} blocks × {WIDTH}, batch {BATCH}×{LENGTH}, bf16, every block's output")
    for name, ms in times.items():
        ratio = ms / times["bare"]
        met = "" if name not in limits else "ok" if ratio <= limits[name] else "MISSED"
        failed |= met == "MISSED"
        print(f"  {name:14}{ms:9.2f} ms  {ratio:7.3f}×  {met}")
    syncs, (added, microseconds) = synchronisations(model, x), launches(model, x)
    print(f"  synchronisations in taps: {syncs}; kernels added by statistics of {BLOCKS} outputs and 1 input: {added}")
    print(f"  each takes {microseconds:.1f} us on the device, for {x.numel() * x.element_size() >> 20} MB")
    failed |= syncs != 0 or added > BLOCKS + 1
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
