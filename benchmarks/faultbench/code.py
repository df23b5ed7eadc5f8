"""Faults in code: one module computes something else."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faultbench.faults import LISTED, Around, fault, map_first, on_output, rewrite
from torch import nn


def _clip(value: torch.Tensor, size: float, generator: torch.Generator) -> torch.Tensor:
    limit = float(value.float().abs().max()) * size
    return value.clamp(-limit, limit)


def _channel(value: torch.Tensor, size: float, generator: torch.Generator) -> torch.Tensor:
    # The channels of an image are its second axis, those of a sequence the last.
    value = value.clone()
    value.movedim(1 if value.dim() == 4 and value.shape[1] >= 16 else -1, 0)[3] = 0
    return value


def _token(value: torch.Tensor, size: float, generator: torch.Generator) -> torch.Tensor:
    value = value.clone()
    if value.dim() == 2:
        value[1] = 0  # experts see a flat list of tokens
    else:
        value[0, 1] = 0
    return value


def _cast(value: torch.Tensor, size: float, generator: torch.Generator) -> torch.Tensor:
    """Through a type with fewer bits: bf16 inside float32, fp8 inside bf16 and fp16."""
    narrow = torch.bfloat16 if value.dtype == torch.float32 else torch.float8_e4m3fn
    return value.to(narrow).to(value.dtype)


def _nan(value: torch.Tensor, size: float, generator: torch.Generator) -> torch.Tensor:
    """The logarithm of a negative number, in the first token alone; later layers spread it."""
    first = value[:, :1]
    low = first <= first.amin()
    value = value.clone()
    value[:, :1] = torch.where(low, torch.log(first.clamp(max=-1e-3).float()).to(value.dtype), first)
    return value


def _skip(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
    def around(self: nn.Module, forward: Around, *args: Any, **kwargs: Any) -> Any:
        return _first_argument(args, kwargs)

    rewrite(model.get_submodule(path), around)


def _lost_residual(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
    """The block returns what it computed without what it was given."""

    def around(self: nn.Module, forward: Around, *args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        return map_first(output, lambda value: value - _first_argument(args, kwargs))

    rewrite(model.get_submodule(path), around)


def _norm_position(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
    """The norm behind the attention instead of before it."""

    def around(self: Any, forward: Around, hidden_states: torch.Tensor, **kwargs: Any) -> Any:
        inner, _ = self.self_attn(hidden_states=hidden_states, **kwargs)
        hidden_states = hidden_states + self.input_layernorm(inner)
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))

    rewrite(model.get_submodule(path), around)


def _mid_residual(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
    """The residual around the attention is forgotten; the one around the MLP is there."""

    def around(self: Any, forward: Around, hidden_states: torch.Tensor, **kwargs: Any) -> Any:
        hidden_states, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))

    rewrite(model.get_submodule(path), around)


def _double_bias(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
    def around(self: Any, forward: Around, *args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        return output + (self.bias.view(-1, 1, 1) if output.dim() == 4 else self.bias)

    rewrite(model.get_submodule(path), around)


def _spoils_input(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
    """Writes into what it was given, after it has used it: its neighbours get that."""

    def around(self: nn.Module, forward: Around, x: torch.Tensor) -> torch.Tensor:
        output = forward(x)
        x[:, 1] = 0
        return output

    rewrite(model.get_submodule(path), around)


def _positions(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
    """From the fourth token on, positions are one too high: a relative error, so rotary embeddings show it too."""

    def around(self: nn.Module, forward: Around, x: torch.Tensor, position_ids: torch.Tensor, **kwargs: Any) -> Any:
        return forward(x, position_ids + (position_ids >= 3).long(), **kwargs)

    rewrite(model.get_submodule(path), around)


def _wrong_positions(model: nn.Module, path: str, size: float, generator: torch.Generator) -> None:
    """Learned positions counted from 1: the caller of the position embedding asks for the wrong rows."""

    def around(self: nn.Module, forward: Around, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        positions = torch.arange(1, input_ids.shape[1] + 1)[None]
        return forward(input_ids, **{**kwargs, "position_ids": positions})

    rewrite(model.get_submodule(path), around)


def _first_argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    return args[0] if args else kwargs["hidden_states"]


FAULTS = [
    fault("sign", "linear", "sign", on_output(lambda v, s, g: -v)),
    fault("output-scale", "linear", "scale", on_output(lambda v, s, g: v * (1 + s)), sizes=(0.003, 1.0)),
    fault("output-offset", "linear", "offset", on_output(lambda v, s, g: v + s * v.std()), sizes=(0.01, 1.0)),
    fault("output-clipped", "linear", "clipping", on_output(_clip), size=0.4, sizes=(0.2, 0.7)),
    fault("hidden-cast", "linear", "precision quantization", on_output(_cast)),
    fault("cast-in-norm", "norm", "precision quantization", on_output(_cast)),
    fault("dead-token", "linear", "mask", on_output(_token)),
    fault("dead-channel", "linear", "mask", on_output(_channel)),
    fault("token-shift", "mlp", "shift", on_output(lambda v, s, g: v.roll(1, -2))),
    fault("channels-permuted", "mlp", "permutation", on_output(lambda v, s, g: v.flip(-1))),
    fault("skipped", "pointwise", "skipped", _skip),
    fault("skipped-block", "block", "skipped", _skip),
    fault("lost-residual", "block", "structure skipped", _lost_residual),
    fault("mid-residual", "prenorm", "structure skipped", _mid_residual),
    fault("norm-position", "prenorm", "structure config", _norm_position),
    fault("double-bias", "biased", "offset", _double_bias),
    fault("nan-born", "pointwise", "nonfinite", on_output(_nan)),
    fault("spoils-input", LISTED, "mask structure unknown", _spoils_input),
    fault("position-off-by-one", "rotary", "shift config unknown", _positions),
    fault("wrong-positions", "counted", "shift offset", _wrong_positions),
]
