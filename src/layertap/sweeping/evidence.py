"""What a mode really computes in, by what can be seen of it: its parameters, the kernels that ran, and its values."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from layertap.measure import measure
from layertap.sweeping.grids import ENOUGH, bits_between, grid_of
from layertap.sweeping.opening import Opened

KERNELS = (
    *("mm", "addmm", "bmm", "baddbmm", "_int_mm", "_scaled_mm", "linear", "matmul", "convolution", "conv1d", "conv2d"),
    *("_scaled_dot_product_attention", "_scaled_dot_product_flash_attention", "_weight_int8pack_mm"),
    *("_scaled_dot_product_flash_attention_for_cpu", "_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu", "einsum"),
)
"""Operators that multiply and add: the dtypes of what they are given are the precision of the mode."""
ROUNDING = ("round", "fake_quantize_per_tensor_affine", "fake_quantize_per_channel_affine", "quantize_per_tensor")
WIDEST = 1 << 16
"""Whole numbers that reach further are no grid that anything is rounded to."""
NARROW = ("int8", "uint8", "float8_e4m3fn", "float8_e5m2", "int4", "uint4", "int2")


def evidence_of(opened: Opened) -> dict[str, Any]:
    """Looks at the parameters, and at one more pass, operator by operator."""
    parameters, grids = _parameters(opened.plain)
    seen = _Kernels()
    try:
        _watched(opened, seen)
    except Exception as error:  # noqa: BLE001  what refuses to be watched has run already without; it is said
        seen.refused = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return {
        "parameters": parameters,
        "weights": grids,
        "kernels": dict(seen.kernels),
        "casts": dict(seen.casts),
        "rounding": dict(seen.rounding),
        "outputs": seen.grids,
        "refused": seen.refused,
    }


def _parameters(model: nn.Module) -> tuple[dict[str, dict[str, int]], dict[str, Any]]:
    """Storage dtype → how many tensors and values; and of float weights those that lie on a grid."""
    counts: dict[str, dict[str, int]] = {}
    grids: dict[str, Any] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        dtype = storage_dtype(tensor)
        entry = counts.setdefault(dtype, {"tensors": 0, "values": 0})
        entry["tensors"] += 1
        entry["values"] += tensor.numel()
        if (
            dtype.startswith(("float", "bfloat"))
            and dtype not in NARROW
            and tensor.ndim >= 2
            and type(tensor) in _PLAIN
        ):
            found = grid_of(tensor.detach())
            if found is not None:
                grids[name] = found
    return counts, grids


_PLAIN = (torch.Tensor, nn.Parameter)


def storage_dtype(tensor: torch.Tensor) -> str:
    """The dtype of the values themselves: of a quantised tensor that calls itself float32, what it holds."""
    inner = getattr(tensor, "__tensor_flatten__", None)
    if inner is not None and type(tensor) not in _PLAIN:
        parts = [getattr(tensor, name) for name in inner()[0]]
        largest = max(parts, key=lambda part: part.numel() if isinstance(part, torch.Tensor) else 0, default=tensor)
        target = getattr(tensor, "target_dtype", None)
        dtype = target if isinstance(target, torch.dtype) else largest.dtype
        return str(dtype).removeprefix("torch.")
    return str(tensor.dtype).removeprefix("torch.")


class _Kernels(TorchDispatchMode):
    """Counts operators by the dtypes that they are given."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels: Counter[str] = Counter()
        self.casts: Counter[str] = Counter()
        self.rounding: Counter[str] = Counter()
        self.grids: dict[str, Any] = {}
        self.refused = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in KERNELS:
            given = [storage_dtype(one) for one in args if isinstance(one, torch.Tensor) and one.ndim > 1]
            self.kernels[f"{name}({', '.join(given)})"] += 1
        elif name in ROUNDING:
            self.rounding[_rounded(name, output)] += 1
        elif (
            name in ("_to_copy", "to")
            and isinstance(output, torch.Tensor)
            and args
            and isinstance(args[0], torch.Tensor)
        ):
            before, after = (str(one.dtype).removeprefix("torch.") for one in (args[0], output))
            if after in NARROW or before in NARROW:
                self.casts[f"{before} → {after}"] += 1
        return output


def _rounded(name: str, output: Any) -> str:
    """The operator, and on how many bits its whole numbers are: rounding to a grid is done that way."""
    if not isinstance(output, torch.Tensor) or output.numel() < ENOUGH or not output.is_floating_point():
        return name
    finite = output.detach()[output.detach().isfinite()]
    if finite.numel() < ENOUGH:
        return name
    low, high = (int(one) for one in finite.aminmax())
    return f"{name}, {bits_between(low, high)} bits" if 1 < high - low < WIDEST else name


def _watched(opened: Opened, seen: _Kernels) -> None:
    """One more pass, the values of every module's output looked at, its operators counted."""
    handles = []

    def hook(path: str) -> Any:
        def look(module: nn.Module, args: Any, output: Any) -> None:
            value = output[0] if isinstance(output, tuple) and output else output
            if isinstance(value, torch.Tensor) and value.is_floating_point() and path not in seen.grids:
                found = grid_of(value.detach())
                if found is not None:
                    seen.grids[path] = found

        return look

    modules = dict(opened.plain.named_modules())
    try:
        for path, module in modules.items():
            if not isinstance(module, torch.jit.ScriptModule):
                handles.append(module.register_forward_hook(hook(path)))
        inputs = opened.inputs
        with torch.no_grad(), seen:
            _ = opened.plain(**inputs) if isinstance(inputs, dict) else opened.plain(*inputs)
    finally:
        for handle in handles:
            handle.remove()


def fingerprints(model: nn.Module) -> dict[str, str]:
    """Every plain parameter by its bits; of quantised tensors, which are another's anyway, none."""
    return {
        name: f"{measure(tensor.detach().cpu()).fingerprint:016x}"
        for name, tensor in model.named_parameters()
        if type(tensor) in _PLAIN and not tensor.is_meta
    }
