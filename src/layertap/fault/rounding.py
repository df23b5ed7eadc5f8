"""What honest arithmetic does: the reference in the candidate's dtype, and inputs moved by one rounding."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

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
        model = copy.deepcopy(reference, _cast_already(reference, pairing, theirs, dtype))
    except Exception:  # noqa: BLE001  models force what they like; without a copy there is one floor less, which is said
        return None
    _cast(model, pairing, theirs, dtype)
    with torch.no_grad():
        for path, values in (weights or {}).items():
            for name, tensor in values.items():
                model.get_submodule(path).get_parameter(name).copy_(tensor)
    return model


def _cast_already(
    reference: nn.Module, pairing: Pairing, theirs: ModelRunner, forced: torch.dtype | None
) -> dict[int, Any]:
    """For deepcopy, plain parameters and buffers as the copy is to hold them: a model copied as it is and cast then is
    there twice for a while."""
    if theirs.device.type not in ("cpu", "cuda"):
        return {}  # some devices want a parameter made anew
    made: dict[int, Any] = {}
    for tensor, dtype in _dtypes(reference, pairing, theirs, forced):
        plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout == torch.strided and not tensor.is_meta
        if plain and (tensor.device, tensor.dtype) != (theirs.device, dtype):
            cast = tensor.detach().to(theirs.device, dtype)
            owned = type(tensor) is nn.Parameter
            made[id(tensor)] = nn.Parameter(cast, requires_grad=tensor.requires_grad) if owned else cast
    return made


def _dtypes(
    model: nn.Module, pairing: Pairing, theirs: ModelRunner, forced: torch.dtype | None
) -> Iterator[tuple[torch.Tensor, torch.dtype]]:
    """As the candidate holds them: parameters that it keeps in a wider dtype stay in that."""
    for path, module in model.named_modules():
        twin = pairing.candidate.get(path)
        for own, other in ((module._parameters, "_parameters"), (module._buffers, "_buffers")):
            for name, tensor in own.items():
                if tensor is None:
                    continue
                wanted = getattr(twin, other).get(name) if twin is not None else None
                dtype = _dtype_for(tensor, wanted, theirs)
                yield tensor, forced if forced is not None and tensor.is_floating_point() else dtype


def _cast(model: nn.Module, pairing: Pairing, theirs: ModelRunner, forced: torch.dtype | None) -> None:
    dtypes = {id(tensor): dtype for tensor, dtype in _dtypes(model, pairing, theirs, forced)}
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
    wide = torch.float64 if value.dtype == torch.float64 else torch.float32
    coarse = dtype if dtype is not None and dtype.itemsize < value.dtype.itemsize else value.dtype
    eps = torch.finfo(coarse).eps * (1.0 if coarse.itemsize >= 4 else 0.5)
    moves = _MOVES.of(value.numel(), seed, eps, wide, value.device).reshape(value.shape)
    value = value.detach()
    if value.device.type in ("cpu", "cuda"):  # one pass; others may not convert what they write
        return torch.mul(value, moves, out=torch.empty_like(value))
    return (value * moves).to(value.dtype)


KEPT = 512 << 20
"""Bytes of moves that are kept for the next value of the same size: a model has few, and drawing takes longest."""


class _Moves:
    """What values of one size are multiplied with."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], torch.Tensor] = {}

    def of(self, count: int, seed: int, eps: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        key = count, seed, eps, dtype, device
        if (known := self._kept.get(key)) is not None:
            return known
        made = _moves(count, seed, eps, dtype, device)
        while self._kept and made.nbytes + sum(one.nbytes for one in self._kept.values()) > KEPT:
            del self._kept[next(iter(self._kept))]
        if made.nbytes <= KEPT:
            self._kept[key] = made
        return made

    def forget(self) -> None:
        """Gives the memory back."""
        self._kept.clear()


_MOVES = _Moves()


def forget_moves() -> None:
    """Gives the memory of what is kept back."""
    _MOVES.forget()


def _moves(count: int, seed: int, eps: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    generator = torch.Generator(device if device.type == "cuda" else "cpu")  # others may have no generator
    generator.manual_seed(count + seed)
    up = torch.rand(count, generator=generator, device=generator.device) < 0.5
    return (1 + torch.where(up, eps, -eps).to(dtype)).to(device)
