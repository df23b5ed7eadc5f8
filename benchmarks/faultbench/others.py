"""Pairs of further architectures and ports: other masks, quantised forms, caches, training steps; clean and faulty."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.faultbench import other_nets as nets
from benchmarks.faultbench import other_ways as ways
from benchmarks.faultbench.case import Case, nothing
from benchmarks.faultbench.families import Built, build
from benchmarks.faultbench.faults import Around, map_first, rewrite
from benchmarks.faultbench.other_nets import ids, image, seeded
from benchmarks.faultbench.ported import Change, autocast, clean_case, fault_case, then
from torch import nn

Q1 = "model.layers.1."


def _masked(form: str = "bool") -> Built:
    model, inputs = seeded(nets.MaskedNet, ids(2, 10))
    model.form = form
    return model, inputs


def _net(make: type[nn.Module], *inputs: torch.Tensor) -> Callable[[], Built]:
    return functools.partial(seeded, make, *inputs)


def _adapted() -> Built:
    model, inputs = build("llama")
    ways.adapt(model)
    return model, inputs


def _capped() -> Built:
    from benchmarks.faultbench.ported import build_capped

    model, inputs = build_capped()
    for layer in model.model.layers:
        layer.self_attn.attn_logit_softcapping = 2.0
    return model, inputs


def _stepping() -> Built:
    """Prefill and three steps, with the cache that the model asks for."""
    model, _ = build("llama")

    def run(model: Any) -> torch.Tensor:
        import transformers

        static = getattr(model, "static_cache", False)
        more = {"max_cache_len": 16} if static else {}
        cache = (transformers.StaticCache if static else transformers.DynamicCache)(config=model.config, **more)
        tokens, logits = ids(2, 8), []
        for begin, end in ((0, 5), (5, 6), (6, 7), (7, 8)):
            at = torch.arange(begin, end).expand(2, -1)
            output = model(tokens[:, begin:end], past_key_values=cache, use_cache=True, position_ids=at)
            logits.append(output.logits)
        return torch.cat(logits, 1)

    return model, run  # type: ignore[return-value]


def _training(make: Callable[[], Built]) -> Callable[[], Built]:
    def built() -> Built:
        model, _ = make()
        tokens = ids(2, 9)

        def step(model: nn.Module) -> torch.Tensor:
            output = model(tokens)
            loss = getattr(output, "logits", output).float().square().mean()
            loss.backward()
            return loss

        return model, step  # type: ignore[return-value]

    return built


def _steps(make: Callable[[], Built]) -> Callable[[], Built]:
    """Two steps of an optimizer: the second forward pass is on other weights."""

    def built() -> Built:
        model, _ = make()
        tokens = ids(2, 9)

        def steps(model: nn.Module) -> torch.Tensor:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                loss = model(tokens, labels=tokens).loss
                loss.backward()
                optimizer.step()
            return loss

        return model, steps  # type: ignore[return-value]

    return built


def _generating() -> Built:
    model, _ = build("llama")
    return model, lambda model: model.generate(input_ids=ids(2, 6), max_new_tokens=4, do_sample=False)  # type: ignore[return-value]


def put(path: str, **settings: Any) -> Change:
    """Sets attributes of one module."""

    def plant(model: nn.Module) -> None:
        for name, value in settings.items():
            setattr(model.get_submodule(path), name, value)

    return plant


def times(path: str, by: float, rows: int | None = None, name: str = "weight") -> Change:
    """Multiplies a parameter, or its first rows."""

    @torch.no_grad()
    def plant(model: nn.Module) -> None:
        model.get_submodule(path).get_parameter(name)[:rows].mul_(by)

    return plant


def _form(form: str) -> Change:
    return put("", form=form)


def _written_lstm(exchanged: bool) -> Change:
    return lambda model: setattr(model, "lstm", nets.WrittenLstm(model.lstm, exchanged).eval())


def _written_fourier(wrong: int = -1) -> Change:
    def plant(model: nn.Module) -> None:
        model.mix = nn.ModuleList(nets.WrittenFourier(-1.0 if at == wrong else 1.0) for at in range(3)).eval()

    return plant


def _dense_experts(model: nn.Module) -> None:
    for experts in model.experts:
        experts.__class__ = nets.DenseExperts


def _other_codes(model: nn.Module) -> None:
    model.blocks[2].up.codes.copy_(model.blocks[2].up.codes.roll(1, 0))


class _Cut(nn.Linear):
    """The gradient stops at its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.detach())


def _cut(model: nn.Module) -> None:
    model.model.layers[1].self_attn.o_proj.__class__ = _Cut


def _around(path: str, around: Around) -> Change:
    """Rewrites the forward of one module."""
    return lambda model: rewrite(model.get_submodule(path), around)


def _detached(self: nn.Module, forward: Around, *args: Any, **kwargs: Any) -> Any:
    return map_first(forward(*args, **kwargs), torch.Tensor.detach)


def _without_grad(self: nn.Module, forward: Around, *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        return forward(*args, **kwargs)


def _unrotated_steps(self: nn.Module, forward: Around, hidden_states: torch.Tensor, **kwargs: Any) -> Any:
    """Decoding forgets the positions; the first call does not."""
    if hidden_states.shape[1] == 1:
        cos, sin = kwargs["position_embeddings"]
        kwargs["position_embeddings"] = torch.ones_like(cos), torch.zeros_like(sin)
    return forward(hidden_states, **kwargs)


def _up_for_gate(self: Any, forward: Around, x: torch.Tensor) -> torch.Tensor:
    return self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x))


def _without_padding(self: nn.Module, forward: Around, src: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    return forward(src)


def _frozen(model: nn.Module) -> None:
    model.model.layers[1].input_layernorm.weight.requires_grad_(False)


_llama = functools.partial(build, "llama")
_UNET = _net(nets.UNet, image())
_TAGGER = _net(nets.Tagger, ids(2, 9))
_PADDED = _net(nets.PaddedNet, ids(2, 9))
_FORMS = ("bool", "none", "inf", "lowest")

CLEAN: list[Case] = [
    *(
        clean_case(f"mask-{a}-{b}", functools.partial(_masked, a), "bf16" if a in ("inf", "none") else "fp32", _form(b))
        for a, b in itertools.permutations(_FORMS, 2)
    ),
    clean_case("merged-gate-up", _llama, "fp32", ways.merge_gate_up),
    clean_case("merged-gate-up", _llama, "bf16", ways.merge_gate_up),
    clean_case("plain-linears", functools.partial(build, "gpt2"), "fp32", ways.plain_linears),
    clean_case("merged-adapters", _adapted, "fp32", ways.merge),
    clean_case("merged-adapters", _adapted, "bf16", ways.merge),
    clean_case("dynamic-int8", _masked, "fp32", ways.dynamic),
    clean_case("code-books", _masked, "fp32", ways.code_books),
    clean_case("eight-bits", _masked, "fp32", ways.eight_bits),
    clean_case("written-lstm", _TAGGER, "fp32", _written_lstm(exchanged=False)),
    clean_case("unet", _UNET, "bf16"),
    clean_case("unet-autocast", _UNET, "fp32", autocast),
    clean_case("written-fourier", _net(nets.FourierNet, ids(2, 10)), "fp32", _written_fourier()),
    clean_case("dense-experts", _net(nets.ExpertsNet, ids(2, 10)), "fp32", _dense_experts),
    clean_case("static-cache", _stepping, "fp32", put("", static_cache=True)),
    clean_case("static-cache", _stepping, "bf16", put("", static_cache=True)),
    clean_case("training", _training(_TAGGER), "bf16", nothing),
    clean_case("capped-2", _capped, "bf16"),
    clean_case("two-steps", _steps(_llama), "bf16", nothing),
    clean_case("generating", _generating, "bf16", nothing),
    clean_case("padded-encoder", _PADDED, "bf16", nothing),
]

FAULTY: list[Case] = [
    *(
        fault_case(
            f"mask-{a}-{b}-and-wrong",
            functools.partial(_masked, a),
            "bf16" if a in ("inf", "none") else "fp32",
            then(_form(b), times("blocks.1.attn.v", 0.0, 8)),
            "blocks.1.attn.v",
            "weights",
        )
        for a, b in (("bool", "none"), ("none", "inf"), ("inf", "bool"), ("lowest", "none"))
    ),
    fault_case(
        "gate-and-up-swapped",
        _llama,
        "fp32",
        then(ways.merge_gate_up, put(Q1 + "mlp", swapped=True)),
        f"{Q1}mlp",
        "structure permutation unknown weights",
    ),
    fault_case(
        "one-not-transposed",
        functools.partial(build, "gpt2"),
        "fp32",
        functools.partial(ways.plain_linears, left="transformer.h.1.attn.c_proj"),
        "transformer.h.1.attn.c_proj",
        "weights transpose",
    ),
    fault_case(
        "adapter-merged-by-half",
        _adapted,
        "fp32",
        functools.partial(ways.merge, wrong=f"{Q1}self_attn.v_proj"),
        f"{Q1}self_attn.v_proj",
        "weights",
    ),
    fault_case(
        "adapter-scaling",
        _adapted,
        "bf16",
        put(f"{Q1}self_attn.q_proj", scaling=1.0),
        f"{Q1}self_attn.q_proj",
        "config",
    ),
    fault_case(
        "dynamic-int8-and-wrong",
        _masked,
        "fp32",
        then(times("blocks.1.attn.v", 1.5, 8), ways.dynamic),
        "blocks.1.attn.v",
        "weights",
    ),
    fault_case("other-codes", _masked, "fp32", then(ways.code_books, _other_codes), "blocks.2.up", "weights"),
    fault_case(
        "eight-bits-scaled",
        _masked,
        "fp32",
        then(ways.eight_bits, put("blocks.2.up", times=1.05)),
        "blocks.2.up",
        "weights scale config",
    ),
    fault_case(
        "eight-bits-attention",
        _masked,
        "fp32",
        then(ways.eight_bits, put("blocks.2.attn", scale=0.2)),
        "blocks.2.attn",
        "config",
    ),
    fault_case(
        "gates-exchanged", _TAGGER, "fp32", _written_lstm(exchanged=True), "lstm", "structure unknown permutation"
    ),
    fault_case("skip-first", _UNET, "fp32", put("up1", skip_first=True), "up1", "config permutation structure"),
    fault_case("corners", _UNET, "bf16", put("up2", align_corners=True), "up2", "config"),
    fault_case("groups", _UNET, "bf16", put("down2.norm", num_groups=8), "down2.norm", "config"),
    fault_case("gelu-tanh", _masked, "fp32", put("blocks.1", approximate="tanh"), "blocks.1", "config"),
    fault_case(
        "conjugated",
        _net(nets.FourierNet, ids(2, 10)),
        "fp32",
        _written_fourier(1),
        "mix.1",
        "sign config structure unknown permutation",
    ),
    fault_case(
        "experts-unnormalised",
        _net(nets.ExpertsNet, ids(2, 10)),
        "fp32",
        put("experts.1", normalised=False),
        "experts.1",
        "config",
    ),
    fault_case(
        "static-cache-and-wrong",
        _stepping,
        "fp32",
        then(put("", static_cache=True), times(f"{Q1}self_attn.k_proj", -1.0, 3)),
        f"{Q1}self_attn.k_proj",
        "weights",
    ),
    fault_case(
        "cap-left-out", _capped, "bf16", put(f"{Q1}self_attn", attn_logit_softcapping=None), f"{Q1}self_attn", "config"
    ),
    fault_case("frozen-norm", _training(_llama), "fp32", _frozen, f"{Q1}input_layernorm", "config"),
    fault_case("gradient-cut", _training(_llama), "fp32", _cut, f"{Q1}self_attn.o_proj {Q1}self_attn", "structure"),
    *(
        fault_case(name, make, dtype, _around(path, around), path, "structure")
        for dtype in ("fp32", "bf16")
        for name, make, path, around in (
            ("result-detached", _training(_llama), f"{Q1}mlp", _detached),
            ("without-grad", _steps(functools.partial(build, "qwen3")), f"{Q1}self_attn", _without_grad),
        )
    ),
    *(
        fault_case(
            "unrotated-steps",
            _generating,
            dtype,
            _around(f"{Q1}self_attn", _unrotated_steps),
            f"{Q1}self_attn",
            "cache",
        )
        for dtype in ("fp32", "bf16")
    ),
    fault_case("up-for-gate", _llama, "bf16", _around(f"{Q1}mlp", _up_for_gate), f"{Q1}mlp", "structure"),
    fault_case("padding-lost", _PADDED, "fp32", _around("encoder", _without_padding), "encoder", "mask"),
]

OTHERS: list[Case] = [*CLEAN, *FAULTY]
