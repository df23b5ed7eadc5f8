"""What honest arithmetic does: the reference in the candidate's dtype, and inputs moved by one rounding."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import nn

from layertap.fault.model_runner import ModelRunner
from layertap.fault.pairing import Pairing


def lowered(
    reference: nn.Module,
    pairing: Pairing,
    theirs: ModelRunner,
    dtype: torch.dtype | None = None,
    weights: Mapping[str, Mapping[str, torch.Tensor]] | None = None,
) -> nn.Module | None:
    """A copy of the reference on the candidate's device and in its dtype; None where no copy can be made.

    `weights` are put in the place of its own, by path and name.
    """
    try:
        model = copy.deepcopy(reference)
    except Exception:  # noqa: BLE001  models force what they like; without a copy there is one floor less, which is said
        return None
    _cast(model, pairing, theirs, dtype)
    with torch.no_grad():
        for path, values in (weights or {}).items():
            for name, tensor in values.items():
                model.get_submodule(path).get_parameter(name).copy_(tensor)
    return model


def _cast(model: nn.Module, pairing: Pairing, theirs: ModelRunner, forced: torch.dtype | None) -> None:
    """As the candidate holds them: parameters that it keeps in a wider dtype stay in that."""
    dtypes: dict[int, torch.dtype] = {}
    for path, module in model.named_modules():
        twin = pairing.candidate.get(path)
        for own, other in ((module._parameters, "_parameters"), (module._buffers, "_buffers")):
            for name, tensor in own.items():
                if tensor is None:
                    continue
                wanted = getattr(twin, other).get(name) if twin is not None else None
                dtype = _dtype_for(tensor, wanted, theirs)
                if forced is not None and tensor.is_floating_point():
                    dtype = forced
                dtypes[id(tensor)] = dtype
    # As `Module.to` does it: some devices want a parameter made anew, and an LSTM has its weights in a list besides.
    model._apply(lambda tensor: tensor.to(theirs.device, dtypes.get(id(tensor), tensor.dtype)))


def _dtype_for(tensor: torch.Tensor, wanted: torch.Tensor | None, theirs: ModelRunner) -> torch.dtype:
    if not tensor.is_floating_point() or theirs.dtype is None:
        return tensor.dtype
    plain = wanted is not None and wanted.is_floating_point() and wanted.dtype.itemsize > theirs.dtype.itemsize
    return wanted.dtype if plain and wanted is not None else theirs.dtype


def one_ulp(value: torch.Tensor, seed: int = 0, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Moves about half of the values to a neighbour, up or down: what rounding somewhere before would do.

    Under autocast the neighbour is that of the `dtype` that it brings operators to.
    """
    if value.is_complex():
        return torch.view_as_complex(one_ulp(torch.view_as_real(value), seed, dtype))
    if not value.is_floating_point() or value.dtype.itemsize < 2 or value.is_nested or value.layout != torch.strided:
        return value
    wide = value.double() if value.dtype == torch.float64 else value.float()
    coarse = dtype if dtype is not None and dtype.itemsize < value.dtype.itemsize else value.dtype
    eps = torch.finfo(coarse).eps * (1.0 if coarse.itemsize >= 4 else 0.5)
    moves = _kept_moves if value.numel() <= KEPT else _moves
    return (wide * moves(value.numel(), seed, eps, wide.dtype, value.device).reshape(value.shape)).to(value.dtype)


KEPT = 1 << 22
"""Moves of so many values are kept for the next of that size: a model has few sizes, and drawing takes longest."""


def forget_moves() -> None:
    """Gives the memory of what is kept back."""
    _kept_moves.cache_clear()


def _moves(count: int, seed: int, eps: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    generator = torch.Generator(device if device.type == "cuda" else "cpu")  # others may have no generator
    generator.manual_seed(count + seed)
    up = torch.rand(count, generator=generator, device=generator.device) < 0.5
    return (1 + torch.where(up, eps, -eps).to(dtype)).to(device)


_kept_moves = lru_cache(maxsize=8)(_moves)
