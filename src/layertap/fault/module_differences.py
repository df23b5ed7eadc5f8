"""How two modules differ in themselves: parameters, buffers, settings, class. The cheapest and surest causes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from layertap.capture.sharding import same_part
from layertap.fault.quantised import quantisation_error, weights_in_effect
from layertap.judge.roundoff import ROUNDOFF
from layertap.measure.pair.deferred import compare_tensors, on_one_device
from layertap.result import Note, code_of

Explanation = tuple[str, tuple[str, ...]]
"""A cause from the closed list, and evidence."""


def own_tensors(module: nn.Module, path: str, called: set[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Its own parameters and buffers, and those of children that are never called: it uses them directly."""
    for name, child in module.named_modules():
        if not name or (f"{path}.{name}" if path else name) not in called:
            for own, tensor in (*child.named_parameters(recurse=False), *child.named_buffers(recurse=False)):
                yield (f"{name}.{own}" if name else own), tensor


def weights_apart(reference: nn.Module, candidate: nn.Module, path: str, called: set[str]) -> Explanation | None:
    """Which of a module's own tensors differs, and how; None where none does, or a file keeps them to itself."""
    explain = next(_weights_apart(reference, candidate, path, called), None)
    return None if explain is None else explain()


def weights_differ(reference: nn.Module, candidate: nn.Module, path: str, called: set[str]) -> bool:
    """Whether one of them differs, however it does."""
    return next(_weights_apart(reference, candidate, path, called), None) is not None


def _weights_apart(
    reference: nn.Module, candidate: nn.Module, path: str, called: set[str]
) -> Iterator[Callable[[], Explanation]]:
    """The module's own tensors that differ, each with what finds out how, which takes longer than to see that."""
    right = dict(own_tensors(reference, path, called))
    known, explanation = _effects_apart(reference, candidate)
    if explanation is not None:
        yield lambda: explanation
    for name, tensor in own_tensors(candidate, path, called):
        if tensor.is_meta:
            continue
        wanted = right.get(name)
        if known and (wanted is None or tensor.ndim > 1):
            continue  # packed, or laid out otherwise: what it multiplies with is the same
        if wanted is None:
            yield partial(_said, Note("cause.candidate_only", name=name))
            continue
        if wanted.shape != tensor.shape:
            shape = Note("cause.weight_shape", name=name, shape=tuple(tensor.shape), shape2=tuple(wanted.shape))
            yield partial(_said, shape)
            continue
        here = same_part(wanted, tensor)
        values, quantised = (None, False) if here is None else plain_values(here[1])
        if here is None or values is None:
            continue
        wanted, values = on_one_device(here[0].detach(), values)
        found = compare_tensors(wanted.to(values.dtype), values)
        if found is None or found.equal or (quantised and found.error < QUANTISED):
            continue
        yield partial(_explained, name, wanted, values, found.error)


def _said(evidence: str) -> Explanation:
    return "weights", (evidence,)


def _explained(name: str, wanted: torch.Tensor, values: torch.Tensor, error: float) -> Explanation:
    grid = quantisation_error(wanted, values)
    if grid is not None and grid > 2 * ROUNDOFF["bfloat16"]:
        return "quantization", (Note("cause.on_grid", name=name, grid=grid),)
    return "weights", (Note("cause.weight", name=name, how=how_apart(wanted, values, error)),)


def _effects_apart(reference: nn.Module, candidate: nn.Module) -> tuple[bool, Explanation | None]:
    """Of two classes of linear modules, whether it is known what both multiply with, and how that differs."""
    linear = next((one for one in (reference, candidate) if isinstance(one, nn.Linear)), None)
    if linear is None or type(reference) is type(candidate):
        return False, None
    wanted, values = weights_in_effect(reference, linear), weights_in_effect(candidate, linear)
    if wanted is None or values is None:
        return False, None
    wanted, values = on_one_device(wanted.detach(), values.detach())
    found = compare_tensors(wanted.to(values.dtype), values)
    if found is None or found.error <= ROUNDOFF["bfloat16"] or quantisation_error(wanted, values) is not None:
        return True, None
    how = how_apart(wanted, values, found.error)
    named = [getattr(one, "weight", None) for one in (reference, candidate)]
    if all(isinstance(one, torch.Tensor) for one in named) and code_of(how) != "cause.transposed":
        return False, None  # they are compared as they are: if they are equal, the code is not
    return True, ("weights", (Note("cause.weight", name="weight", how=how),))


QUANTISED = 0.02
"""The relative error that an honest 8-bit weight has at most."""


def plain_values(tensor: torch.Tensor) -> tuple[torch.Tensor | None, bool]:
    """The values, and whether they were quantised."""
    if type(tensor) in (torch.Tensor, nn.Parameter):
        return tensor.detach(), False
    return (tensor.dequantize() if hasattr(tensor, "dequantize") else None), True


def how_apart(wanted: torch.Tensor, found: torch.Tensor, error: float) -> str:
    r, c = wanted.double(), found.double()
    slope = ((r * c).sum() / r.square().sum().clamp_min(1e-300)).item()
    if not torch.isfinite(r).all() and torch.isfinite(c).all():
        return Note("cause.finite_where", sum=int((~torch.isfinite(r)).sum()))
    if not torch.isfinite(c).all():
        return Note("cause.not_finite", sum=int((~torch.isfinite(c)).sum()))
    if (c - slope * r).norm() <= 0.02 * c.norm() and abs(slope - 1) > 0.02 and c.any():
        return Note("cause.scaled", slope=slope)
    apart = error > 0.02
    if apart and r.ndim == 2 and r.shape[0] == r.shape[1] and torch.allclose(r.t(), c, rtol=1e-2, atol=1e-6):
        return Note("cause.transposed")
    wrong = (c - r).abs() > 3e-2 * r.abs().clamp_min(r.abs().mean())
    if r.ndim == 2:
        rows = wrong.any(1).nonzero().flatten().tolist()
        zero = [row for row in rows if not c[row].any()]
        if zero or (rows and len(rows) <= len(r) // 2):
            code = "cause.rows_zero" if zero else "cause.rows_differ"
            rows = zero or rows
            return Note(code, count=len(rows), total=len(r), first=rows[0])
    if apart and torch.allclose(r.flatten().sort().values, c.flatten().sort().values, rtol=1e-2, atol=1e-6):
        return Note("cause.other_order")
    if not r.any():
        return Note("cause.not_zero", sum=int((c != 0).sum()))
    return Note("cause.relative_error_of", error=error)


def below(
    reference: nn.Module, candidate: nn.Module, path: str, called: Collection[str]
) -> tuple[str, Explanation] | None:
    """A module that differs and is not in `called`: never called, so that the one at `path` reads its parameters, as
    fused kernels do, or not judged."""
    if config_apart(reference, candidate) or weights_differ(reference, candidate, path, _under(candidate, path)):
        return None  # it differs itself
    ours = dict(reference.named_modules())
    for name, child in candidate.named_modules():
        reference_path = f"{path}.{name}" if path else name
        if not name or name not in ours or any(f"{path}.{part}".lstrip(".") in called for part in _ways(name)):
            continue
        explanation = weights_apart(ours[name], child, reference_path, _under(child, reference_path))
        if explanation is None and next(child.parameters(recurse=False), None) is not None:
            explanation = config_apart(ours[name], child)
        if explanation is not None:
            return reference_path, explanation
    return None


def _under(module: nn.Module, path: str) -> set[str]:
    return {f"{path}.{name}" if path else name for name, _ in module.named_modules() if name}


def _ways(name: str) -> Iterator[str]:
    """`a.b.c` by way of `a`, `a.b` and `a.b.c`."""
    parts = name.split(".")
    return (".".join(parts[: length + 1]) for length in range(len(parts)))


def config_apart(reference: nn.Module, candidate: nn.Module) -> Explanation | None:
    """Which setting of a module differs, or its class where it has no parameters to tell."""
    if type(reference).__name__ != type(candidate).__name__ and not list(reference.parameters()):
        return "config", (Note("cause.class", name=type(candidate).__name__, name2=type(reference).__name__),)
    right = dict(settings_of(reference))
    for name, value in settings_of(candidate):
        if name in right and right[name] != value and name != "training":
            return "config", (Note("cause.setting", name=name, value=value, right=right[name]),)
    return None


def mode_apart(reference: nn.Module, candidate: nn.Module) -> Explanation | None:
    """Whether one of two modules of a class trains and the other does not: most do the same in either mode."""
    if type(reference) is not type(candidate) or reference.training == candidate.training:
        return None
    how = Note("cause.setting", name="training", value=candidate.training, right=reference.training)
    return "config", (how,)


def settings_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if name.startswith("_"):
            continue
        if value is None or isinstance(value, (bool, int, float, str)):
            yield name, value
        elif isinstance(value, (tuple, list)) and all(isinstance(v, (bool, int, float, str)) for v in value):
            yield name, tuple(value)
