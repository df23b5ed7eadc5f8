"""Every source of random numbers that a model draws from, set to one seed."""

from __future__ import annotations

import random


def set_seeds(seed: int) -> None:
    """Python's, numpy's and torch's, on every device."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  the global generator is what other people's code draws from
    torch.manual_seed(seed)
