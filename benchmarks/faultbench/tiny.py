"""Is a planted fault smaller than rounding? Measured on the one faulty module, with nothing but torch.

The module gets what it got in the reference's run, in the candidate's precision. How far the fault moves its output is
compared with how far that precision moves it: over the whole tensor, in the worst row and in the worst channel.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.faultbench.case import DTYPES, Case, cast
from benchmarks.faultbench.families import run
from torch import nn


def is_tiny(case: Case) -> bool:
    """Whether one of the case's faults stays below its module's own rounding by each of the three."""
    reference, inputs = case.build()
    faulty = copy.deepcopy(reference)
    case.plant(faulty)
    return any(_below_rounding(reference, faulty, inputs, path, case.dtype) for path in case.planted)


def _below_rounding(reference: nn.Module, faulty: nn.Module, inputs: Any, path: str, dtype: str) -> bool:
    path = called(reference, path)
    args, kwargs = arguments(reference, inputs, path)
    right, wrong = reference.get_submodule(path), faulty.get_submodule(path)
    # float32 has nothing exact beside it, as some kernels take no float64: inputs moved by one rounding replace it.
    exact = _outputs(right, *(_nudged((args, kwargs)) if dtype == "fp32" else (args, kwargs)))
    rounded, broken = (_in_dtype(module, args, kwargs, dtype) for module in (right, wrong))
    if [leaf.shape for leaf in rounded] != [leaf.shape for leaf in broken]:
        return False
    return all(_leaf_below(*leaves) for leaves in zip(exact, rounded, broken, strict=True))


def _leaf_below(exact: torch.Tensor, rounded: torch.Tensor, broken: torch.Tensor) -> bool:
    # A comparison with NaN is false: what is not finite is not below rounding.
    norms = zip(_norms(broken - rounded), _norms(rounded - exact), strict=True)
    return all(bool(fault.max() <= noise.max()) for fault, noise in norms)


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
    kept = {key: None if key in ("past_key_values", "cache_params") else value for key, value in kwargs.items()}
    return tuple(None if hasattr(value, "get_seq_length") else value for value in args), kept


def _outputs(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    with torch.no_grad():
        output = module(*args, **kwargs)
    leaves = (
        (output,)
        if isinstance(output, torch.Tensor)
        else tuple(output.values() if hasattr(output, "values") else output)
    )
    return [leaf.double() for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def _in_dtype(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: str) -> list[torch.Tensor]:
    twin = cast(copy.deepcopy(nn.ModuleDict({"only": module})), dtype)["only"]
    return _outputs(twin, *_moved((args, kwargs), DTYPES.get(dtype, torch.float32)))


def _moved(value: Any, dtype: torch.dtype) -> Any:
    return _map(value, lambda tensor: tensor.to(dtype))


def _nudged(value: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    eps = torch.finfo(torch.float32).eps
    return _map(value, lambda tensor: tensor * (1 + eps * torch.randn(tensor.shape, generator=generator)))


def _map(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same structure with every floating tensor changed."""
    if isinstance(value, torch.Tensor):
        return change(value) if value.is_floating_point() else value
    if isinstance(value, tuple | list):
        return tuple(_map(item, change) for item in value)
    if isinstance(value, dict):
        return {key: _map(item, change) for key, item in value.items()}
    return value


def _norms(error: torch.Tensor) -> list[torch.Tensor]:
    """Over all, over each row, over each channel."""
    rows = error.flatten(0, -2) if error.dim() > 1 else error[None]
    return [rows.norm()[None], rows.norm(dim=1), rows.norm(dim=0)]
