"""Are the taps of a compiled model real? Its compiled form is run on two inputs, beside the model it was made from.

A compiler can fold a tap into a constant, a tracer can leave a tensor of its own making in the graph, and taps can
change what is fused. Each shows when another input is tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import torch

from layertap.capture import Tapped
from layertap.capture.leaves import leaves
from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.site import Site, Statistics
from layertap.targets.target import Inputs
from layertap.targets.trust import floor_of, largest_difference

SUMS = 4.0
"""How much more than the rounding of a value is allowed to a statistic: a sum of many."""

Run = Callable[[Inputs], Any]
"""The compiled form: inputs → what it returns, torch's tensors or numpy's arrays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """What two inputs have shown of the taps of a compiled model. Print it."""

    fresh: tuple[Site, ...]
    """They follow the input."""
    constant: tuple[Site, ...]
    """They do not, and neither does the model: no input reaches them, so a compiler may fold them."""
    stale: tuple[Site, ...]
    """They do not, where the model does: these values are not of this input."""
    unsteady: tuple[Site, ...]
    """The same input gave other values; nothing can be said of these."""
    structure: bool
    """Whether the model's own output came back in its own form."""
    error: float
    """The largest relative error of a tap against the model itself, on the second input."""
    worst: Site | None
    """Where that is."""
    floor: float
    """What rounding explains."""
    drift: float | None
    """How far the output moves with the taps, relatively; None where there was nothing to hold it against."""

    @property
    def right(self) -> bool:
        """Whether the taps are of this input, and right up to rounding."""
        return not self.stale and not self.unsteady and self.structure and self.error <= self.floor

    def __str__(self) -> str:
        count = len(self.fresh) + len(self.constant) + len(self.stale) + len(self.unsteady)
        lines = [tr("trust.moved", moved=len(self.fresh), tested=count)]
        for name in ("constant", "stale", "unsteady"):
            found = getattr(self, name)
            if found:
                lines.append(
                    tr(
                        "trust.kind",
                        name=name,
                        paths=", ".join(map(str, found[:4])),
                        more=" …" if len(found) > 4 else "",
                    )
                )
        if not self.structure:
            lines.append(tr("trust.structure"))
        where = tr("targets.at_leaf", leaf=self.worst) if self.worst is not None and self.error else ""
        lines.append(tr("trust.values", error=self.error, where=where, error2=self.error / self.floor))
        if self.drift is not None:
            lines.append(tr("trust.observer_drift", drift=self.drift, drift2=self.drift / self.floor))
        return "\n".join(lines)


def check_baked(
    tapped: Tapped,
    run: Run,
    first: Inputs,
    second: Inputs,
    *,
    untapped: Run | None = None,
    computes: AbstractSet[str] = frozenset(),
) -> Trust:
    """Runs a compiled form of a tapped model on both inputs; `untapped` is the same without taps, for the drift.

    `computes` are dtypes coarser than the tensors', in which the runtime states that it computes: `{"bfloat16"}`.

    >>> from torch import nn
    >>> import layertap as lt
    >>> tapped = lt.bake(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), sites="*")
    >>> program = torch.export.export(tapped, (torch.ones(1, 2),)).module()
    >>> print(check_baked(tapped, lambda inputs: program(*inputs), (torch.ones(1, 2),), (torch.randn(1, 2),)))
    freshness: on a second input 2 of 2 captures change
    values: relative error 0, 0 × the modelled floor
    """
    one, again, two = (tapped.split(_tensors(run(inputs))) for inputs in (first, first, second))
    with torch.no_grad():
        right_one, right_two = (tapped.split(_call(tapped, inputs)) for inputs in (first, second))
    if set(right_two[1]) - set(two[1]):
        lost = ", ".join(map(str, sorted(set(map(str, right_two[1])) - set(map(str, two[1])))[:4]))
        raise BadArgument(tr("targets.not_from_this_bake", lost=lost))
    found: dict[str, list[Site]] = {"fresh": [], "constant": [], "stale": [], "unsteady": []}
    for site, value in two[1].items():
        if not _same(one[1][site], again[1][site]):
            found["unsteady"].append(site)
        elif not _same(one[1][site], value):
            found["fresh"].append(site)
        else:
            moves = site in right_two[1] and not _same(right_one[1][site], right_two[1][site])
            found["stale" if moves else "constant"].append(site)
    errors = {site: _error(value, two[1][site]) for site, value in right_two[1].items()}
    worst = max(errors, key=lambda site: errors[site])
    drift = None if untapped is None else largest_difference(two[0], _like(two[0], untapped(second)))[0]
    return Trust(
        **{name: tuple(sites) for name, sites in found.items()},
        structure=_form(right_two[0]) == _form(two[0]),
        error=errors[worst],
        worst=worst,
        floor=floor_of(right_two[0], len(errors), computes) or math.ulp(1.0),
        drift=drift,
    )


def _call(model: Any, inputs: Inputs) -> Any:
    return model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)


def _tensors(raw: Any) -> list[torch.Tensor]:
    flat = list(raw.values()) if isinstance(raw, Mapping) else raw if isinstance(raw, (tuple, list)) else [raw]
    return [value if isinstance(value, torch.Tensor) else torch.as_tensor(value) for value in flat]


def _like(output: Any, untapped: Any) -> Any:
    """The untapped output as a flat one of the same names, if it came flat."""
    names = [leaf.path for leaf in leaves(output) if leaf.tensor is not None]
    values = [leaf.tensor for leaf in leaves(_tensors(untapped))]
    return values[0] if names == [""] else dict(zip(names, values, strict=True))


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, Statistics):
        return repr(one) == repr(two)
    return one.shape == two.shape and torch.allclose(one, two, rtol=0, atol=0, equal_nan=True)


def _error(right: Any, value: Any) -> float:
    if isinstance(right, Statistics):
        scale = max(right.l2 / math.sqrt(max(right.finite, 1)), math.ulp(0.0))
        if any(getattr(right, name) != getattr(value, name) for name in ("count", "nan", "pos_inf", "neg_inf")):
            return math.inf
        # A compiler may add up in any order, and float32 shows it.
        off: float = max(abs(right.mean - value.mean), abs(right.std - value.std)) / scale
        return off / SUMS
    if right.shape != value.shape:
        return math.inf
    if not right.is_floating_point():
        return 0.0 if torch.equal(right, value.to(right.dtype)) else math.inf
    same = (right == value) | (right.isnan() & value.isnan())
    if bool(same.all()):
        return 0.0
    error = float((value.double() - right.double())[~same].norm() / right.double().nan_to_num(0, 0, 0).norm())
    return error if math.isfinite(error) else math.inf


def _form(value: Any) -> tuple[str, list[tuple[str, bool]]]:
    return type(value).__name__, [(leaf.path, leaf.tensor is None) for leaf in leaves(value)]
