"""Sentences of an invented language, from which a small model can learn something in seconds."""

from __future__ import annotations

import torch
from torch import Tensor

VOCABULARY = 64


def sentences(count: int, length: int, seed: int) -> Tensor:
    """Tokens of which each is likely to be followed by a few others, which depend on the last two."""
    fixed = torch.Generator().manual_seed(1234)
    follows = torch.randint(VOCABULARY, (VOCABULARY, 2, 4), generator=fixed)
    likely = torch.tensor([0.55, 0.25, 0.12, 0.08])
    make = torch.Generator().manual_seed(seed)
    rows = torch.randint(VOCABULARY, (count, length), generator=make)
    for place in range(2, length):
        chosen = torch.multinomial(likely.expand(count, 4), 1, generator=make)[:, 0]
        rows[:, place] = follows[rows[:, place - 1], rows[:, place - 2] % 2, chosen]
    return rows
