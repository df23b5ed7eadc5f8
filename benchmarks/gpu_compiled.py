"""What recording costs on a compiled model: inductor, 24 blocks × 2048, batch 4×2048, bf16, every block's output.

    PYTHONPATH=src python3 benchmarks/gpu_compiled.py

Side by side in one run, the card never idle: compiled bare, with statistics, with tensors; how many graphs were made,
how often the calling thread waited for the card, what a CUDA graph does to the values; and the ratio on the CPU, on a
small model. Exits 1 if a target is missed. Without a card only the CPU's part is run.
"""

from __future__ import annotations

import statistics
import sys
import time
import traceback
from collections.abc import Callable

import torch
from gpu_block import Block
from torch import nn
from torch._dynamo.utils import counters

import layertap as lt
from layertap.measure import measure, native

BLOCKS, WIDTH, BATCH, LENGTH = 24, 2048, 4, 2048
ROUNDS, PASSES = 9, 6
LIMITS = {"stats": 1.05, "tensor": 1.10}
SECONDS = 200.0
"""After this long, what is not needed for the targets is left out, and said so."""
BEGAN = time.perf_counter()


class Net(nn.Module):
    def __init__(self, blocks: int, width: int, heads: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(blocks)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def say(text: str) -> None:
    print(f"[{time.perf_counter() - BEGAN:6.1f} s] {text}", flush=True)


def wait(x: torch.Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def latency(model: nn.Module, x: torch.Tensor, recorder: lt.capture.Recorder | None) -> float:
    """Milliseconds of one pass among many, each between two synchronisations; no pass finds the card idle."""
    took = []
    for _ in range(PASSES):
        if recorder is not None:
            recorder.pause()
        model(x)
        wait(x)
        if recorder is not None:
            recorder.resume()
        start = time.perf_counter()
        model(x)
        if recorder is not None:
            recorder.step()
        wait(x)
        took.append(1000 * (time.perf_counter() - start))
    return statistics.median(took[PASSES // 3 :])


def throughput(model: nn.Module, x: torch.Tensor, recorder: lt.capture.Recorder | None) -> float:
    """Milliseconds a pass when one follows the other without waiting, as in a loop that serves or trains."""
    model(x)
    wait(x)
    start = time.perf_counter()
    for _ in range(PASSES):
        model(x)
        if recorder is not None:
            recorder.step()
    wait(x)
    return 1000 * (time.perf_counter() - start) / PASSES


def graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


def peak(x: torch.Tensor) -> str:
    if not x.is_cuda:
        return ""
    mib = torch.cuda.max_memory_allocated() >> 20
    torch.cuda.reset_peak_memory_stats()
    return f", peak {mib} MiB on the card"


def table(model: nn.Module, compiled: nn.Module, x: torch.Tensor) -> dict[str, dict[str, float]]:
    """Way → measure → its ratio to the bare compiled model, the median over rounds."""
    blocks = len(model.blocks)
    ways: dict[str, Callable[[], lt.capture.Recorder] | None] = {
        "bare": None,
        "stats": lambda: lt.record(compiled, sites="blocks.*"),
        "tensor": lambda: lt.record(compiled, sites="blocks.*", keep="tensor", budget="48GiB"),
    }
    times: dict[str, dict[str, list[float]]] = {way: {"latency": [], "throughput": []} for way in ways}
    for number in range(ROUNDS):
        # Short turns, back and forth: under load the card's clock wanders by some percent within seconds.
        for way, make in list(ways.items())[:: -1 if number % 2 else 1]:
            before, start = graphs(), time.perf_counter()
            recorder = None if make is None else make().start()
            compiled(x)
            wait(x)
            if number == 0:
                made = graphs() - before
                say(f"{way}: {made} graph(s) made, {time.perf_counter() - start:.1f} s to compile{peak(x)}")
            times[way]["latency"].append(latency(compiled, x, recorder))
            times[way]["throughput"].append(throughput(compiled, x, recorder))
            if recorder is not None:
                output = compiled(x)
                recorder.close()
                if number in (0, ROUNDS - 1):
                    check(recorder, output, blocks)
            if number == 0:
                say(f"{way}: {times[way]['latency'][0]:.2f} ms a pass{peak(x)}")
    found = {way: {name: statistics.median(ms) for name, ms in measured.items()} for way, measured in times.items()}
    for name in ("latency", "throughput"):
        for way in ways:
            ratios = [t / b for t, b in zip(times[way][name], times["bare"][name], strict=True)]
            found[way][f"{name} ratio"] = statistics.median(ratios)
            quarter, _, three = statistics.quantiles(ratios, n=4)
            found[way][f"{name} half"] = (three - quarter) / 2
    return found


def check(recorder: lt.capture.Recorder, output: torch.Tensor, blocks: int) -> None:
    """What was recorded last is what the model returned last, bit for bit."""
    receipt, run = recorder.receipt, recorder.run
    assert receipt.complete, str(receipt)
    assert len(receipt.fired) == blocks, str(receipt)
    step = max(record.step for record in run[f"blocks.{blocks - 1}"])
    last = run[f"blocks.{blocks - 1}"].at(step=step)
    assert last.record.fingerprint == measure(output.cpu()).fingerprint, "the last block is not the model's output"
    if last.record.kept == "tensor":
        assert torch.equal(last.tensor(), output.cpu()), "the tensor is not the model's output"


def synchronisations(compiled: nn.Module, x: torch.Tensor) -> str:
    """Whether the calling thread waits for the card: torch raises at the first time."""
    with lt.record(compiled, sites="blocks.*", keep={"**": "tensor", "blocks.[0-11]": "stats"}, strict=True) as rec:
        compiled(x)  # compiles this mixture, and allocates
        rec.flush()
        torch.cuda.set_sync_debug_mode("error")
        try:
            compiled(x)
        except RuntimeError as error:
            return f"1 or more: {str(error).splitlines()[0]}"
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return "0"


def added_kernels(compiled: nn.Module, x: torch.Tensor) -> int:
    """Kernels that statistics add to a pass."""

    def count() -> int:
        torch.cuda.synchronize()  # or the end of the pass before is counted too
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            compiled(x)
            torch.cuda.synchronize()
        events = [e for e in profile.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
        return sum(event.count for event in events if "mem" not in event.key.lower())

    bare = count()
    with lt.record(compiled, sites="blocks.*"):
        compiled(x)
        return count() - bare


def cuda_graphs(dtype: torch.dtype) -> str:
    """In a CUDA graph no Python runs, and outputs are used again: the values must still be those of each call."""
    torch._dynamo.reset()
    net = Net(3, 512, 8).to("cuda", dtype).eval().requires_grad_(False)
    compiled = torch.compile(net, mode="reduce-overhead", fullgraph=True)
    inputs = [torch.randn(2, 256, 512, device="cuda", dtype=dtype) for _ in range(5)]
    for keep in ("stats", "tensor"):
        with lt.record(compiled, sites="blocks.*", keep=keep) as rec:
            outputs = []
            for x in inputs:
                outputs.append(compiled(x).cpu())
                rec.step()
        for step, output in enumerate(outputs):
            if rec.run["blocks.2"].at(step=step).record.fingerprint != measure(output).fingerprint:
                return f"WRONG: {keep} of step {step} is not of that step"
        if len({rec.run["blocks.0"].at(step=step).record.fingerprint for step in range(5)}) != 5:
            return f"WRONG: {keep} of block 0 repeats itself"
    return "right, on five inputs, statistics and tensors"


def report(title: str, found: dict[str, dict[str, float]], limits: dict[str, float]) -> bool:
    print(f"\n{title}")
    print(f"  {'':8}{'one pass, ms':>14}{'ratio':>17}{'one of many, ms':>18}{'ratio':>17}")
    missed = False
    for way, row in found.items():
        met = "" if way not in limits else "ok" if row["latency ratio"] <= limits[way] else "MISSED"
        missed |= met == "MISSED"
        alone, many = (f"{row[f'{name} ratio']:.3f} ± {row[f'{name} half']:.3f}" for name in ("latency", "throughput"))
        print(
            f"  {way:8}{row['latency']:14.2f}{alone:>17}{row['throughput']:18.2f}{many:>17}"
            f"  {met}{f' (at most {limits[way]})' if way in limits else ''}"
        )
    print(f"  ± is half of what the middle half of {ROUNDS} rounds spans")
    return missed


def on_gpu() -> bool:
    say(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; the CPU can measure: {native.available()}")
    torch.manual_seed(0)
    model = Net(BLOCKS, WIDTH, 16).to("cuda", torch.bfloat16).eval().requires_grad_(False)
    x = torch.randn(BATCH, LENGTH, WIDTH, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(model, fullgraph=True)
    found = table(model, compiled, x)
    made, breaks = graphs(), sum(counters["graph_break"].values())
    title = f"inductor, {BLOCKS} blocks × {WIDTH}, batch {BATCH}×{LENGTH}, bf16, every block's output"
    missed = report(title, found, LIMITS)
    print(f"  graphs: {made} (one bare, one for each of the two kinds of recording), graph breaks: {breaks}")
    missed |= made != 3 or breaks > 0
    extras: dict[str, Callable[[], object]] = {
        "kernels that statistics add": lambda: added_kernels(compiled, x),
        "waits of the calling thread": lambda: synchronisations(compiled, x),
        "values in CUDA graphs": lambda: cuda_graphs(torch.bfloat16),
    }
    for name, find in extras.items():
        if time.perf_counter() - BEGAN > SECONDS:
            say(f"{name}: left out for lack of time")
            continue
        try:
            told = str(find())
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            told = f"FAILED: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        missed |= told.startswith(("FAILED", "WRONG", "1 or more"))
        say(f"{name}: {told}")
    return missed


def on_cpu() -> bool:
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = Net(6, 512, 8).eval().requires_grad_(False)
    x = torch.randn(4, 128, 512)
    compiled = torch.compile(model, fullgraph=True)
    found = table(model, compiled, x)
    title = f"the same on the CPU ({torch.get_num_threads()} threads), 6 blocks × 512, batch 4×128, fp32; not judged"
    report(title, found, {})
    print(f"  graphs: {graphs()}, graph breaks: {sum(counters['graph_break'].values())}")
    return graphs() != 3


def main() -> int:
    missed = False
    if torch.cuda.is_available():
        missed |= on_gpu()
    else:
        say("no CUDA device: only the CPU's part")
    if time.perf_counter() - BEGAN > SECONDS:
        say("the CPU's part is left out for lack of time")
        return int(missed)
    try:
        missed |= on_cpu()
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        say(f"the CPU's part FAILED: {type(error).__name__}: {error}")
        missed = True
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
