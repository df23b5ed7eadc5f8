"""What layertap costs on a GPU, in one table: the kernel against the read limit, recording against a bare forward pass.

    PYTHONPATH=src python3 benchmarks/gpu.py

Every line is a ratio measured side by side in this run. Exits 1 if a target is missed.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from gpu_kernel import check, kernel_table
from torch import nn
from torch.nn import functional as F  # noqa: N812

import layertap as lt

BLOCKS, WIDTH, BATCH, LENGTH = 24, 2048, 4, 2048
ROUNDS = 15
SHARES = {"float32": 0.8, "bfloat16": 0.5}
"""The least share of the read limit for statistics, fingerprint and sketch together."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (16, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.norm2(x))))


def timed(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start)


def forward_table(model: nn.Module, x: torch.Tensor) -> dict[str, float]:
    """Milliseconds of one forward pass: bare, with layertap, and with the hook that people write first."""
    naive: list[torch.Tensor] = []

    def naive_pass() -> None:
        naive.clear()
        handles = [block.register_forward_hook(lambda m, a, out: naive.append(out.detach().cpu())) for block in model]
        model(x)
        for handle in handles:
            handle.remove()

    stats = lt.record(model, sites="[0-23]", budget="16GiB").start()
    stats.pause()
    tensors = lt.record(model, sites="[0-23]", keep="tensor", budget="64GiB").start()
    tensors.pause()

    def with_recorder(recorder: lt.capture.Recorder) -> float:
        recorder.resume()
        took = timed(lambda: (model(x), recorder.step()))
        recorder.pause()
        recorder.flush()
        return took

    times: dict[str, list[float]] = {"bare": [], "stats": [], "tensor": [], "naive .cpu()": []}
    for _ in range(ROUNDS):
        times["bare"].append(timed(lambda: model(x)))
        times["stats"].append(with_recorder(stats))
        times["tensor"].append(with_recorder(tensors))
        times["naive .cpu()"].append(timed(naive_pass))
    stats.close()
    tensors.close()
    for recorder in (stats, tensors):
        assert recorder.receipt.complete, str(recorder.receipt)
        assert recorder.receipt.records == ROUNDS * (BLOCKS + 1), str(recorder.receipt)
    last = tensors.run["23"].at(step=ROUNDS - 1).tensor()
    assert torch.equal(last, model(x).cpu()), "the recorded tensor is not the model's output"
    return {name: statistics.median(ms[3:]) for name, ms in times.items()}


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


def launches(model: nn.Module, x: torch.Tensor) -> int:
    """Kernels that recording statistics adds to one forward pass."""

    def kernels() -> int:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            model(x)
            torch.cuda.synchronize()
        return sum(
            event.count
            for event in profile.key_averages()
            if event.device_type == torch.autograd.DeviceType.CUDA and "mem" not in event.key.lower()
        )

    bare = kernels()
    with lt.record(model, sites="[0-23]"):
        model(x)
        tapped = kernels()
    return tapped - bare


def main() -> int:
    torch.manual_seed(0)
    faults = check()
    print("\n".join(faults) or "the kernel agrees with the definition on every dtype and size")
    failed = bool(faults)
    print(f"\n{'one pass':14}{'size':>9}{'ms':>9}{'of the read limit':>19}{'six calls, ms':>15}")
    for row in kernel_table():
        least = SHARES.get(row.dtype, 0.0)
        failed |= row.share < least
        met = "" if not least else "ok" if row.share >= least else "MISSED"
        print(f"{row.dtype:14}{row.bytes >> 20:6} MB{row.ms:9.3f}{row.share:19.2f}{row.six_calls_ms:15.2f}  {met}")
    model = nn.Sequential(*(Block() for _ in range(BLOCKS))).to("cuda", torch.bfloat16).eval().requires_grad_(False)
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
    syncs, added = synchronisations(model, x), launches(model, x)
    print(f"  synchronisations in taps: {syncs}; kernels added by statistics of {BLOCKS} outputs and 1 input: {added}")
    failed |= syncs != 0 or added > BLOCKS + 1
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
