"""What one record costs on the CPU where tensors are small: `python benchmarks/overhead.py [--profile]`.

Twenty linear layers of 64 × 64, each output recorded. Every way runs in turn in this one process. The calling thread is
measured by its own CPU time (`time.thread_time`), all threads together by the process's, both of a pass without hooks
subtracted, so that it holds on a machine that is busy with other programs. Exits 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import layertap as lt

LAYERS, WIDTH, BATCH = 20, 64, 4
PASSES, ROUNDS = 100, 7
LIMITS = {"statistics": (15.0, 50.0), "tensors": (25.0, 50.0)}
"""Microseconds a record: of the calling thread, of all threads."""

Way = Callable[[nn.Module, torch.Tensor, Path], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU microseconds of one pass."""

    calling: float
    everybody: float


def six_statistics(x: torch.Tensor) -> list[float]:
    """What people write by hand."""
    return [float(s) for s in (x.mean(), x.std(), x.min(), x.max(), torch.isnan(x).any(), torch.isinf(x).any())]


@contextmanager
def hooks(model: nn.Module, work: Callable[[torch.Tensor], object]) -> Iterator[Callable[[], None]]:
    """Hooks as people write them: each appends to a list that is emptied after a step."""
    seen: list[object] = []
    handles = [child.register_forward_hook(lambda m, a, out: seen.append(work(out.detach()))) for child in model]
    try:
        yield seen.clear
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def recording(model: nn.Module, folder: Path | None, keep: str) -> Iterator[Callable[[], None]]:
    """layertap, into a folder or into memory."""
    with lt.record(model, folder, sites="*", keep=keep, durability="none", budget="4GiB") as recorder:
        yield recorder.step
    assert recorder.receipt.complete, str(recorder.receipt)


@contextmanager
def bare(model: nn.Module) -> Iterator[Callable[[], None]]:
    yield lambda: None


def measured(model: nn.Module, x: torch.Tensor, way: Any, profile: cProfile.Profile | None = None) -> Cost:
    """One round: the passes, and what is left to write after them."""
    everybody = time.process_time()
    with way as step:
        for _ in range(3):
            model(x)
            step()
        calling, everybody = time.thread_time(), time.process_time()
        if profile is not None:
            profile.enable()
        for _ in range(PASSES):
            model(x)
            step()
        if profile is not None:
            profile.disable()
        calling = time.thread_time() - calling
    everybody = time.process_time() - everybody
    return Cost(calling=1e6 * calling / PASSES, everybody=1e6 * everybody / PASSES)


def ways(model: nn.Module, folder: Path) -> dict[str, Callable[[], Any]]:
    numbers = iter(range(10_000))

    def fresh() -> Path:
        return folder / str(next(numbers))

    return {
        "bare": lambda: bare(model),
        "hook, .clone()": lambda: hooks(model, torch.clone),
        "hook, six statistics": lambda: hooks(model, six_statistics),
        "statistics": lambda: recording(model, fresh(), "stats"),
        "tensors": lambda: recording(model, fresh(), "tensor"),
        "statistics in memory": lambda: recording(model, None, "stats"),
        "tensors in memory": lambda: recording(model, None, "tensor"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--profile", choices=["statistics", "tensors"], help="print where the calling thread's time goes"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).eval().requires_grad_(False)
    x = torch.randn(BATCH, WIDTH)
    missed = False
    with tempfile.TemporaryDirectory() as room:
        every = ways(model, Path(room))
        if options.profile:
            profile = cProfile.Profile()
            measured(model, x, every[options.profile](), profile)
            pstats.Stats(profile).sort_stats("tottime").print_stats(30)
            return 0
        costs: dict[str, list[Cost]] = {name: [] for name in every}
        for _ in range(ROUNDS):
            for name, way in every.items():
                costs[name].append(measured(model, x, way()))
    base = costs["bare"]
    print(
        f"{LAYERS} × Linear({WIDTH}, {WIDTH}), {LAYERS + 1} records a pass; CPU microseconds a record, less a bare pass"
    )
    print(f"{'':24}{'calling thread':>15}{'all threads':>13}")
    for name, rounds in costs.items():
        calling = statistics.median(cost.calling - b.calling for cost, b in zip(rounds, base, strict=True)) / (
            LAYERS + 1
        )
        everybody = statistics.median(c.everybody - b.everybody for c, b in zip(rounds, base, strict=True)) / (
            LAYERS + 1
        )
        limit = LIMITS.get(name)
        good = limit is None or (calling <= limit[0] and everybody <= limit[1])
        missed |= not good
        told = "" if limit is None else f"  at most {limit[0]:g} and {limit[1]:g}: {'ok' if good else 'MISSED'}"
        print(f"  {name:22}{calling:15.1f}{everybody:13.1f}{told}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
