"""The numbers of a tensor of any layout, and the places that a mask closes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

SMALLEST = -1e8
"""Nothing that a model computes with is below this; masks are, when they say that a key is not seen."""


def dense(tensor: torch.Tensor) -> torch.Tensor | None:
    """The numbers of a tensor in a dense one; None where they are not at hand, as in a shard or packed weights."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        if tensor.is_nested:
            values: torch.Tensor = tensor.values()
            return values
        return None
    if tensor.is_nested:
        padded: torch.Tensor = torch.nested.to_padded_tensor(tensor, 0.0)
        return padded
    if tensor.layout != torch.strided:
        return tensor.to_dense()
    return tensor.dequantize() if tensor.is_quantized else tensor


def same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape and device are equal (NaN equals NaN)."""
    if torch.equal(one, other):
        return True
    return torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))


def equal_pairs(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[bool]:
    """Which of many pairs of plain tensors are equal, bit for bit but for the sign of a zero; NaN equals nothing.

    A device is waited for once, not once a pair.
    """
    found = [False] * len(pairs)
    waiting: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    for number, (one, other) in enumerate(pairs):
        if (one.dtype, one.shape, one.device) != (other.dtype, other.shape, other.device):
            continue
        if one.is_cuda:
            waiting.setdefault(one.device, []).append((number, (one == other).all()))
        else:
            found[number] = torch.equal(one, other)
    for flags in waiting.values():
        read = torch.stack([flag for _, flag in flags]).tolist()
        for (number, _), equal in zip(flags, read, strict=True):
            found[number] = equal
    return found


def closed(tensor: torch.Tensor) -> torch.Tensor:
    """Where a mask that is added to scores closes a place: minus infinity, or what represents it."""
    return tensor <= closing(tensor.dtype)


def closing(dtype: torch.dtype) -> float:
    """What a mask adds at most to close a place."""
    return SMALLEST if dtype != torch.float16 else -3e4
