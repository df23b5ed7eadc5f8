"""The rules in use elsewhere, from their published definitions: (reference, candidate, inputs) → the site they name.

All see the same: the first tensor of every module's input and output, at its first call, by plain forward hooks, in the
order in which modules finish. None forces anything, so each sees total errors only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.faultbench.families import Inputs, run
from torch import nn

Rule = Callable[[nn.Module, nn.Module, Inputs], "str | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One module's first call."""

    input: torch.Tensor | None
    output: torch.Tensor


def allclose(reference: nn.Module, candidate: nn.Module, inputs: Inputs) -> str | None:
    """The first module that fails `torch.allclose(rtol=1e-3, atol=1e-3)`."""
    return _first(reference, candidate, inputs, lambda a, b: torch.allclose(b.output, a.output, 1e-3, 1e-3))


def largest(reference: nn.Module, candidate: nn.Module, inputs: Inputs) -> str | None:
    """The module with the largest relative L2 error, if that is above 1e-3."""
    errors = {path: _relative(a.output, b.output) for path, a, b in _pairs(reference, candidate, inputs)}
    worst = max(errors, key=lambda path: _ordered(errors[path]), default=None)
    return worst if worst is not None and not errors[worst] <= 1e-3 else None


def sglang(reference: nn.Module, candidate: nn.Module, inputs: Inputs) -> str | None:
    """The first module with 1 - 2·Σxy ÷ (Σx² + Σy²) above 1e-3, as in SGLang's dump comparator."""

    def fine(a: Seen, b: Seen) -> bool:
        if a.output.shape != b.output.shape:
            return False
        energy = (a.output**2).sum() + (b.output**2).sum()
        return bool(energy == 0) or bool(1 - 2 * (a.output * b.output).sum() / energy <= 1e-3)

    return _first(reference, candidate, inputs, fine)


def msprobe(reference: nn.Module, candidate: nn.Module, inputs: Inputs) -> str | None:
    """The first module that msprobe's comparison of tensors highlights, in red or yellow.

    That is: a NaN or Inf; or, from its input to its output, the share of values within a thousandth falls from above
    0.9 to below 0.6 or by more than 0.1, the cosine falls by more than 0.1, or the largest absolute error, counted from
    1, grows by a factor of ten.
    """

    def fine(a: Seen, b: Seen) -> bool:
        if not b.output.isfinite().all():
            return False
        if a.input is None or b.input is None or a.input.shape != b.input.shape:
            return True
        before, after = _within(a.input, b.input), _within(a.output, b.output)
        turned = _cosine(a.input, b.input) - _cosine(a.output, b.output)
        grown = _order(a.output, b.output) - _order(a.input, b.input)
        return not (before > 0.9 and after < 0.6) and before - after <= 0.1 and turned <= 0.1 and grown < 1

    return _first(reference, candidate, inputs, fine)


def msprobe_red(reference: nn.Module, candidate: nn.Module, inputs: Inputs) -> str | None:
    """The first that it highlights in red: not finite, or within a thousandth above 0.9 before and below 0.6 after."""

    def fine(a: Seen, b: Seen) -> bool:
        if not b.output.isfinite().all():
            return False
        if a.input is None or b.input is None or a.input.shape != b.input.shape:
            return True
        return not (_within(a.input, b.input) > 0.9 and _within(a.output, b.output) < 0.6)

    return _first(reference, candidate, inputs, fine)


def _within(right: torch.Tensor, value: torch.Tensor) -> float:
    return float(((value - right).abs() <= 1e-3 * right.abs()).double().mean())


def _cosine(right: torch.Tensor, value: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(right.flatten(), value.flatten(), dim=0))


def _order(right: torch.Tensor, value: torch.Tensor) -> float:
    return math.log10(max(1.0, float((value - right).abs().max())))


def ttrace(reference: nn.Module, candidate: nn.Module, inputs: Inputs) -> str | None:
    """The first module above 4 × what a perturbation of the embedding by the candidate's machine epsilon does there.

    In its favour: a module that the embedding does not reach (a rotary embedding) may be off by 4 epsilon.
    """
    eps = torch.finfo(next(p.dtype for p in candidate.parameters() if p.is_floating_point())).eps
    base = watch(reference, inputs)
    moved = watch(reference, inputs, nudge=eps)
    limits = {path: 4 * max(eps, _relative(base[path].output, moved[path].output)) for path in base if path in moved}
    return next(
        (
            path
            for path, a, b in _pairs(reference, candidate, inputs)
            if not _relative(a.output, b.output) <= limits.get(path, 0.0)
        ),
        None,
    )


RULES: dict[str, Rule] = {
    "allclose(1e-3), first": allclose,
    "largest total error": largest,
    "SGLang rel ≤ 1e-3": sglang,
    "msprobe, red or yellow": msprobe,
    "msprobe, red": msprobe_red,
    "TTrace threshold": ttrace,
}


def watch(model: nn.Module, inputs: Inputs, nudge: float = 0.0) -> dict[str, Seen]:
    """Path → first call, in order of completion; with `nudge`, what the first module returns is moved by that much."""
    seen: dict[str, Seen] = {}
    first = _embedding(model) if nudge else None

    def hook(path: str) -> Callable[..., Any]:
        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            if path == first and isinstance(output, torch.Tensor):
                noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(0))
                output = (output * (1 + nudge * noise)).to(output.dtype)
            value = _tensor(output)
            if value is not None and path not in seen:
                given = _tensor((*args, *kwargs.values()))
                seen[path] = Seen(input=None if given is None else given.double(), output=value.double())
            return output if path == first else None

        return after

    handles = [
        module.register_forward_hook(hook(path), with_kwargs=True) for path, module in model.named_modules() if path
    ]
    try:
        run(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _embedding(model: nn.Module) -> str | None:
    kinds = (nn.Embedding, nn.Conv2d, nn.Linear)
    return next((path for kind in kinds for path, m in model.named_modules() if isinstance(m, kind)), None)


def _pairs(reference: nn.Module, candidate: nn.Module, inputs: Inputs) -> list[tuple[str, Seen, Seen]]:
    a, b = watch(reference, inputs), watch(candidate, inputs)
    return [(path, a[path], b[path]) for path in a if path in b]


def _first(
    reference: nn.Module, candidate: nn.Module, inputs: Inputs, fine: Callable[[Seen, Seen], bool]
) -> str | None:
    return next((path for path, a, b in _pairs(reference, candidate, inputs) if not _fine(fine, a, b)), None)


def _fine(fine: Callable[[Seen, Seen], bool], a: Seen, b: Seen) -> bool:
    return a.output.shape == b.output.shape and fine(a, b)


def _relative(right: torch.Tensor, value: torch.Tensor) -> float:
    if right.shape != value.shape:
        return float("inf")
    error, size = (value - right).norm(), right.norm()
    return float(error / size) if size > 0 or error.isnan() else (0.0 if error == 0 else float("inf"))


def _ordered(error: float) -> float:
    return float("inf") if error != error else error


def _tensor(value: Any) -> torch.Tensor | None:
    """The first floating tensor in it."""
    if isinstance(value, torch.Tensor):
        return value if value.is_floating_point() else None
    items = value.values() if hasattr(value, "values") and callable(value.values) else value
    if isinstance(value, tuple | list) or items is not value:
        return next((found for item in items if (found := _tensor(item)) is not None), None)
    return None
