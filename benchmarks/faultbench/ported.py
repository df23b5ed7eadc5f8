"""Pairs whose candidate is written or stored otherwise: clean ones, and the same with one thing wrong besides."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.faultbench import quantised, rearranged
from benchmarks.faultbench.case import Case, nothing
from benchmarks.faultbench.families import Built, build
from benchmarks.faultbench.faults import Around, rewrite
from benchmarks.faultbench.kinds import FAULTS
from benchmarks.faultbench.port_net import (
    PORTS,
    Attention,
    Body,
    become,
    build_net,
    build_shared,
    fuse,
    share,
    unshare,
)
from torch import nn

Change = Callable[[nn.Module], None]
Q1, Q2 = "model.layers.1.", "model.layers.2."
B1, B2 = "body.blocks.1.", "body.blocks.2."


def port(name: str) -> Change:
    return lambda model: become(model, **PORTS[name])


def then(*changes: Change) -> Change:
    def plant(model: nn.Module) -> None:
        for change in changes:
            change(model)

    return plant


def strike(kind: str, path: str, size: float | None = None) -> Change:
    fault = FAULTS[kind]
    return lambda model: fault.plant(
        model, path, fault.size if size is None else size, torch.Generator().manual_seed(0)
    )


def autocast(model: nn.Module) -> None:
    """Parameters stay in float32, and what multiplies them does not."""

    def around(self: nn.Module, forward: Around, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return forward(*args, **kwargs)

    rewrite(model, around)


def build_encoder(*, layers: int = 2, seed: int = 0) -> Built:
    """torch's own encoder, given padding: it makes nested tensors of it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        model = nn.TransformerEncoder(layer, layers)
        padding = torch.zeros(3, 8, dtype=torch.bool)
        padding[0, 5:] = padding[2, 3:] = True
        return model.eval(), {"src": torch.randn(3, 8, 32), "src_key_padding_mask": padding}


def build_massive(*, seed: int = 0) -> Built:
    """One channel of one token is a thousand times larger than all others, as in large language models."""
    model, inputs = build_net(seed=seed)
    with torch.no_grad():
        model.body.embed.weight[inputs[0][0, 0], 5] += 1000.0
    return model, inputs


def build_capped(*, seed: int = 0) -> Built:
    """Scores are capped by a tanh and closed by the lowest number there is."""
    import transformers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = transformers.Gemma2Config(
            vocab_size=128,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            initializer_range=0.15,
            attn_implementation="eager",
        )
        return transformers.Gemma2ForCausalLM(config).eval(), {"input_ids": torch.randint(3, 128, (2, 10))}


def build_bloom(*, seed: int = 0) -> Built:
    import transformers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = transformers.BloomConfig(
            vocab_size=128, hidden_size=32, n_layer=3, n_head=4, initializer_range=0.15, attn_implementation="eager"
        )
        return transformers.BloomForCausalLM(config).eval(), {"input_ids": torch.randint(3, 128, (2, 10))}


def build_adapted(family: str = "llama", *, seed: int = 0) -> Built:
    model, inputs = build(family, seed=seed)
    quantised.adapters(model)
    return model, inputs


def without_adapters(model: nn.Module, family: str = "llama", seed: int = 0) -> None:
    plain, _ = build(family, seed=seed)
    model.load_state_dict(plain.state_dict())


class _RenamedMask(Attention):
    """Takes what the reference calls `bias` under another name, as true and false."""

    def forward(self, x: torch.Tensor, attend_to: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        bias = torch.zeros(attend_to.shape).masked_fill(~attend_to, torch.finfo(torch.float32).min)
        return super().forward(x, bias)


class _PlainBody(Body):
    """A causal mask, without ALiBi."""

    def bias(self, ids: torch.Tensor) -> torch.Tensor:
        closed = torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool()
        return torch.zeros(closed.shape).masked_fill(closed, torch.finfo(torch.float32).min)[None, None]


class _BoolBody(_PlainBody):
    ahead = 0

    def bias(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.ones(ids.shape[1], ids.shape[1]).tril(self.ahead).bool()[None, None]


class _AheadBody(_BoolBody):
    ahead = 1


def build_causal(*, seed: int = 0) -> Built:
    model, inputs = build_net(seed=seed)
    become(model, Body=_PlainBody)
    return model, inputs


def renamed_mask(body: type[nn.Module]) -> Change:
    return lambda model: become(model, _PlainBody=body, Attention=_RenamedMask)


class _WrongSlopes(Body):
    def bias(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.where(super().bias(ids) < -1e30, super().bias(ids), 0.5 * super().bias(ids))


class _LostChunk(PORTS["chunked-inside"]["FeedForward"]):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = super().forward(x)
        return torch.cat([output[:, :9], torch.zeros_like(output[:, 9:])], 1)


def _lost_chunk(model: nn.Module) -> None:
    model.body.blocks[1].ff.__class__ = _LostChunk


def _uncapped(model: nn.Module) -> None:
    model.model.layers[1].self_attn.attn_logit_softcapping = 0.2


@torch.no_grad()
def _wrong_fold(model: nn.Module) -> None:
    """One BatchNorm was folded with another epsilon, so its convolution is off."""
    model.blocks[1].conv1.weight.mul_(1.05)


@torch.no_grad()
def _one_group(model: nn.Module) -> None:
    """One scale of one quantised weight was read from the next group."""
    weight = model.model.layers[1].mlp.down_proj.weight
    weight[:, :16] *= 1.4


@torch.no_grad()
def _swapped_nibbles(model: nn.Module) -> None:
    codes = model.model.layers[1].mlp.up_proj.qweight
    codes.copy_(codes >> 4 | codes << 4)


@torch.no_grad()
def _other_scales(model: nn.Module) -> None:
    scales = model.model.layers[1].mlp.up_proj.scales
    scales.copy_(scales.roll(1))


def clean_case(name: str, make: Callable[..., Built], dtype: str, plant: Change = nothing, **more: Any) -> Case:
    title = f"clean-{dtype}-{name}"
    fields = dict(name=title, family=name, dtype=dtype, kind="clean", build=make, plant=plant)
    return Case(**{**fields, **more})


def fault_case(
    name: str, make: Callable[..., Built], dtype: str, plant: Change, culprit: str, causes: str, **more: Any
) -> Case:
    fields = dict(name=f"{dtype}-{name}", family=name, dtype=dtype, kind=name, build=make, plant=plant)
    paths = culprit.split()
    told = dict(culprits=(set(paths),), causes=(set(causes.split()),), planted=(paths[0],))
    return Case(**{**fields, **told, **more})


def _family(name: str, seed: int = 0) -> Callable[..., Built]:
    return functools.partial(build, name, seed=seed)


_HALF: dict[str, Any] = {"reference_dtype": "bf16"}

CLEAN: list[Case] = [
    *(clean_case(f"port-{name}", build_net, "fp32", port(name)) for name in PORTS),
    *(clean_case(f"port-{name}", functools.partial(build_net, seed=7, layers=5), "bf16", port(name)) for name in PORTS),
    clean_case("port-fused", build_net, "fp32", fuse),
    clean_case("port-unshared", build_shared, "fp32", unshare),
    clean_case("port-shared", lambda: _unshared(build_shared()), "bf16", share),
    clean_case("port-masks", build_causal, "fp32", renamed_mask(_BoolBody)),
    clean_case("folded-batchnorms", _family("cnn"), "fp32", rearranged.fold_batchnorms),
    clean_case("folded-batchnorms", _family("cnn", 3), "bf16", rearranged.fold_batchnorms),
    clean_case("folded-norms", _family("llama"), "fp32", rearranged.fold_norms),
    clean_case("folded-norms", _family("qwen3", 3), "bf16", rearranged.fold_norms),
    clean_case("smoothed", _family("llama", 4), "fp16", rearranged.smooth),
    clean_case("permuted-heads", _family("llama"), "fp32", rearranged.permute_heads),
    clean_case("permuted-heads", _family("qwen3", 3), "bf16", rearranged.permute_heads, **_HALF),
    clean_case("permuted-hidden", _family("qwen3"), "fp32", rearranged.permute_hidden),
    clean_case("permuted-hidden", _family("vit", 3), "fp16", rearranged.permute_hidden),
    clean_case("permuted-experts", _family("minimax_m2"), "fp32", rearranged.permute_experts),
    clean_case("moved-scales", _family("llama"), "fp32", rearranged.move_scales),
    clean_case("all-at-once", _family("llama", 5), "fp32", then(rearranged.fold_norms, rearranged.permute_heads)),
    *(
        clean_case(f"weights-{name}", _family("llama", 6), "fp32", quantised.everywhere(name))
        for name in quantised.SCHEMES
    ),
    clean_case("weights-fp8-blocks", _family("qwen3", 6), "bf16", quantised.everywhere("fp8-blocks")),
    clean_case("weights-int4-groups", _family("qwen3", 6), "bf16", quantised.everywhere("int4-groups")),
    clean_case("weights-packed", _family("llama", 6), "fp32", quantised.packed),
    clean_case("weights-packed", _family("qwen3", 6), "bf16", quantised.packed),
    clean_case("nested", build_encoder, "fp32"),
    clean_case("autocast", _family("llama"), "fp32", autocast),
    clean_case("autocast-vit", _family("vit"), "fp32", autocast),
    clean_case("massive", build_massive, "bf16"),
    clean_case("capped", build_capped, "bf16"),
    clean_case("alibi", build_bloom, "fp16"),
]


def _unshared(built: Built) -> Built:
    unshare(built[0])
    return built


def _in_port(name: str, kind: str, path: str, dtype: str = "fp32", size: float | None = None) -> Case:
    """One fault in a port."""
    plant = then(port(name), strike(kind, path, size))
    return fault_case(f"{name}-{kind}", build_net, dtype, plant, path, " ".join(FAULTS[kind].causes))


FAULTY: list[Case] = [
    _in_port("tuple", "weight-wrong", B1 + "ff.down"),
    _in_port("tuple", "double-bias", B1 + "attn.q_proj", "bf16"),
    _in_port("flat", "weight-permuted", B2 + "ff.up"),
    _in_port("flat", "sign", B1 + "attn.o_proj", "bf16"),
    _in_port("deferred-residual", "weight-scaled", B1 + "ff.up", size=0.1),
    _in_port("deferred-residual", "norm-wrong", B2 + "norm2"),
    _in_port("chunked", "weight-wrong", B1 + "ff.down"),
    _in_port("chunked-inside", "weight-wrong", B1 + "ff.up"),
    fault_case("chunk-lost", build_net, "fp32", then(port("chunked-inside"), _lost_chunk), B1 + "ff", "mask"),
    _in_port("channels-first", "weight-scaled", B1 + "ff.down", size=0.2),
    _in_port("time-first", "output-offset", B2 + "attn.v_proj"),
    _in_port("sorted-batch", "weight-wrong", B1 + "ff.up"),
    _in_port("written-out", "weight-stale", B1 + "attn.v_proj"),
    _in_port("complex", "sign", B1 + "attn.q_proj"),
    fault_case(
        "shared-stale",
        build_shared,
        "fp32",
        then(unshare, strike("weight-wrong", B2 + "ff.up")),
        B2 + "ff.up",
        "weights",
    ),
    fault_case("mask-renamed", build_causal, "fp32", renamed_mask(_AheadBody), "body", "mask shift"),
    fault_case("slopes", build_net, "bf16", lambda model: become(model, Body=_WrongSlopes), "body", "mask scale"),
    fault_case(
        "fold-wrong",
        _family("cnn"),
        "fp32",
        then(rearranged.fold_batchnorms, _wrong_fold),
        "blocks.1.conv1 blocks.1",
        "weights",
    ),
    fault_case(
        "folded-and-wrong",
        _family("llama"),
        "fp32",
        then(rearranged.fold_norms, strike("sign", Q2 + "mlp.down_proj")),
        Q2 + "mlp.down_proj",
        "sign",
    ),
    fault_case(
        "heads-and-wrong",
        _family("llama"),
        "bf16",
        then(rearranged.permute_heads, strike("weight-wrong", Q1 + "mlp.gate_proj")),
        Q1 + "mlp.gate_proj",
        "weights",
    ),
    fault_case(
        "adapters-lost",
        build_adapted,
        "fp32",
        without_adapters,
        "model.layers.0.self_attn.q_proj",
        "weights",
    ),
    fault_case(
        "adapters-lost",
        build_adapted,
        "bf16",
        without_adapters,
        "model.layers.0.self_attn.q_proj",
        "weights",
    ),
    fault_case(
        "int4-one-group",
        _family("llama", 6),
        "fp32",
        then(quantised.everywhere("int4-groups"), _one_group),
        Q1 + "mlp.down_proj",
        "weights scale quantization",
    ),
    fault_case(
        "fp8-and-wrong",
        _family("llama", 6),
        "fp32",
        then(quantised.everywhere("fp8-blocks"), strike("weight-wrong", Q1 + "self_attn.o_proj", 0.5)),
        Q1 + "self_attn.o_proj",
        "weights",
    ),
    fault_case(
        "packed-nibbles",
        _family("llama", 6),
        "fp32",
        then(quantised.packed, _swapped_nibbles),
        Q1 + "mlp.up_proj",
        "weights quantization permutation unknown structure",
    ),
    fault_case(
        "packed-scales",
        _family("llama", 6),
        "fp32",
        then(quantised.packed, _other_scales),
        Q1 + "mlp.up_proj",
        "weights quantization permutation unknown structure",
    ),
    fault_case(
        "autocast-and-wrong",
        _family("llama"),
        "fp32",
        then(autocast, strike("weight-wrong", Q1 + "mlp.up_proj")),
        Q1 + "mlp.up_proj",
        "weights",
    ),
    fault_case(
        "massive-and-wrong",
        build_massive,
        "bf16",
        strike("weight-scaled", B1 + "ff.down", 0.2),
        B1 + "ff.down",
        "weights scale",
    ),
    fault_case(
        "massive-offset",
        build_massive,
        "bf16",
        strike("weight-wrong", B2 + "attn.o_proj", 0.3),
        B2 + "attn.o_proj",
        "weights",
    ),
    fault_case("capped-otherwise", build_capped, "bf16", _uncapped, Q1 + "self_attn", "config"),
    fault_case(
        "alibi-and-wrong",
        build_bloom,
        "fp16",
        strike("weight-wrong", "transformer.h.1.mlp.dense_4h_to_h"),
        "transformer.h.1.mlp.dense_4h_to_h",
        "weights",
    ),
    fault_case(
        "nested-and-wrong",
        build_encoder,
        "fp32",
        strike("weight-wrong", "layers.1.linear1"),
        "layers.1.linear1",
        "weights",
    ),
]

PORTED: list[Case] = [*CLEAN, *FAULTY]
