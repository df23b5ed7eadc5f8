"""What recording costs where tensors are small and there are many: decoding with a cache, beside plain hooks.

    PYTHONPATH=src python3 benchmarks/gpu_decode.py [decode] [prefill] [check] [profile] [--rounds N]

`decode`: a Qwen3 of 28 layers × 1024 (transformers, random weights, bf16), batch 1, a prefill of 64 tokens and 32 steps
of one token. `prefill`: a Qwen3 of 8 billion parameters, 1 × 1024 tokens. Ways take turns with bare passes, and a way's
ratio is to the bare passes right before and after it. Exits 1 if a limit is missed.
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
from pathlib import Path
from typing import Any

import torch
from torch import nn

import layertap as lt

PREFILL, STEPS = 64, 32
ROUNDS = 3
EVERY = "re:.*"
BLOCKS = "model.layers.*"
LIMITS = {
    "decode": {
        "statistics, blocks": 1.1,
        "statistics, every module": 1.6,
        "tensors, blocks": 1.1,
        "tensors, every module": 1.6,
    },
    "prefill": {"statistics, every module": 1.10},
}

Forward = Callable[[Callable[[], None]], None]
"""The work of one round; calls its argument after each forward pass."""


def qwen3(**sizes: int) -> nn.Module:
    """A Qwen3 with random weights, made on the device."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            model = Qwen3ForCausalLM(Qwen3Config(**sizes))
    finally:
        torch.set_default_dtype(before)
    return model.to("cuda", torch.bfloat16).eval().requires_grad_(False)


def small() -> nn.Module:
    return qwen3(
        hidden_size=1024,
        num_hidden_layers=28,
        intermediate_size=3072,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151_936,
    )


def large() -> nn.Module:
    return qwen3(
        hidden_size=4096,
        num_hidden_layers=36,
        intermediate_size=12_288,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151_936,
    )


def decoding(model: nn.Module) -> Forward:
    prompt = torch.randint(0, 1000, (1, PREFILL), device="cuda")
    token = prompt[:, :1].contiguous()

    def forward(after: Callable[[], None]) -> None:
        out = model(prompt, use_cache=True)
        after()
        for _ in range(STEPS):
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
            after()

    return forward


def prefilling(model: nn.Module) -> Forward:
    prompt = torch.randint(0, 1000, (1, 1024), device="cuda")

    def forward(after: Callable[[], None]) -> None:
        for _ in range(4):
            model(prompt, use_cache=False)
            after()

    return forward


def six_statistics(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What people write by hand, without waiting for it."""
    f = x.float()
    return f.mean(), f.std(), f.min(), f.max(), torch.isnan(f).any(), torch.isinf(f).any()


@contextmanager
def hooked(modules: list[nn.Module], work: Callable[[torch.Tensor], object]) -> Iterator[Callable[[], None]]:
    seen: list[object] = []

    def hook(module: nn.Module, given: Any, out: Any) -> None:
        value = out[0] if isinstance(out, tuple) else out
        if isinstance(value, torch.Tensor):
            seen.append(work(value.detach()))

    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield seen.clear
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def recording(model: nn.Module, sites: str, keep: str, told: dict[str, float]) -> Iterator[Callable[[], None]]:
    with tempfile.TemporaryDirectory() as folder:
        with lt.record(
            model, Path(folder, "run"), sites=sites, keep=keep, budget="16GiB", durability="none"
        ) as recorder:
            yield recorder.step
            told["hand-overs"] = recorder.sink.hand_overs
        assert recorder.receipt.complete, str(recorder.receipt)
        told["records"] = recorder.receipt.records
        told["inside"] = recorder.receipt.overhead


@contextmanager
def bare() -> Iterator[Callable[[], None]]:
    yield lambda: None


def timed(forward: Forward, way: Any, *, warm: bool = False) -> tuple[float, float, float]:
    """Wall seconds, the calling thread's and all threads' CPU seconds of one round; a round before it may warm up."""
    with way as after:
        if warm:
            forward(after)
        torch.cuda.synchronize()
        wall, calling, everybody = time.perf_counter(), time.thread_time(), time.process_time()
        forward(after)
        torch.cuda.synchronize()
        wall = time.perf_counter() - wall
        return wall, time.thread_time() - calling, time.process_time() - everybody


def table(name: str, model: nn.Module, forward: Forward, rounds: int) -> bool:
    """Prints one line a way; returns whether a limit is missed."""
    blocks = list(model.model.layers)  # type: ignore[attr-defined, arg-type]
    modules = [module for module in model.modules() if module is not model]
    told: dict[str, dict[str, float]] = {}

    def taken(way: str, sites: str, keep: str) -> Callable[[], Any]:
        return lambda: recording(model, sites, keep, told.setdefault(way, {}))

    ways: dict[str, Callable[[], Any]] = {
        "hook .clone(), blocks": lambda: hooked(blocks, torch.clone),
        "hook .cpu(), blocks": lambda: hooked(blocks, torch.Tensor.cpu),
        "hook .clone(), every module": lambda: hooked(modules, torch.clone),
        "hook six, every module": lambda: hooked(modules, six_statistics),
        "statistics, blocks": taken("statistics, blocks", BLOCKS, "stats"),
        "statistics, every module": taken("statistics, every module", EVERY, "stats"),
    }
    if name == "decode":
        ways["hook .cpu(), every module"] = lambda: hooked(modules, torch.Tensor.cpu)
        ways["tensors, blocks"] = taken("tensors, blocks", BLOCKS, "tensor")
        ways["tensors, every module"] = taken("tensors, every module", EVERY, "tensor")
    timed(forward, bare())
    before = timed(forward, bare())
    found: dict[str, list[tuple[float, float, float, float]]] = {way: [] for way in ways}
    bases: list[float] = []
    for _ in range(rounds):
        for way, make in ways.items():
            took = timed(forward, make(), warm=True)
            after = timed(forward, bare())
            base, cpu = (before[0] + after[0]) / 2, (before[1] + after[1]) / 2
            bases.append(base)
            everybody = took[2] - (before[2] + after[2]) / 2
            found[way].append((took[0] / base, took[1] - cpu, everybody, took[0]))
            before = after
    print(f"\n{name}: bare {1e3 * statistics.median(bases):.1f} ms a round, ±{1e3 * statistics.pstdev(bases):.1f}")
    print(f"{'':32}{'ratio':>7}{'us a record: calling':>22}{'all threads':>13}{'hand-overs':>12}")
    missed = False
    for way, rows in found.items():
        ratio = statistics.median(row[0] for row in rows)
        # `timed` runs the work twice and measures the second; the records of both are in the run.
        records = told.get(way, {}).get("records", 0) / 2
        each = [1e6 * statistics.median(row[at] for row in rows) / records if records else 0.0 for at in (1, 2)]
        costs = f"{each[0]:22.1f}{each[1]:13.1f}{told[way]['hand-overs']:12.0f}" if records else " " * 47
        limit = LIMITS[name].get(way)
        good = limit is None or ratio <= limit
        missed |= not good
        told_limit = "" if limit is None else f"at most {limit}: {'ok' if good else 'MISSED'}"
        print(f"  {way:30}{ratio:7.3f}{costs}  {told_limit}")
    return missed


def profile(model: nn.Module, forward: Forward) -> None:
    """Where the calling thread's time goes: the functions of Python that take most of it."""
    with recording(model, EVERY, "stats", {}) as after:
        forward(after)
        watched = cProfile.Profile()
        watched.enable()
        forward(after)
        watched.disable()
    pstats.Stats(watched).sort_stats("tottime").print_stats(32)


def check(model: nn.Module) -> None:
    """What is recorded is what the modules returned, small and large, and the model's output stays the same."""
    prompt = torch.randint(0, 1000, (1, 300), device="cuda")
    seen: dict[str, torch.Tensor] = {}
    expected = model(prompt).logits
    handles = [
        module.register_forward_hook(
            lambda m, a, out, path=path: (
                seen.__setitem__(path, out.detach().cpu().clone()) if isinstance(out, torch.Tensor) else None
            )
        )
        for path, module in model.named_modules()
        if path
    ]
    with lt.record(model, sites=EVERY, keep="tensor") as kept:
        assert torch.equal(model(prompt).logits, expected), "recording tensors changed the output"
    with lt.record(model, sites=EVERY) as measured:
        assert torch.equal(model(prompt).logits, expected), "recording statistics changed the output"
    for handle in handles:
        handle.remove()
    wrong = []
    for path, tensor in seen.items():
        record, other = kept.run[path].record, measured.run[path].record
        if not torch.equal(kept.run[path].tensor(), tensor):
            wrong.append(f"{path}: another tensor")
        if record.fingerprint != other.fingerprint:
            wrong.append(f"{path}: another fingerprint")
        one, two = record.statistics, other.statistics
        if (one.min, one.max, one.zero, one.first) != (two.min, two.max, two.zero, two.first):
            wrong.append(f"{path}: other extremes: {one} {two}")
        if abs(one.l2 - two.l2) > 1e-5 * one.l2 or abs(one.mean - two.mean) > 1e-5 * max(one.std, 1e-9):
            wrong.append(f"{path}: other sums: {one} {two}")
    print("\n".join(wrong[:20]) or f"check: {len(seen)} outputs recorded as they were, by both ways")
    assert not wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("chosen", nargs="*", choices=["decode", "prefill", "check", "profile"])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    chosen = options.chosen or ["check", "decode", "prefill"]
    missed = False
    if {"decode", "check", "profile"} & set(chosen):
        model = small()
        if "check" in chosen:
            check(model)
        if "decode" in chosen:
            missed |= table("decode", model, decoding(model), options.rounds)
        if "profile" in chosen:
            profile(model, decoding(model))
        del model
        torch.cuda.empty_cache()
    if "prefill" in chosen:
        model = large()
        missed |= table("prefill", model, prefilling(model), options.rounds)
    return int(missed)


if __name__ == "__main__":
    with torch.no_grad():
        sys.exit(main())
