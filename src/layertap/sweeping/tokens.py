"""What is kept of a language model's output: the likeliest tokens of each position, and the rest as one mass."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from layertap.capture.leaves import leaves

FILE = "tokens.safetensors"
LEAST = 16
"""An output with fewer entries in its last axis has no vocabulary."""


def keep_tokens(output: Any, ids: torch.Tensor | None, folder: Path, top: int) -> dict[str, Any]:
    """Writes, for each position, the `top` likeliest tokens with their log-probabilities, the mass of all others, and
    the log-probability of the token that follows; returns what was written, nothing for a model without logits."""
    logits = logits_of(output, ids)
    if logits is None:
        return {}
    from safetensors.torch import save

    top = min(top, logits.shape[-1])
    found: dict[str, list[torch.Tensor]] = {"ids": [], "logprobs": [], "tail": [], "next": []}
    for row, tokens in zip(logits, ids if ids is not None else [None] * len(logits), strict=True):
        for begin in range(0, row.shape[0], 256):  # a block of positions in float64 at a time
            part = row[begin : begin + 256].detach().cpu().double().log_softmax(-1)
            best = part.topk(top)
            found["ids"].append(best.indices.int())
            found["logprobs"].append(best.values.float())
            rest = 1 - best.values.exp().sum(-1)
            found["tail"].append(
                rest.clamp_min(0).float() if top < logits.shape[-1] else torch.zeros_like(rest).float()
            )
            follows = _following(tokens, begin, len(part))
            known = part.gather(-1, follows.clamp_min(0)[:, None])[:, 0]
            found["next"].append(torch.where(follows >= 0, known, torch.full_like(known, math.nan)).float())
    tensors = {name: torch.cat(parts).contiguous() for name, parts in found.items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_bytes(save(tensors))
    return {"positions": len(tensors["tail"]), "vocabulary": logits.shape[-1], "top": top}


def ids_of(inputs: Any) -> torch.Tensor | None:
    """The token ids among a model's inputs; None where there are none."""
    found = inputs.get("input_ids") if isinstance(inputs, dict) else (inputs[0] if inputs else None)
    return found if isinstance(found, torch.Tensor) and not found.is_floating_point() and found.ndim == 2 else None


def _following(tokens: torch.Tensor | None, begin: int, count: int) -> torch.Tensor:
    """The token after each position; -1 where there is none."""
    follows = torch.full((count,), -1, dtype=torch.long)
    if tokens is not None:
        known = tokens[begin + 1 : begin + 1 + count].cpu().long()
        follows[: len(known)] = known
    return follows


def logits_of(output: Any, ids: torch.Tensor | None = None) -> torch.Tensor | None:
    """[rows, positions, vocabulary]: what is called logits, or the first output of a model of ids."""
    named = getattr(output, "logits", None)
    if named is None and isinstance(output, dict):
        named = output.get("logits")
    if named is None and ids is not None:
        named = next((leaf.tensor for leaf in leaves(output) if leaf.tensor is not None), None)
    if not isinstance(named, torch.Tensor) or not named.is_floating_point() or named.shape[-1] < LEAST:
        return None
    if named.ndim == 3 and (ids is None or named.shape[:2] == ids.shape):
        return named
    return named[:, None] if named.ndim == 2 and ids is None else None
