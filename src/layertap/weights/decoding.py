"""What a language model's output says of it: perplexity, and decoding token by token with a cache against without."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from layertap.weights.branches import call
from layertap.weights.pruning import outputs

STEPS = 6
"""Tokens that are decoded one by one to compare a cache with none."""


def relative_error(one: list[torch.Tensor], two: list[torch.Tensor]) -> float:
    """Of two outputs, the second being what the first should be; infinite where they cannot be compared."""
    if len(one) != len(two) or any(a.shape != b.shape for a, b in zip(one, two, strict=True)):
        return math.inf
    apart = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(one, two, strict=True))
    size = sum(float(b.double().square().sum()) for b in two)
    error = math.sqrt(apart / size) if size else math.sqrt(apart)
    return error if math.isfinite(error) else math.inf


def perplexity(model: nn.Module, inputs: Any) -> float:
    """Perplexity on the inputs; NaN where they contain no ids."""
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
    logits = outputs(call(model, inputs))[0]
    if not isinstance(ids, torch.Tensor) or logits.ndim != 3:
        return math.nan
    found = logits[:, :-1].float().log_softmax(-1).gather(-1, ids[:, 1:, None])
    return math.exp(min(-float(found.mean()), 700.0))


@dataclass(frozen=True, slots=True)
class _CacheGap:
    error: float
    length: int
    """How many tokens the cache says that it holds at the end."""
    tokens: int


def decoding_gap(model: nn.Module, ids: torch.Tensor) -> _CacheGap | None:
    """Logits of the last tokens, decoded one by one with a cache, against those of one pass; None without a cache."""
    steps = min(STEPS, ids.shape[1] - 2)
    given: dict[str, Any] = {"input_ids": ids, "use_cache": False}
    with torch.no_grad():
        try:
            whole = model(**given).logits[:, -steps:]
            state = model(input_ids=ids[:, :-steps], use_cache=True)
            found = []
            for place in range(ids.shape[1] - steps, ids.shape[1]):
                cache = state.past_key_values
                state = model(input_ids=ids[:, place : place + 1], past_key_values=cache, use_cache=True)
                found.append(state.logits[:, -1])
        except (TypeError, AttributeError):
            return None
    apart = torch.stack(found, 1).double() - whole.double()
    error = float(apart.norm() / whole.double().norm().clamp_min(1e-300))
    length = getattr(state.past_key_values, "get_seq_length", lambda: ids.shape[1])()
    return _CacheGap(error if math.isfinite(error) else math.inf, int(length), ids.shape[1])
