"""What find_fault costs on a GPU: its time as a multiple of a forward pass, its memory above the models.

    PYTHONPATH=src python3 benchmarks/gpu_fault.py [0.6] [1.26] [8.2] [wide] [--rounds N] [--profile]

Decoders of 0.6 and 1.26 billion parameters, batch 4 × 1024, and one of 8.2 billion, 1 × 1024, in bf16: a pair with one
row of one weight zero, whose culprit must be named, and a clean one, which must be left alone. The 1.26 G fault pair is
searched once more in little memory. `wide`: the reference of 1.26 G in fp32, without a limit. Searches take turns with
bare passes, and the ratio of a search is to the bare passes right before and after it. Exits 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import copy
import cProfile
import itertools
import pstats
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.profiler import ProfilerActivity, profile

import layertap as lt
from layertap.measure import launching
from layertap.measure.pair import deferred
from layertap.measure.pair.blocks import PairRow

TIMES = 20
"""A search takes at most so many forward passes."""
LITTLE = 4.0
"""GiB above the models that a search in little memory takes at most, with nothing on disk."""
BUDGET = "3.1GiB"
"""What it is given for the reference's tensors; the rest is what a forward pass takes and leaves."""
ROUNDS = 5
BARE = 5
"""Bare passes before and after each search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    layers: int
    width: int
    hidden: int
    heads: int
    vocabulary: int = 32_000
    batch: int = 4
    length: int = 1024


SIZES = {
    "0.6": Size(layers=28, width=1024, hidden=3072, heads=8, vocabulary=100_000),
    "1.26": Size(layers=22, width=2048, hidden=5632, heads=16),
    "8.2": Size(layers=36, width=4096, hidden=12_288, heads=32, vocabulary=40_960, batch=1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two models, and what is to be found."""

    name: str
    reference: nn.Module
    candidate: nn.Module
    culprit: str = ""
    budget: str | None = None
    most: float | None = TIMES


class Attention(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, square = size.heads, (size.width, size.width)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(*square, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = (t * cos + torch.cat((-t[..., 64:], t[..., :64]), -1) * sin for t in (q, k))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(size.width, size.hidden, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(size.hidden, size.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.input_norm, self.post_norm = nn.RMSNorm(size.width), nn.RMSNorm(size.width)
        self.attention, self.mlp = Attention(size), MLP(size)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.input_norm(x), cos, sin)
        return x + self.mlp(self.post_norm(x))


class Decoder(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(size.vocabulary, size.width), nn.RMSNorm(size.width)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        angles = torch.arange(ids.shape[1], device=ids.device)[:, None] * 10_000 ** (
            -torch.arange(0, 128, 2, device=ids.device) / 128
        )
        cos, sin = (f(angles).repeat(1, 2).to(x.dtype) for f in (torch.cos, torch.sin))
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


def seconds(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def peak_of(call: Callable[[], Any]) -> tuple[float, Any]:
    """GiB above what lay on the card before, and what the call returns."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**30, result


def ratios(search: Callable[[], object], forward: Callable[[], object], rounds: int) -> tuple[list[float], float]:
    """Of each search, its time as a multiple of the bare passes around it; and the milliseconds of a bare pass.

    The host's speed drifts by a fifth within seconds: passes that were timed once at the beginning say little.
    """
    bare = [[seconds(forward) for _ in range(BARE)]]
    found = []
    for _ in range(rounds):
        took = seconds(search)
        bare.append([seconds(forward) for _ in range(BARE)])
        found.append(took / statistics.median([*bare[-2], *bare[-1]]))
    return sorted(found), 1000 * statistics.median(itertools.chain(*bare))


def steps(search: Callable[..., object]) -> str:
    """The seconds between what a search says; it is slower for being waited for."""
    marks: list[tuple[str, float]] = []

    def mark(text: str) -> None:
        torch.cuda.synchronize()
        marks.append((text, time.perf_counter()))

    search(progress=mark)
    mark("")
    return ", ".join(f"{text} {1000 * (after - at):.0f} ms" for (text, at), (_, after) in itertools.pairwise(marks))


def kernels(search: Callable[..., object]) -> str:
    """What is launched in all, and of that by the pair kernels."""
    begun, compiled = [0], [0]
    begin, launch = deferred.launch_pair, launching.Series.__call__

    def begin_pair(*pair: torch.Tensor) -> PairRow:
        begun[0] += 1
        return begin(*pair)

    def call(self: launching.Series, *given: int) -> None:
        compiled[0] += len(self)
        launch(self, *given)

    with (
        mock.patch.object(deferred, "launch_pair", begin_pair),
        mock.patch.object(launching.Series, "__call__", call),
        profile(activities=[ProfilerActivity.CUDA]) as seen,
    ):
        search()
        torch.cuda.synchronize()
    every = [one for one in seen.events() or () if one.device_type == torch.autograd.DeviceType.CUDA]
    took = sum(one.self_device_time_total for one in every) / 1000
    return (
        f"{begun[0]} pairs, {compiled[0]} launches of the pair kernels; kernels and copies in all: {len(every)}, "
        f"{took:.0f} ms of the device's time"
    )


def host(search: Callable[..., object]) -> None:
    """Where the host spends its time."""
    seen = cProfile.Profile()
    seen.enable()
    search()
    torch.cuda.synchronize()
    seen.disable()
    pstats.Stats(seen).sort_stats("tottime").print_stats(30)


@torch.no_grad()
def model_of(size: Size, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Decoder(size).eval()
    torch.set_default_dtype(torch.float32)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.normal_(0, 0.02)
    return model


@torch.no_grad()
def pairs_of(name: str, reference: nn.Module, wide: bool) -> Iterator[Pair]:
    """One at a time: a candidate is as large as the reference."""
    culprit = "layers.13.mlp.up_proj"
    broken = copy.deepcopy(reference)
    broken.get_submodule(culprit).weight[7] = 0  # type: ignore[operator]
    if wide:
        fp32 = copy.deepcopy(reference).float()
        yield Pair(name="fp32 against bf16, fault", reference=fp32, candidate=broken, culprit=culprit, most=None)
        yield Pair(name="fp32 against bf16, clean", reference=fp32, candidate=reference, most=None)
        return
    yield Pair(name="fault", reference=reference, candidate=broken, culprit=culprit)
    if name == "1.26":
        yield Pair(name="fault", reference=reference, candidate=broken, culprit=culprit, budget=BUDGET)
    del broken
    clean = copy.deepcopy(reference)
    yield Pair(name="clean", reference=reference, candidate=clean)
    if name == "1.26":
        yield Pair(name="clean", reference=reference, candidate=clean, budget=BUDGET)


def measured(pair: Pair, ids: torch.Tensor, rounds: int, profiled: bool) -> bool:
    """Prints what one pair costs; whether all limits are met."""

    def search(**how: Any) -> Any:
        return lt.find_fault(pair.reference, pair.candidate, (ids,), budget=pair.budget, **how)

    def forward() -> Any:
        with torch.no_grad():
            return pair.candidate(ids)

    first = seconds(search)  # kernels are compiled, memory is pinned
    peak, found = peak_of(search)
    times, bare = ratios(search, forward, rounds)
    middle = statistics.median(times)
    checks = {f"{pair.culprit or 'no fault'} found": found.site == pair.culprit}
    checks["at most 10 passes a side"] = max(found.forwards.values()) <= 10
    if pair.most is not None:
        checks[f"at most {pair.most:g}"] = middle <= pair.most
    if pair.budget is not None:
        checks[f"at most {LITTLE:g} GiB"] = peak <= LITTLE
        checks["nothing on disk"] = not found.memory["disk"]
    trace = ", ".join(f"{place} {size / 2**30:.2f}" for place, size in found.memory.items())
    print(
        f"  {pair.name}, budget {pair.budget or 'unset'}: {middle:.1f} × a forward pass of {bare:.1f} ms "
        f"({', '.join(f'{one:.1f}' for one in times)}; the first time {1000 * first:.0f} ms), {peak:.2f} GiB; "
        f"passes {found.forwards['reference']} + {found.forwards['candidate']}; trace in GiB: {trace}; "
        f"{found.verdict} {found.site} {found.cause}"
    )
    print("    " + "; ".join(f"{what}: {'ok' if good else 'MISSED'}" for what, good in checks.items()))
    print(f"    {steps(search)}", flush=True)
    if profiled:
        print(f"    {kernels(search)}")
        host(search)
    return all(checks.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help=f"of {', '.join(SIZES)}, wide; without any, the sizes"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--profile", action="store_true", help="also launches, and where the host's time goes")
    given = parser.parse_args()
    if unknown := set(given.models) - {*SIZES, "wide"}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(SIZES)} and wide")
    ok = True
    for name in given.models or SIZES:
        size = SIZES.get(name, SIZES["1.26"])
        model = model_of(size)
        ids = torch.randint(size.vocabulary, (size.batch, size.length), device="cuda")
        for _ in range(10):
            with torch.no_grad():
                model(ids)
        count = sum(parameter.numel() for parameter in model.parameters())
        print(f"{torch.cuda.get_device_name()}, {count / 1e9:.2f} G parameters, batch {size.batch} × {size.length}")
        for pair in pairs_of(name, model, wide=name == "wide"):
            ok &= measured(pair, ids, given.rounds, given.profile)
        del model, pair
        torch.cuda.empty_cache()
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
