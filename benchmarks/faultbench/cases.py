"""The list: every kind of fault in the families and precisions where it happens, and the clean pairs."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.faultbench.case import Case
from benchmarks.faultbench.clean import CLEAN
from benchmarks.faultbench.families import Built, build
from benchmarks.faultbench.kinds import FAULTS
from benchmarks.faultbench.serving import build_serving, late_positions, lost_slot, stale_cache
from torch import nn

__all__ = ["CASES", "CLEAN", "Case", "listed"]


def listed(
    family: str, dtype: str, *strikes: tuple[str, str] | tuple[str, str, float], seed: int = 0, **more: Any
) -> Case:
    """A case with one fault for each (kind, path) or (kind, path, size), in order of execution."""
    sizes = [strike[2] if len(strike) > 2 else FAULTS[strike[0]].size for strike in strikes]
    kinds, paths = [FAULTS[strike[0]] for strike in strikes], [strike[1] for strike in strikes]
    build_arguments = {key: more.pop(key) for key in ("layers", "width", "tokens") if key in more}
    label = "+".join(kind.kind for kind in kinds) if len(kinds) < 3 else f"{len(kinds)}-faults"

    def plant(model: nn.Module) -> None:
        for kind, path, size in zip(kinds, paths, sizes, strict=True):
            # zlib, since Python's own hash of a string differs from process to process.
            kind.plant(model, path, size, torch.Generator().manual_seed(zlib.crc32(f"{path}{seed}".encode())))

    fields = dict(
        name=f"{family}-{dtype}-{label}",
        family=family,
        dtype=dtype,
        kind=label,
        build=functools.partial(build, family, seed=seed, **build_arguments),
        plant=plant,
        culprits=tuple(kind.culprits(path) for kind, path in zip(kinds, paths, strict=True)),
        causes=tuple(kind.causes for kind in kinds),
        planted=tuple(paths),
    )
    return Case(**{**fields, **more})


def _norms(*names: str) -> tuple[str, ...]:
    return (*(f"model.layers.{i}.{name}" for i in range(3) for name in names), "model.norm")


def _overflow(family: str, names: tuple[str, ...], by: float, seed: int) -> Built:
    """A model that is right in float32 and bf16, and leaves fp16's range at one place."""
    model, inputs = build(family, seed=seed)
    with torch.no_grad():
        for name in names:
            model.get_parameter(name).mul_(by)
    return model, inputs


def _special(
    name: str, family: str, dtype: str, build: Callable[[], Built], culprit: set[str], causes: set[str], **more: Any
) -> Case:
    return Case(
        name=f"{family}-{dtype}-{name}",
        family=family,
        dtype=dtype,
        kind=name,
        build=build,
        culprits=(culprit,),
        causes=(causes,),
        **more,
    )


NORMS = ("input_layernorm", "post_attention_layernorm")
_Q, _G, _M, _V = "model.layers.{}.", "transformer.h.{}.", "backbone.layers.{}.", "vit.layers.{}."
Q0, Q1, Q2 = (_Q.format(i) for i in range(3))
G0, G1, G2 = (_G.format(i) for i in range(3))
M0, M1, M2 = (_M.format(i) for i in range(3))
V0, V1, V2 = (_V.format(i) for i in range(3))
ENCODER, DECODER = "encoder.block.1.layer.", "decoder.block.1.layer."

_WEIGHTS = [
    listed("qwen3", "fp32", ("weight-wrong", Q1 + "mlp.down_proj", 0.1)),
    listed("llama", "bf16", ("weight-wrong", Q1 + "self_attn.k_proj")),
    listed("t5", "int8", ("weight-wrong", DECODER + "1.EncDecAttention.v")),
    listed("gpt2", "fp16", ("weight-missing", G1 + "mlp.c_fc")),
    listed("qwen3", "int8", ("weight-missing", Q2 + "mlp.gate_proj")),
    listed("qwen3", "fp32", ("weight-transposed", Q1 + "self_attn.o_proj")),
    listed("vit", "bf16", ("weight-transposed", V2 + "attention.q_proj")),
    listed("llama", "fp16", ("weight-permuted", Q0 + "mlp.up_proj")),
    listed("mamba", "bf16", ("weight-permuted", M1 + "mixer.in_proj")),
    listed("minimax_m2", "bf16", ("weight-stale", Q1 + "self_attn.v_proj")),
    listed("cnn", "fp32", ("weight-stale", "blocks.1.conv2")),
    listed("vit", "int8", ("weight-stale", V1 + "mlp.fc1")),
    listed("qwen3", "bf16", ("weight-scaled", Q1 + "mlp.down_proj", 0.03)),
    listed("llama", "int8", ("weight-scaled", Q1 + "self_attn.q_proj", 0.25)),
    listed("t5", "fp16", ("weight-scaled", ENCODER + "1.DenseReluDense.wo", 0.1)),
    listed("gpt2", "bf16", ("weight-truncated", G0 + "attn.c_attn")),
    listed("llama", "int8", ("weight-truncated", Q2 + "mlp.up_proj")),
    listed("qwen3", "bf16", ("bit-flip", Q0 + "mlp.up_proj")),
    listed("cnn", "fp16", ("bit-flip", "blocks.0.conv1")),
    listed("mamba", "fp32", ("bit-flip", M2 + "mixer.out_proj")),
    listed("llama", "bf16", ("norm-wrong", Q2 + "input_layernorm")),
    listed("qwen3", "fp16", ("norm-missing", Q1 + "self_attn.k_norm")),
    listed("t5", "fp32", ("norm-missing", DECODER + "2.layer_norm")),
    listed("qwen3", "bf16", ("quant-saturated", Q2 + "self_attn.o_proj")),
    listed("vit", "int8", ("quant-saturated", V0 + "mlp.fc2", 0.3)),
    listed("llama", "fp32", ("quant-wrong-axis", Q1 + "self_attn.q_proj")),
    listed("qwen3", "int8", ("quant-wrong-axis", Q1 + "mlp.down_proj")),
    listed("minimax_m2", "fp32", ("router-permuted", Q1 + "mlp.gate")),
    listed("minimax_m2", "bf16", ("expert-dead", Q2 + "mlp.experts")),
    listed("minimax_m2", "fp16", ("expert-stale", Q0 + "mlp.experts")),
    listed("cnn", "bf16", ("statistics-missing", "blocks.1.bn1")),
    listed("mamba", "fp32", ("state-matrix-wrong", M1 + "mixer")),
    listed("mamba", "fp16", ("skip-missing", M0 + "mixer")),
    listed("mamba", "bf16", ("uncalled-wrong", M1 + "mixer.conv1d")),
]
_SETTINGS = [
    listed("llama", "fp32", ("eps", Q1 + "post_attention_layernorm", 1e-5)),
    listed("qwen3", "bf16", ("eps", Q0 + "input_layernorm", 1e-1)),
    listed("cnn", "fp16", ("eps", "blocks.2.bn2", 5e-2)),
    listed("llama", "bf16", ("eps-everywhere", Q0 + "input_layernorm"), planted=_norms(*NORMS)),
    listed(
        "qwen3",
        "fp32",
        ("eps-everywhere", Q0 + "input_layernorm", 1e-3),
        planted=_norms(*NORMS, "self_attn.q_norm", "self_attn.k_norm"),
    ),
    listed("qwen3", "fp32", ("attention-scaling", Q1 + "self_attn", 0.02)),
    listed("gpt2", "bf16", ("attention-scaling", G2 + "attn", 1.0)),
    listed("t5", "fp32", ("attention-scaling", ENCODER + "0.SelfAttention", -0.5)),
    listed("llama", "bf16", ("rope-theta", "model.rotary_emb")),
    listed("qwen3", "fp32", ("rope-theta", "model.rotary_emb", 0.02)),
    listed("gpt2", "fp32", ("activation", G1 + "mlp.act")),
    listed("qwen3", "bf16", ("activation", Q1 + "mlp.act_fn")),
    listed("t5", "fp16", ("activation", DECODER + "2.DenseReluDense.act")),
    listed("minimax_m2", "fp32", ("router-top-k", Q2 + "mlp.gate")),
    listed("cnn", "bf16", ("padding-mode", "blocks.0.conv2")),
]
_CODE = [
    listed("vit", "fp16", ("sign", V1 + "attention.v_proj")),
    listed("mamba", "bf16", ("output-scale", M1 + "mixer.out_proj", 0.02)),
    listed("gpt2", "fp16", ("output-offset", G1 + "mlp.c_proj", 0.1)),
    listed("llama", "bf16", ("output-clipped", Q1 + "mlp.down_proj")),
    listed("cnn", "fp32", ("output-clipped", "blocks.1.conv1", 0.7)),
    listed("llama", "fp32", ("hidden-cast", Q1 + "self_attn.o_proj")),
    listed("qwen3", "bf16", ("hidden-cast", Q0 + "mlp.up_proj")),
    listed("t5", "fp32", ("cast-in-norm", "encoder.block.2.layer.1.layer_norm")),
    listed("gpt2", "fp32", ("dead-token", G2 + "mlp.c_fc")),
    listed("qwen3", "int8", ("dead-channel", Q1 + "self_attn.v_proj")),
    listed("vit", "bf16", ("dead-channel", V0 + "attention.o_proj")),
    listed("llama", "bf16", ("token-shift", Q1 + "mlp")),
    listed("vit", "fp32", ("channels-permuted", V1 + "mlp")),
    listed("mamba", "fp32", ("skipped", M2 + "norm")),
    listed("llama", "bf16", ("skipped", Q1 + "mlp.act_fn")),
    listed("cnn", "bf16", ("skipped-block", "blocks.1")),
    listed("vit", "bf16", ("lost-residual", V1[:-1])),
    listed("t5", "fp32", ("lost-residual", "encoder.block.1.layer.1")),
    listed("qwen3", "bf16", ("mid-residual", Q1[:-1])),
    listed("llama", "fp32", ("norm-position", Q2[:-1])),
    listed("vit", "fp32", ("double-bias", V1 + "mlp.fc1")),
    listed("gpt2", "bf16", ("double-bias", G1 + "attn.c_proj")),
    listed("llama", "fp32", ("nan-born", Q0 + "mlp.act_fn")),
    listed("vit", "bf16", ("nan-born", V1 + "layernorm_after")),
    listed("qwen3", "fp32", ("position-off-by-one", "model.rotary_emb")),
    listed("gpt2", "fp32", ("wrong-positions", "transformer")),
    listed("qwen3", "fp32", ("head-grouping", Q1 + "self_attn")),
    listed("minimax_m2", "bf16", ("head-grouping", Q2 + "self_attn")),
    listed("llama", "fp16", ("mask-off-by-one", Q1 + "self_attn")),
    listed("gpt2", "fp32", ("mask-off-by-one", G0 + "attn")),
    listed("minimax_m2", "fp16", ("mask-missing", Q0 + "self_attn")),
    listed("vit", "fp32", ("softmax-axis", V2 + "attention")),
    listed("qwen3", "bf16", ("dead-head", Q1 + "self_attn")),
    listed("t5", "bf16", ("dead-head", DECODER + "1.EncDecAttention")),
    listed("minimax_m2", "fp32", ("cast-in-attention", Q1 + "self_attn")),
    listed("qwen3", "fp16", ("blind-query", Q1 + "self_attn")),
    listed("llama", "fp32", ("keys-off-by-one", Q1 + "self_attn")),
    listed("qwen3", "fp32", ("mask-maker", "model")),
    listed("llama", "bf16", ("mask-maker", "model")),
    listed("qwen3", "int8", ("quant-one-scale", Q1 + "mlp.down_proj")),
    listed("llama", "fp32", ("spoils-input", Q1 + "mlp.gate_proj")),
]
_SPECIAL = [
    _special(
        "overflow-in-mlp",
        "llama",
        "fp16",
        functools.partial(_overflow, "llama", (Q1 + "mlp.gate_proj.weight", Q1 + "mlp.up_proj.weight"), 400.0, 0),
        {Q1 + "mlp"},
        {"nonfinite", "precision"},
    ),
    _special(
        "overflow-in-linear",
        "vit",
        "fp16",
        functools.partial(_overflow, "vit", (V1 + "mlp.fc2.weight",), 6e4, 0),
        {V1 + "mlp.fc2"},
        {"nonfinite", "precision"},
    ),
    _special(
        "cache-stale",
        "llama",
        "fp32",
        functools.partial(build_serving, "llama"),
        {"decoder.lm." + Q1 + "self_attn"},
        {"cache", "shift"},
        plant=lambda model: stale_cache(model, "decoder.lm." + Q1 + "self_attn"),
        planted=("decoder.lm." + Q1 + "self_attn",),
    ),
    _special(
        "cache-lost-slot",
        "qwen3",
        "bf16",
        functools.partial(build_serving, "qwen3"),
        {"decoder.lm." + Q0 + "self_attn"},
        {"cache", "mask"},
        plant=lambda model: lost_slot(model, "decoder.lm." + Q0 + "self_attn"),
        planted=("decoder.lm." + Q0 + "self_attn",),
    ),
    _special(
        "cache-late-position",
        "llama",
        "bf16",
        functools.partial(build_serving, "llama"),
        {"decoder"},
        {"cache", "shift", "offset"},
        plant=late_positions,
        planted=("decoder",),
    ),
]
_SEVERAL = [
    listed("qwen3", "fp32", ("weight-scaled", Q0 + "mlp.down_proj"), ("sign", Q2 + "self_attn.o_proj")),
    listed("llama", "bf16", ("dead-head", Q0 + "self_attn"), ("weight-permuted", Q1 + "mlp.gate_proj")),
    listed("vit", "fp16", ("double-bias", V0 + "mlp.fc1"), ("eps", V2 + "layernorm_after", 0.1)),
    listed("cnn", "fp32", ("weight-wrong", "blocks.0.conv1"), ("statistics-missing", "blocks.2.bn2")),
    listed(
        "gpt2",
        "bf16",
        ("weight-missing", G0 + "attn.c_attn"),
        ("activation", G1 + "mlp.act"),
        ("output-offset", G2 + "mlp.c_proj"),
    ),
    listed(
        "minimax_m2",
        "fp32",
        ("head-grouping", Q0 + "self_attn"),
        ("expert-dead", Q1 + "mlp.experts"),
        ("norm-wrong", Q2 + "input_layernorm"),
    ),
]
_SAME_DTYPE = [
    listed("qwen3", "bf16", ("weight-wrong", Q2 + "mlp.gate_proj"), reference_dtype="bf16"),
    listed("llama", "fp16", ("head-grouping", Q1 + "self_attn"), reference_dtype="fp16"),
    listed("mamba", "bf16", ("sign", M1 + "mixer.x_proj"), reference_dtype="bf16"),
]

CASES: list[Case] = [*_WEIGHTS, *_SETTINGS, *_CODE, *_SPECIAL, *_SEVERAL, *_SAME_DTYPE, *CLEAN]
