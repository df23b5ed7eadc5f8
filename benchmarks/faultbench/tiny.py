"""Is a planted fault smaller than rounding? Measured on the one guilty module, with nothing but torch.

The module gets what it got in the reference's run; its output with the fault is held against its output in the
candidate's precision without it, over the whole tensor and for every row and channel alone.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from benchmarks.faultbench.case import DTYPES, Case, cast
from benchmarks.faultbench.families import run
from torch import nn

MARGIN = 2.0


def is_tiny(case: Case) -> bool:
    """Whether one of the case's faults stays below twice its module's own rounding, in every row and channel."""
    reference, inputs = case.build()
    faulty = copy.deepcopy(reference)
    case.plant(faulty)
    return any(_below_rounding(reference, faulty, inputs, path, case.dtype) for path in case.planted)


def _below_rounding(reference: nn.Module, faulty: nn.Module, inputs: Any, path: str, dtype: str) -> bool:
    path = called(reference, path)
    args, kwargs = arguments(reference, inputs, path)
    right = _output(reference.get_submodule(path), args, kwargs)
    wrong = _output(faulty.get_submodule(path), args, kwargs)
    if right.shape != wrong.shape or not bool(wrong.isfinite().all()):
        return False
    rounded = _rounded(reference.get_submodule(path), args, kwargs, dtype)
    return all(
        bool((error <= MARGIN * noise).all())
        for error, noise in zip(_errors(wrong, right), _errors(rounded, right), strict=True)
    )


def called(model: nn.Module, path: str) -> str:
    """The nearest module that is called: Mamba reads some children's weights and calls only their parent."""
    return path.rpartition(".")[0] if path.endswith((".conv1d", ".dt_proj")) else path


def arguments(model: nn.Module, inputs: Any, path: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the module is given when the model runs, without its cache, which a second call would fill again."""
    seen: list[Any] = []
    handle = model.get_submodule(path).register_forward_pre_hook(
        lambda module, args, kwargs: seen.append((args, kwargs)), with_kwargs=True
    )
    try:
        run(model, inputs)
    finally:
        handle.remove()
    args, kwargs = seen[0]
    return args, {key: None if key in ("past_key_values", "cache_params") else value for key, value in kwargs.items()}


def _output(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    with torch.no_grad():
        output = module(*args, **kwargs)
    if not isinstance(output, torch.Tensor):
        output = output[0]
    return output.double()


def _rounded(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: str) -> torch.Tensor:
    if dtype == "fp32":
        # The other rounding of float32 is that of a float64 result: one more rounding, in another place.
        exact = copy.deepcopy(module).double()
        return _output(exact, *_moved((args, kwargs), torch.float64)).float().double()
    twin = cast(copy.deepcopy(nn.ModuleDict({"only": module})), dtype)["only"]
    return _output(twin, *_moved((args, kwargs), DTYPES.get(dtype, torch.float32)))


def _moved(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, tuple | list):
        return tuple(_moved(item, dtype) for item in value)
    if isinstance(value, dict):
        return {key: _moved(item, dtype) for key, item in value.items()}
    return value


def _errors(value: torch.Tensor, right: torch.Tensor) -> list[torch.Tensor]:
    """The error's norm over all, over each row and over each channel, never quite zero."""
    error = (value - right).flatten(0, -2) if value.dim() > 1 else (value - right)[None]
    least = torch.finfo(torch.float32).eps * right.abs().max()
    return [error.norm()[None] + least, error.norm(dim=1) + least, error.norm(dim=0) + least]
