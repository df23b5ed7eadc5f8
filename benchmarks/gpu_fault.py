"""What find_fault costs on a GPU: its time as a multiple of one forward pass, its memory beside one forward pass's.

    PYTHONPATH=src python3 benchmarks/gpu_fault.py

A decoder of about 1.1 billion parameters, batch 4 × 1024. The culprit must be named, and the clean pair left alone.
"""

from __future__ import annotations

import copy
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.profiler import ProfilerActivity, profile

import layertap as lt
from layertap.measure import launching
from layertap.measure.pair import deferred
from layertap.measure.pair.blocks import PairRow

LAYERS, WIDTH, HIDDEN, HEADS, VOCABULARY = 22, 2048, 5632, 16, 32_000
BATCH, LENGTH = 4, 1024
BUDGETS = (None, "4GiB", "3GiB")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = (t * cos + torch.cat((-t[..., 64:], t[..., :64]), -1) * sin for t in (q, k))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_norm, self.post_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.mlp = Attention(), MLP()

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.input_norm(x), cos, sin)
        return x + self.mlp(self.post_norm(x))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.RMSNorm(WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        angles = torch.arange(ids.shape[1], device=ids.device)[:, None] * 10_000 ** (
            -torch.arange(0, 128, 2, device=ids.device) / 128
        )
        cos, sin = (f(angles).repeat(1, 2).to(x.dtype) for f in (torch.cos, torch.sin))
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


def peak_of(call: object) -> tuple[float, float, object]:
    """Seconds, and GiB above what lay on the card before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    start = time.perf_counter()
    result = call()  # type: ignore[operator]
    torch.cuda.synchronize()
    return time.perf_counter() - start, (torch.cuda.max_memory_allocated() - before) / 2**30, result


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


@torch.no_grad()
def main() -> int:
    torch.manual_seed(0)
    with torch.device("cuda"):
        reference = Decoder().to(torch.bfloat16).eval()
    for parameter in reference.parameters():
        if parameter.ndim > 1:
            parameter.normal_(0, 0.02)
    ids = torch.randint(VOCABULARY, (BATCH, LENGTH), device="cuda")
    count = sum(p.numel() for p in reference.parameters())
    broken = copy.deepcopy(reference)
    broken.layers[13].mlp.up_proj.weight[7] = 0
    wide = copy.deepcopy(reference).float()
    for _ in range(10):
        reference(ids)
    forward = statistics.median(peak_of(lambda: reference(ids))[0] for _ in range(20))
    memory = peak_of(lambda: reference(ids))[1]
    print(f"{torch.cuda.get_device_name()}: {count / 1e9:.2f} G parameters, bf16, batch {BATCH} × {LENGTH}")
    print(f"one forward pass: {1000 * forward:.1f} ms, {memory:.2f} GiB")
    ok = True
    pairs = {
        "bf16 against bf16, one row of one weight zero": (reference, broken, "layers.13.mlp.up_proj"),
        "bf16 against bf16, clean": (reference, copy.deepcopy(reference), ""),
        "fp32 against bf16, clean": (wide, reference, ""),
        "fp32 against bf16, one row of one weight zero": (wide, broken, "layers.13.mlp.up_proj"),
    }
    for name, (ours, theirs, culprit) in pairs.items():
        for budget in BUDGETS if culprit and ours is reference else (None,):

            def search(ours=ours, theirs=theirs, budget=budget, **how):  # type: ignore[no-untyped-def]
                return lt.find_fault(ours, theirs, (ids,), budget=budget, **how)

            first, _, _ = peak_of(search)  # kernels are compiled, memory is pinned
            took, peak, found = peak_of(search)
            ok &= found.site == culprit  # type: ignore[attr-defined]
            print(
                f"{name}, budget {budget or 'unset'}: {took / forward:.1f} × a forward pass ({1000 * took:.0f} ms), "
                f"the first time {first / forward:.1f} × ({1000 * first:.0f} ms); passes {found.forwards}; "  # type: ignore[attr-defined]
                f"memory {peak:.2f} GiB = {peak / memory:.1f} × a forward pass's; "
                f"the trace { ({k: f'{v / 2**30:.2f} GiB' for k, v in found.memory.items()}) }; "  # type: ignore[attr-defined]
                f"{found.verdict} {found.site} {found.cause}\n    {steps(search)}\n    {kernels(search)}"  # type: ignore[attr-defined]
            )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
