"""The cause: first what the two modules are, which is the cheapest proof, then what the error looks like."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from layertap.fault.contrast import contrast
from layertap.fault.replay import Call, Place
from layertap.fault.result import ModuleRow

Explanation = tuple[str, tuple[str, ...]]


def explain(
    row: ModuleRow,
    reference: nn.Module,
    candidate: nn.Module,
    book: dict[Place, Call],
    kept: dict[tuple[str, int, str, str], torch.Tensor],
) -> Explanation:
    """Names the cause of one module's error, with evidence."""
    ours, theirs = _module(candidate, row.path), _module(reference, row.path)
    if ours is not None and theirs is not None:
        for look in (_weights, _config):
            found = look(theirs, ours)
            if found is not None:
                return found
    path, call, end, leaf = row.place
    was = book[path, call]
    right = (was.returned if end == "exit" else was.entered)[leaf]
    given = list(was.entered.values()) if end == "exit" else []
    cause, evidence = _form(right, kept[row.place], given)
    return cause, (*evidence, f"seen at {row.where}")


def _module(model: nn.Module, path: str) -> nn.Module | None:
    try:
        return model.get_submodule(path)
    except AttributeError:
        return None


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(recurse=False)
    yield from module.named_buffers(recurse=False)


def _weights(reference: nn.Module, candidate: nn.Module) -> Explanation | None:
    right = dict(_own_tensors(reference))
    for name, tensor in _own_tensors(candidate):
        wanted = right.get(name)
        if wanted is None:
            return "weights", (f"{name} is in the candidate alone",)
        if wanted.shape != tensor.shape:
            return "weights", (f"{name} has shape {tuple(tensor.shape)}, expected {tuple(wanted.shape)}",)
        plain, quantised = _plain(tensor)
        if plain is None:
            continue
        found = contrast(wanted.detach().to(plain.dtype), plain)
        if found is None or found.exact or (quantised and found.error < QUANTISED):
            continue
        return ("quantization" if quantised else "weights"), (f"{name}: {_how(wanted, plain, found.error)}",)
    return None


QUANTISED = 0.02
"""The relative error that an honest 8-bit weight has at most."""


def _plain(tensor: torch.Tensor) -> tuple[torch.Tensor | None, bool]:
    """The values, and whether they were quantised."""
    if type(tensor) in (torch.Tensor, nn.Parameter):
        return tensor.detach(), False
    return (tensor.dequantize() if hasattr(tensor, "dequantize") else None), True


def _how(wanted: torch.Tensor, found: torch.Tensor, error: float) -> str:
    r, c = wanted.detach().double(), found.detach().double()
    slope = ((r * c).sum() / r.square().sum().clamp_min(1e-300)).item()
    if not torch.isfinite(c).all():
        return f"{int((~torch.isfinite(c)).sum())} values are not finite"
    if (c - slope * r).norm() <= 1e-3 * c.norm() and c.any():
        return f"scaled by {slope:.4g}"
    if r.ndim == 2 and r.shape[0] == r.shape[1] and torch.allclose(r.t(), c, rtol=1e-2, atol=1e-6):
        return "transposed"
    wrong = (c - r).abs() > 3e-2 * r.abs().clamp_min(r.abs().mean())
    if r.ndim == 2:
        rows = wrong.any(1).nonzero().flatten().tolist()
        if rows and len(rows) <= len(r) // 2:
            what = "are zero" if not c[rows].any() else "differ"
            return f"{len(rows)} of {len(r)} rows {what} (first: {rows[0]})"
    if torch.allclose(r.flatten().sort().values, c.flatten().sort().values, rtol=1e-2, atol=1e-6):
        return "the same values in another order"
    return f"relative error {error:.3g}"


def _config(reference: nn.Module, candidate: nn.Module) -> Explanation | None:
    if type(reference) is not type(candidate) and not list(reference.parameters()):
        return "config", (f"is a {type(candidate).__name__}, expected a {type(reference).__name__}",)
    right = dict(_settings(reference))
    for name, value in _settings(candidate):
        if name in right and right[name] != value:
            return "config", (f"{name} is {value!r}, expected {right[name]!r}",)
    return None


def _settings(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if name == "training" or name.startswith("_"):
            continue
        if value is None or isinstance(value, (bool, int, float, str)):
            yield name, value
        elif isinstance(value, (tuple, list)) and all(isinstance(v, (bool, int, float, str)) for v in value):
            yield name, tuple(value)


def _form(right: torch.Tensor, found: torch.Tensor, given: list[torch.Tensor]) -> Explanation:
    """The cause by the form of the error; the surest forms first."""
    if not found.is_floating_point():
        return "unknown", ("integers differ",)
    broken = ~torch.isfinite(found) & torch.isfinite(right)
    if broken.any():
        return "nonfinite", (f"{int(broken.sum())} values are not finite, where the reference's are",)
    r, c = (torch.nan_to_num(t.double(), 0.0, 0.0, 0.0) for t in (right, found))
    for value in given:
        if value.shape == found.shape and _near(value.double(), c):
            return "skipped", ("returns its input unchanged",)
    if not c.any():
        return "skipped", ("returns zeros",)
    slope = ((r * c).sum() / r.square().sum().clamp_min(1e-300)).item()
    rest = (c - slope * r).norm().item()
    d = c - r
    if rest < 0.05 * d.norm().item():
        if slope < 0:
            return "sign", (f"its output is {slope:.4g} × what it should be",)
        return "scale", (f"its output is {slope:.4g} × what it should be",)
    mean = d.mean().item()
    if (d - mean).norm().item() < 0.05 * d.norm().item():
        return "offset", (f"{mean:+.4g} is added to every value",)
    shifted = _shift(r, c)
    if shifted:
        return shifted
    limit = c.abs().max().item()
    at_limit = c.abs() >= limit * (1 - 1e-3)
    if at_limit.double().mean() > 2 * (r.abs() >= limit * (1 - 1e-3)).double().mean() / 3 and bool(at_limit.sum() > 3):
        others = d[~at_limit].norm().item()
        if others < 0.05 * d.norm().item():
            return "clipping", (f"values are cut off at {limit:.4g}",)
    region = _region(r, d)
    if region:
        return region
    if r.ndim >= 2 and r.shape[-1] == r.shape[-2] and _near(r.transpose(-1, -2), c):
        return "transpose", ("its last two axes are swapped",)
    if _near(r.flatten().sort().values, c.flatten().sort().values):
        return "permutation", ("the same values in another order",)
    unique = torch.unique(c).numel()
    if unique <= 256 < c.numel():
        return "quantization", (f"only {unique} different values",)
    error = (d.norm() / r.norm()).item()
    if error < 0.02 and abs(slope - 1) < error / 4:
        return "precision", (f"incoherent error of {error:.2g}, as lower precision makes",)
    return "unknown", (f"relative error {error:.3g}, slope {slope:.4g}",)


def _shift(r: torch.Tensor, c: torch.Tensor) -> Explanation | None:
    for axis in range(max(r.ndim - 1, 0)):
        size = r.shape[axis]
        for by in (1, -1):
            if size > 3 and _near(r.narrow(axis, max(-by, 0), size - 1), c.narrow(axis, max(by, 0), size - 1)):
                return "shift", (f"axis {axis} is shifted by {by}",)
    return None


def _region(r: torch.Tensor, d: torch.Tensor) -> Explanation | None:
    """A few rows or channels that carry all of the error."""
    if r.ndim < 2:
        return None
    flat = d.reshape(-1, d.shape[-1]).square()
    for name, line in (("rows", flat.sum(1)), ("channels", flat.sum(0))):
        order = line.sort(descending=True)
        few = max(1, len(line) // 4)
        if len(line) >= 4 and order.values[:few].sum() > 0.98 * line.sum():
            count = int((line > 0.01 * order.values[0]).sum())
            return "mask", (f"{count} of {len(line)} {name} carry the error (first: {int(order.indices[0])})",)
    return None


def _near(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).norm() <= 1e-2 * a.norm()) and bool(a.any())
