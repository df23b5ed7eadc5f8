"""Pairs in which nothing is wrong: other precision, other kernels, other order of the same arithmetic."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.faultbench.attention import inside
from benchmarks.faultbench.case import Case, nothing
from benchmarks.faultbench.families import FAMILIES, build, chaos
from benchmarks.faultbench.faults import Around, rewrite
from benchmarks.faultbench.roles import roles
from benchmarks.faultbench.serving import build_padded, build_serving
from torch import nn


def eager_attention(model: nn.Module) -> None:
    model.set_attn_implementation("eager")


def written_out_attention(model: nn.Module) -> None:
    """Every attention by its definition instead of torch's fused kernel."""
    for path in roles(model)["attention"]:
        inside()(model, path, 0.0, torch.Generator())


def one_by_one(model: nn.Module) -> None:
    """Every linear layer takes the batch in reverse, one sample at a time."""

    def around(self: nn.Module, forward: Around, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([forward(x[i : i + 1]) for i in reversed(range(len(x)))]).flip(0)

    for path in roles(model)["linear"]:
        rewrite(model.get_submodule(path), around)


def blocked_sums(model: nn.Module) -> None:
    """Every linear layer sums over its inputs in two halves, as a split over two devices does."""

    def around(self: Any, forward: Around, x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        left = nn.functional.linear(x[..., :half], self.weight[:, :half])
        right = nn.functional.linear(x[..., half:], self.weight[:, half:])
        return left + right if self.bias is None else left + right + self.bias

    for path in roles(model)["linear"]:
        if isinstance(model.get_submodule(path), nn.Linear):
            rewrite(model.get_submodule(path), around)


def fused_norms(model: nn.Module) -> None:
    """RMSNorm by torch's own kernel."""

    def around(self: Any, forward: Around, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)

    for path in roles(model)["norm"]:
        rewrite(model.get_submodule(path), around)


def inductor(model: nn.Module) -> None:
    """Compiled, in place: other kernels, other orders of summation, casts left out where they are fused."""
    model.compile(backend="inductor")


def decoy(model: nn.Module) -> None:
    """One module of another class that computes the very same: a change that changes nothing."""
    rewrite(model.get_submodule(roles(model)["linear"][-1]), lambda self, forward, *args: forward(*args))


def _clean(name: str, family: str, dtype: str, plant: Callable[[nn.Module], None] = nothing, **more: Any) -> Case:
    builder = more.pop("build", None) or functools.partial(build, family, seed=more.pop("seed", 0))
    return Case(
        name=f"clean-{family}-{dtype}-{name}",
        family=family,
        dtype=dtype,
        kind="clean",
        build=builder,
        plant=plant,
        **more,
    )


CLEAN: list[Case] = [
    *(_clean("cast", family, "bf16") for family in FAMILIES),
    *(_clean("cast", family, "fp16", seed=1) for family in ("qwen3", "llama", "vit", "minimax_m2", "cnn")),
    *(_clean("int8", family, "int8", seed=2) for family in ("qwen3", "llama", "vit", "t5", "mamba")),
    _clean("eager", "qwen3", "fp32", eager_attention),
    _clean("eager", "vit", "fp32", eager_attention),
    _clean("eager", "llama", "bf16", eager_attention, seed=3),
    _clean("written-out", "gpt2", "fp32", written_out_attention),
    _clean("written-out", "t5", "bf16", written_out_attention),
    _clean("one-by-one", "llama", "fp32", one_by_one),
    _clean("one-by-one", "cnn", "bf16", one_by_one),
    _clean("blocked-sums", "vit", "fp32", blocked_sums),
    _clean("blocked-sums", "qwen3", "bf16", blocked_sums, reference_dtype="bf16"),
    _clean("fused-norms", "qwen3", "bf16", fused_norms, reference_dtype="bf16"),
    _clean("fused-norms", "llama", "fp32", fused_norms),
    _clean("decoy", "qwen3", "bf16", decoy, seed=4),
    _clean("identical", "mamba", "fp32"),
    _clean("deep", "qwen3", "bf16", build=functools.partial(build, "qwen3", layers=12, seed=5)),
    _clean("inductor", "llama", "fp32", inductor),
    _clean("inductor", "qwen3", "bf16", inductor),
    _clean("serving", "llama", "bf16", build=functools.partial(build_serving, "llama")),
    _clean("padded-eager", "qwen3", "fp32", eager_attention, build=functools.partial(build_padded, "qwen3")),
    _clean("padded-eager", "gpt2", "bf16", eager_attention, build=functools.partial(build_padded, "gpt2")),
    _clean("cast-flips", "minimax_m2", "fp16"),
    _clean("chaos", "chaos", "bf16", build=functools.partial(chaos, layers=24, gain=2.0, seed=2)),
    _clean("chaos-12", "chaos", "bf16", build=functools.partial(chaos, layers=12, gain=3.0, seed=2)),
    _clean("chaos", "chaos", "fp16", build=functools.partial(chaos, layers=24, gain=3.0, seed=2)),
    _clean("chaos", "chaos", "fp32", one_by_one, build=functools.partial(chaos, layers=44, gain=3.0, seed=2)),
]
