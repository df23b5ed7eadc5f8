"""Whether weights are another's, quantised: known by the pattern of the values, not by how far off they are.

Quantised values lie on a grid: multiples of a step, floats with a few bits, or a small set of levels, with a scale of
its own for each row, each group or each square of the matrix. So a few neighbours share one scale, whatever the scheme
is, and are looked at by themselves. And they are where rounding puts them: within a few steps of what they were.
"""

from __future__ import annotations

import torch
from torch import nn

GROUP = 16
"""So many neighbours have one scale in every scheme in use."""
LEVELS = {16: (13, 15), 32: (16, 30), 64: (32, 60)}
"""Of so many neighbours, how many values differ at most where there are few levels, and at least where there are all.

Of 16 neighbours on 16 levels, drawn at random, more than 13 differ in one group of seventy; of 32 and 64 none can."""
STEPS = 1.2
"""How many steps the values of a group may have moved, as a root mean square: 0.29 where each went to its nearest."""
APART = 3.5
"""A group that is this many times as far off as the typical one has other values, or another scale."""
MOST = 0.98
"""The share of groups that have to fit."""
PLACED = 0.02
"""By how much what a module makes of an input may depend on where that stands, for it to be a matter of weights."""
BUDGET = 512
"""Groups that are looked at closely; they are spread over the whole matrix."""
HALF = 2.0**-10
"""How far the ratio of two float16 values may be off."""
EIGHT = 2**8 - 2
"""Steps between the lowest and the highest value of eight bits."""


@torch.no_grad()
def quantisation_error(right: torch.Tensor, values: torch.Tensor) -> float | None:
    """How far weights are off by being quantised; None where they are not the others, quantised."""
    if right.shape != values.shape or right.ndim < 2 or not values.is_floating_point():
        return None
    right, values = right.flatten(1).double(), values.flatten(1).double()
    error = float((values - right).norm() / right.norm().clamp_min(1e-300))
    if not 0 < error < 1 or not torch.isfinite(values).all():
        return None
    if _one_apart(right, values):
        return None
    for ours, theirs in ((right, values), (right.T.contiguous(), values.T.contiguous())):  # a scale a row, or a column
        groups = _groups(ours, theirs, GROUP)
        if _steps(*groups) or _floats(*groups) or _within_eight_bits(ours, theirs):
            return error
        if any(_levels(*_groups(ours, theirs, size)) for size in LEVELS):
            return error
    return None


def _one_apart(right: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether one group is further off than the others, by itself and for its size."""
    size = min(GROUP, right.shape[1])
    width = right.shape[1] // size * size
    r, c = (t[:, :width].reshape(-1, size) for t in (right, values))
    off = (c - r).square().mean(1).sqrt()
    share = off / r.abs().amax(1).clamp_min(1e-300)
    typical = off[off > 0].median() if bool((off > 0).any()) else off.max()
    usual = share[share > 0].median() if bool((share > 0).any()) else share.max()
    return bool(((off > APART * typical) & (share > APART * usual)).any())


def _groups(right: torch.Tensor, values: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Neighbours within a row, without groups that are zero on either side."""
    size = min(size, right.shape[1])
    width = right.shape[1] // size * size
    r, c = (t[:, :width].reshape(-1, size) for t in (right, values))
    some = ((r.abs().amax(1) > 0) & (c.abs().amax(1) > 0)).nonzero()[:, 0]
    some = some[:: max(1, -(-len(some) // BUDGET))]  # chosen first: to copy all groups takes a hundred times as long
    return r[some], c[some]


@torch.no_grad()
def moved_on_grid(right: torch.Tensor, values: torch.Tensor) -> float | None:
    """How many steps of their own grid values are off, as a root mean square: 0.29 where each went to its nearest.

    None where no grid of equal steps is seen, in rows or in columns.
    """
    right, values = right.flatten(1).double(), values.flatten(1).double()
    for ours, theirs in ((right, values), (right.T.contiguous(), values.T.contiguous())):
        r, c = _groups(ours, theirs, GROUP)
        step = _step_of(r, c)
        if step is not None and _most(step > 0):
            known = step[:, 0] > 0
            return float(((c - r)[known] / step[known]).square().mean().sqrt())
    return None


def _steps(r: torch.Tensor, c: torch.Tensor) -> bool:
    """Whether each group is made of whole multiples of one step, and went no further than rounding goes."""
    step = _step_of(r, c)
    return step is not None and _most(step > 0) and _most((c - r).square().mean(1, keepdim=True).sqrt() <= STEPS * step)


def _step_of(r: torch.Tensor, c: torch.Tensor) -> torch.Tensor | None:
    """The step that all values of a group are multiples of, 0 where there is none: the largest is one itself."""
    if r.shape[1] < 8 or not len(r):
        return None
    top, lost = c.abs().amax(1, keepdim=True), _lost(c)
    most = 64 if _is_coarse(c) else 256  # of more steps, those are not seen that bfloat16 has lost
    counts = torch.arange(1, most, dtype=c.dtype, device=c.device)[:, None, None]
    multiple = c / (top / counts)
    off, nearest = (multiple - multiple.round()).abs_(), multiple.abs_().mul_(lost).add_(0.02)
    fits = (off <= nearest).all(2, keepdim=True)
    first = fits.to(torch.uint8).argmax(0)
    return torch.where(fits.any(0), top / counts.flatten()[first], 0.0)


def _lost(values: torch.Tensor) -> float:
    """How far two such values may be off for their ratio, by the dtype that they were kept in."""
    if _is_coarse(values):
        return 2.0**-7
    return HALF if bool((values.to(torch.float16).double() == values).all()) else 2.0**-22


def _is_coarse(values: torch.Tensor) -> bool:
    """Whether all values are numbers that bfloat16 has."""
    return bool((values.to(torch.bfloat16).double() == values).all())


def _floats(r: torch.Tensor, c: torch.Tensor) -> bool:
    """Whether each group is a scale times floats with three bits behind the point, or fewer."""
    if r.shape[1] < 8 or not len(r):
        return False
    top = c.abs().amax(1, keepdim=True)
    lost = _lost(c)
    loose = 0.005 + 20 * lost
    faint = c.abs() < (2.0**-13 if lost == HALF else 0.0)  # below float16's normal range bits are lost
    eighths = torch.arange(8, 16, dtype=c.dtype, device=c.device)[:, None, None]
    mantissa = torch.frexp(c / top * eighths).mantissa.abs() * 16
    found = (faint | ((mantissa - mantissa.round()).abs() <= loose)).all(2, keepdim=True).any(0)
    moved = (c - r).norm(dim=1, keepdim=True) <= 0.1 * r.norm(dim=1, keepdim=True)
    return _most(found) and _most(moved)


def _levels(r: torch.Tensor, c: torch.Tensor) -> bool:
    """Whether each group has few values, as a code book gives, where the other has many."""
    if r.shape[1] not in LEVELS or not len(r):
        return False
    most, least = LEVELS[r.shape[1]]
    few, many = _distinct(c) <= most, _distinct(r) >= least
    moved = (c - r).square().mean(1).sqrt() <= 0.12 * torch.maximum(c.abs(), r.abs()).amax(1)
    return _most(few) and _most(many) and _most(moved)


def _within_eight_bits(right: torch.Tensor, values: torch.Tensor) -> bool:
    """Of eight bits kept in bfloat16 the grid is lost: then no value may be further off than half a step and that."""
    if not _is_coarse(values):
        return False
    off = (values - right).abs() - 2.0**-8 * right.abs()
    rows = 2 * right.abs().amax(1, keepdim=True)
    for step in (rows / EIGHT, rows.amax(0, keepdim=True) / EIGHT):
        share = (off.clamp_min(0) / step.clamp_min(1e-300)).flatten()
        # Rounding to a grid fills the half step evenly; anything else of that size has a tail beyond it.
        if bool((share <= 0.6).all()) and float(share.square().mean().sqrt()) > 0.15:
            return True
    return False


def _distinct(groups: torch.Tensor) -> torch.Tensor:
    ordered = groups.sort(1).values
    return (ordered.diff(dim=1) > 1e-6 * groups.abs().amax(1, keepdim=True)).sum(1) + 1


def _most(share: torch.Tensor) -> bool:
    return float(share.double().mean()) >= MOST


@torch.no_grad()
def weights_in_effect(module: nn.Module, like: nn.Linear) -> torch.Tensor | None:
    """The weights that a module multiplies with, whatever they are packed in: what it makes of each input alone."""
    device = next((t.device for t in (*module.parameters(), *module.buffers())), torch.device("cpu"))
    dtype = next((p.dtype for p in (*module.parameters(), *like.parameters()) if p.is_floating_point()), torch.float32)
    try:
        each = torch.eye(like.in_features, device=device, dtype=dtype)
        # Not against a zero: what quantises its input as well has no scale for that.
        found: torch.Tensor = ((module(each) - module(-each)) / 2).T
        other: torch.Tensor = module(each.flip(0)).flip(0).T
    except Exception:  # noqa: BLE001  it may want other arguments than a linear layer: then its weights are not known
        return None
    if found.shape != (like.out_features, like.in_features) or not torch.isfinite(found).all():
        return None
    # What it does by the place of a token is no weight. A bias is the same in all columns.
    rest = other - found
    rest = rest - rest.mean(1, keepdim=True)
    return found if float(rest.norm()) <= PLACED * float(found.norm()) else None
