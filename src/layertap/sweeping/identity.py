"""A tensor by what proves that another is the same."""

from __future__ import annotations

from typing import Any

import torch

from layertap.measure import measure


def identity(tensor: torch.Tensor) -> dict[str, Any]:
    """Dtype, shape and fingerprint.

    >>> identity(torch.zeros(2))
    {'dtype': 'float32', 'shape': [2], 'fingerprint': '0000000000000000'}
    """
    found = measure(tensor.detach().cpu())
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": list(tensor.shape), "fingerprint": f"{found.fingerprint:016x}"}
