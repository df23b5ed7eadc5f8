"""The cause: first what the two modules are, which is the cheapest proof, then what the error looks like."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from layertap.capture.sharding import same_part
from layertap.fault.drill import Departure
from layertap.fault.operators import by_operator
from layertap.fault.quantised import quantisation_error
from layertap.fault.reference_trace import ReferenceTrace
from layertap.fault.result import ModuleRow
from layertap.fault.value_layouts import masklike
from layertap.judge.roundoff import ROUNDOFF
from layertap.measure.dense import closed, dense
from layertap.measure.pair.deferred import contrast, on_one_device
from layertap.result import Note, code_of

Explanation = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Absent:
    """Calls that one side makes and the other does not."""

    page: str
    cause: str
    text: str
    lost: bool = True
    """Whether the module does not take part at all; one that is called in parts may do all the same work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clues:
    """What is known of one faulty module."""

    row: ModuleRow
    trace: ReferenceTrace
    right: torch.Tensor | None
    """The value that is right at the place of the worst measurement."""
    found: torch.Tensor | None
    """The candidate's tensor at the place of the worst measurement."""
    departure: Departure | None
    absent: tuple[Absent, ...]
    """What it should have called and did not."""
    weights: Note | None = None
    """What is wrong with its weights, which are quantised."""
    by_its_weights: bool = False
    """Whether what is right is made with the candidate's weights, which are quantised: then they are not to blame."""


def explain(clues: Clues, reference: nn.Module | None, candidate: nn.Module | None) -> Explanation:
    """Names the cause of one module's error, with evidence; the cheapest and surest proofs first."""
    row, trace = clues.row, clues.trace
    seen = Note("cause.seen_at", where=row.where, line=_line(row, trace))
    cause, evidence = _cause(clues, reference, candidate) or ("", ())
    if cause:
        return cause, (*evidence, *_slope(row, evidence), seen)
    error = (
        Note("cause.relative_error", local=row.local)
        if row.local
        else Note(f"cause.sense_{row.sign}")
        if row.sign in _SENSES
        else row.sign
    )
    if any(page.startswith(f"{row.page}." if row.page else "") and page != row.page for page in trace.calls):
        return "structure", (Note("cause.children_right", error=error), seen)
    return "unknown", (error, seen)


_SENSES = ("nonfinite", "slope", "offset")
"""What is wrong where the relative error says nothing."""


def _line(row: ModuleRow, trace: ReferenceTrace) -> str:
    """The token or channel that gave it away, as an index."""
    slot = trace.slots.get(row.place)
    if slot is None or row.sign not in ("row", "column"):
        return ""
    if row.sign == "column":
        return Note("cause.most_in_column", column_index=row.found.column_index)
    values = _numbers(slot.get())
    if values is None:
        return ""
    place = np.unravel_index(row.found.row_index, values.shape[:-1])
    return Note("cause.most_in_row", place=", ".join(str(int(index)) for index in place)) if place else ""


def _slope(row: ModuleRow, told: tuple[str, ...]) -> tuple[str, ...]:
    """Where the error is a multiple of what is right, that says it best."""
    found = row.found
    if not 0.99 * found.error < abs(found.slope) < math.inf or any(code_of(text) == "cause.times" for text in told):
        return ()
    rest = math.sqrt(max(found.error**2 - found.slope**2, 0.0))
    margin = max(rest, row.floor) / math.sqrt(max(found.count, 1))
    return (Note("cause.times_with_margin", subject=_subject(row), value=1 + found.slope, margin=margin),)


def _subject(row: ModuleRow) -> str:
    where = row.where
    while isinstance(where, Note) and where.code in ("where.leaf", "where.call"):
        where = where.values["where"]
    return where


def _cause(clues: Clues, theirs: nn.Module | None, ours: nn.Module | None) -> Explanation | None:
    row, trace = clues.row, clues.trace
    page, call, end, _ = row.place
    for absent in clues.absent:
        if absent.lost:
            return absent.cause, (absent.text,)
    if row.found.absent:
        return _no_gradient(row, theirs, ours)
    if clues.weights:
        return "weights", (Note("cause.weight", name="weight", how=clues.weights),)
    told = None
    if ours is not None and theirs is not None and not clues.by_its_weights:
        told = weights_apart(theirs, ours, row.page, set(trace.calls))
    if row.sign == "grid":
        return told or ("precision", (Note("cause.four_bits"),))
    if told is None and row.found.shape:
        told = config_apart(theirs, ours) if ours is not None and theirs is not None else None
        return told or ("structure", (Note("cause.other_size"),))
    if told is not None or clues.found is None or clues.right is None:
        return told or _called(clues)
    ours_at, theirs_at = _numbers(clues.right), _numbers(clues.found)
    if ours_at is None or theirs_at is None:
        return _called(clues)
    right, found = on_one_device(ours_at, theirs_at)
    if right.shape == found.shape and right.is_floating_point() and found.is_floating_point():
        told = _closed_otherwise(right, found)
        if told is not None:
            return told
        both = closed(right) & closed(found)
        right, found = right.masked_fill(both, 0.0), found.masked_fill(both, 0.0)
    given = trace.at(page, call, "entry").values() if end == "exit" else ()
    numbers = [values.to(found.device) for value in given if (values := _numbers(value)) is not None]
    told = _certain(right, found, numbers)
    if told is None and ours is not None and theirs is not None:
        told = config_apart(theirs, ours)
    if not found.is_floating_point():
        return told or _whole(right, found)
    departure = clues.departure
    if told is None and departure is not None:
        told = by_operator(departure, sure=True)
    told = told or _cache(row, trace) or _form(right, found, _around(row, trace, found.device), row)
    if told is None and departure is not None:
        told = by_operator(departure, sure=False)
    return told or _faint(right, found, row.floor) or _called(clues)


def _called(clues: Clues) -> Explanation | None:
    """What it calls more or less often than the reference does, where nothing else is known."""
    return next(((absent.cause, (absent.text,)) for absent in clues.absent), None)


def _numbers(tensor: torch.Tensor) -> torch.Tensor | None:
    """In real numbers, one after the other."""
    values = dense(tensor.detach())
    return torch.view_as_real(values) if values is not None and values.is_complex() else values


def _closed_otherwise(right: torch.Tensor, found: torch.Tensor) -> Explanation | None:
    """A mask that is added to scores and closes other places."""
    apart = int((closed(right) != closed(found)).sum())
    usual = torch.isfinite(right).all() and torch.isfinite(found).all()
    if not apart or not (usual or masklike(right)):
        return None
    return "mask", (Note("cause.mask_places", apart=apart, numel=right.numel()),)


def _no_gradient(row: ModuleRow, theirs: nn.Module | None, ours: nn.Module | None) -> Explanation:
    """A gradient that one side lacks."""
    name, end = row.place[3], row.place[2]
    if end != "param_grad":
        return "structure", (Note("cause.no_gradient"),)
    right, own = (module._parameters.get(name) if module is not None else None for module in (theirs, ours))
    if right is not None and own is not None and right.requires_grad != own.requires_grad:
        return "config", (
            Note("cause.requires_grad", name=name, requires_grad=own.requires_grad, requires_grad2=right.requires_grad),
        )
    return "structure", (Note("cause.one_gradient", name=name),)


def _cache(row: ModuleRow, trace: ReferenceTrace) -> Explanation | None:
    """Right when it was called first, wrong when it is called with what was kept from then."""
    forced = any(
        key[:3] == (row.page, row.call, "after") for key in trace.slots
    )  # an object with tensors among its arguments
    if not row.call or not forced:
        return None
    return "cache", (Note("cause.reads_cache", call=row.call),)


def _around(row: ModuleRow, trace: ReferenceTrace, device: torch.device) -> dict[str, torch.Tensor]:
    """What a module had at hand: its input, and what its children returned."""
    found: dict[str, torch.Tensor] = {}
    for (page, call, end, leaf), slot in trace.slots.items():
        if end == "entry" and (page, call) == (row.page, row.call):
            found[Note("cause.its_input", leaf=leaf).strip()] = slot.get(device)
        elif end == "exit" and call == 0 and page and page.rpartition(".")[0] == row.page:
            found[Note("cause.output_of", page=page, leaf=leaf).strip()] = slot.get(device)
    return {name: values for name, value in found.items() if (values := _numbers(value)) is not None}


def _tensors(module: nn.Module, path: str, called: set[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Its own parameters and buffers, and those of children that are never called: it uses them directly."""
    for name, child in module.named_modules():
        if not name or (f"{path}.{name}" if path else name) not in called:
            for own, tensor in (*child.named_parameters(recurse=False), *child.named_buffers(recurse=False)):
                yield (f"{name}.{own}" if name else own), tensor


def weights_apart(reference: nn.Module, candidate: nn.Module, path: str, called: set[str]) -> Explanation | None:
    """Which of a module's own tensors differs, and how; None where none does, or a file keeps them to itself."""
    right = dict(_tensors(reference, path, called))
    for name, tensor in _tensors(candidate, path, called):
        if tensor.is_meta:
            continue
        wanted = right.get(name)
        if wanted is None:
            return "weights", (Note("cause.candidate_only", name=name),)
        if wanted.shape != tensor.shape:
            return "weights", (
                Note("cause.weight_shape", name=name, shape=tuple(tensor.shape), shape2=tuple(wanted.shape)),
            )
        here = same_part(wanted, tensor)
        values, quantised = (None, False) if here is None else plain_values(here[1])
        if here is None or values is None:
            continue
        wanted, values = on_one_device(here[0].detach(), values)
        found = contrast(wanted.to(values.dtype), values)
        if found is None or found.exact or (quantised and found.error < QUANTISED):
            continue
        grid = quantisation_error(wanted, values)
        if grid is not None and grid > 2 * ROUNDOFF["bfloat16"]:
            return "quantization", (Note("cause.on_grid", name=name, grid=grid),)
        how = _how(wanted, values, found.error)
        return "weights", (Note("cause.weight", name=name, how=how),)
    return None


QUANTISED = 0.02
"""The relative error that an honest 8-bit weight has at most."""


def plain_values(tensor: torch.Tensor) -> tuple[torch.Tensor | None, bool]:
    """The values, and whether they were quantised."""
    if type(tensor) in (torch.Tensor, nn.Parameter):
        return tensor.detach(), False
    return (tensor.dequantize() if hasattr(tensor, "dequantize") else None), True


def _how(wanted: torch.Tensor, found: torch.Tensor, error: float) -> str:
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
    if weights_apart(reference, candidate, path, _under(candidate, path)) or config_apart(reference, candidate):
        return None  # it differs itself
    ours = dict(reference.named_modules())
    for name, child in candidate.named_modules():
        page = f"{path}.{name}" if path else name
        if not name or name not in ours or any(f"{path}.{part}".lstrip(".") in called for part in _ways(name)):
            continue
        told = weights_apart(ours[name], child, page, _under(child, page))
        if told is None and next(child.parameters(recurse=False), None) is not None:
            told = config_apart(ours[name], child)
        if told is not None:
            return page, told
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
    right = dict(_settings(reference))
    for name, value in _settings(candidate):
        if name in right and right[name] != value:
            return "config", (Note("cause.setting", name=name, value=value, right=right[name]),)
    return None


def _settings(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if name.startswith("_"):
            continue
        if value is None or isinstance(value, (bool, int, float, str)):
            yield name, value
        elif isinstance(value, (tuple, list)) and all(isinstance(v, (bool, int, float, str)) for v in value):
            yield name, tuple(value)


def _certain(right: torch.Tensor, found: torch.Tensor, given: list[torch.Tensor]) -> Explanation | None:
    """Forms that leave no doubt."""
    if right.shape != found.shape:
        return "structure", (Note("cause.shape", shape=tuple(found.shape), shape2=tuple(right.shape)),)
    if not found.is_floating_point():
        return None
    broken = ~torch.isfinite(found) & torch.isfinite(right)
    if broken.any():
        return "nonfinite", (Note("cause.not_finite_where", sum=int(broken.sum())),)
    if any(value.shape == found.shape and _near(value.double(), found.double()) for value in given):
        return "skipped", (Note("cause.returns_input"),)
    if not found.any():
        return "skipped", (Note("cause.returns_zeros"),)
    return None


def _form(
    right: torch.Tensor, found: torch.Tensor, around: dict[str, torch.Tensor], row: ModuleRow
) -> Explanation | None:
    """The cause by the form of the error; the surest forms first. The floor is the noise that the form stands in."""
    floor = row.floor
    r, c = (torch.nan_to_num(t.double(), 0.0, 0.0, 0.0) for t in (right, found))
    d = c - r
    size, error = d.norm().item(), (d.norm() / r.norm()).item()
    noise = math.hypot(0.05 * size, 2 * floor * r.norm().item())
    for name, value in around.items():
        if value.shape == d.shape and value.is_floating_point():
            for sign, cause, code in ((1, "skipped", "cause.missing"), (-1, "structure", "cause.added_twice")):
                if (d + sign * value.double()).norm().item() < noise < 0.5 * size:
                    return cause, (Note(code, name=name),)
    slope = ((r * c).sum() / r.square().sum().clamp_min(1e-300)).item()
    if (c - slope * r).norm().item() < noise and abs(slope - 1) > 4 * floor / math.sqrt(r.numel()):
        return ("sign" if slope < 0 else "scale"), (Note("cause.times", subject=_subject(row), slope=slope),)
    mean = d.mean().item()
    if (d - mean).norm().item() < noise < 0.7 * size:
        return "offset", (Note("cause.added", mean=mean),)
    if d.ndim > 1 and (d - d.reshape(-1, d.shape[-1]).mean(0)).norm().item() < noise < 0.7 * size:
        return "offset", (Note("cause.added_vector"),)
    if d.ndim == 4 and (d - d.mean((0, 2, 3), keepdim=True)).norm().item() < noise < 0.7 * size:
        return "offset", (Note("cause.added_channel"),)
    return _shift(r, c) or _clipping(r, c, d) or _few(d, r) or _order(r, c, error)


def _faint(right: torch.Tensor, found: torch.Tensor, floor: float) -> Explanation | None:
    """Forms that other causes have as well."""
    r, c = (torch.nan_to_num(t.double(), 0.0, 0.0, 0.0) for t in (right, found))
    slope = ((r * c).sum() / r.square().sum().clamp_min(1e-300)).item()
    return _untouched(c - r, r, floor) or _coarse(r, c, ((c - r).norm() / r.norm()).item(), slope)


def _whole(right: torch.Tensor, found: torch.Tensor) -> Explanation | None:
    """Whole numbers: positions, ids, masks."""
    if found.dtype == torch.bool:
        return "mask", (Note("cause.places_differ", sum=int((found != right).sum()), numel=found.numel()),)
    apart = (found.long() - right.long()).flatten()
    if not apart.any():
        return None
    if bool((apart == apart[0]).all()):
        return "shift", (Note("cause.numbers_off", apart=int(apart[0])),)
    off = apart[apart != 0]
    if len(off) and bool((off == off[0]).all()):
        return "shift", (Note("cause.some_numbers_off", count=len(off), count2=len(apart), off=int(off[0])),)
    if torch.equal(found.flatten().sort().values, right.flatten().sort().values.to(found)):
        return "permutation", (Note("cause.numbers_order"),)
    return _shift(right.double(), found.double())


def _clipping(r: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> Explanation | None:
    limit = c.abs().max().item()
    at = c.abs() >= limit * (1 - 1e-3)
    before = (r.abs() >= limit * (1 - 1e-3)).double().mean()
    if at.sum() > 3 and at.double().mean() > 2 * before / 3 and d[~at].norm() < 0.05 * d.norm():
        return "clipping", (Note("cause.clipped", limit=limit),)
    return None


def _order(r: torch.Tensor, c: torch.Tensor, error: float) -> Explanation | None:
    if error < 0.1:
        return None
    if r.ndim >= 2 and r.shape[-1] == r.shape[-2] and _near(r.transpose(-1, -2), c):
        return "transpose", (Note("cause.axes_swapped"),)
    if _near(r.flatten().sort().values, c.flatten().sort().values):
        return "permutation", (Note("cause.other_order"),)
    return None


def _coarse(r: torch.Tensor, c: torch.Tensor, error: float, slope: float) -> Explanation | None:
    unique = torch.unique(c).numel()
    if unique <= 256 < c.numel() and torch.unique(r).numel() > 4 * unique:
        return "quantization", (Note("cause.unique_values", unique=unique),)
    if error < 0.02 and abs(slope - 1) < error / 4:
        return "precision", (Note("cause.incoherent", error=error),)
    return None


def _shift(r: torch.Tensor, c: torch.Tensor) -> Explanation | None:
    for axis in range(max(r.ndim - 1, 0)):
        size = r.shape[axis]
        told = _partly_shifted(r, c, axis)
        if told is not None:
            return told
        for by in (1, -1):
            moved, there = r.narrow(axis, max(-by, 0), size - 1), c.narrow(axis, max(by, 0), size - 1)
            unmoved = r.narrow(axis, max(by, 0), size - 1)
            # What changes little along an axis is near its neighbour without being shifted.
            if size > 3 and _near(moved, there) and (there - moved).norm() <= 0.1 * (there - unmoved).norm():
                return "shift", (Note("cause.axis_shifted", axis=axis, by=by),)
    return None


def _partly_shifted(r: torch.Tensor, c: torch.Tensor, axis: int) -> Explanation | None:
    """From some place on, or up to it, each slice is its neighbour's: positions that jump."""
    size = r.shape[axis]
    if size < 4:
        return None
    right, found = (t.movedim(axis, 0).reshape(size, -1) for t in (r, c))
    length = right.norm(dim=1)
    wrong = (found - right).norm(dim=1) > NEAR * length
    for by in (1, -1):
        there = wrong.clone()
        there[0 if by > 0 else -1] = False  # its neighbour is not there
        moved = right.roll(by, 0)
        taken = (found - moved).norm(dim=1) <= NEAR * moved.norm(dim=1)
        if int(there.sum()) >= 2 and bool(taken[there].all()) and not bool(wrong.all()):
            return "shift", (Note("cause.partly_shifted", count=int(wrong.sum()), total=size, axis=axis, by=by),)
    return None


NEAR = 0.01
"""Two values are the same one if they differ by less than this, relatively."""


def _few(d: torch.Tensor, r: torch.Tensor) -> Explanation | None:
    """A few rows or channels that carry all of the error."""
    if d.ndim < 2:
        return None
    flat, sizes = (value.reshape(-1, d.shape[-1]).square() for value in (d, r))
    for code, axis in (("cause.few_rows", 1), ("cause.few_channels", 0)):
        line, size = flat.sum(axis), sizes.sum(axis)
        order = line.sort(descending=True)
        few = max(1, len(line) // 4)
        wrong, whole = order.values[:few].sum() / line.sum(), size[order.indices[:few]].sum() / size.sum()
        # Where the reference has its energy in the same few, the error is no larger there than elsewhere.
        if len(line) >= 4 and wrong > 0.98 and wrong * (1 - whole) > 49 * whole * (1 - wrong):
            count = int((line > 0.01 * order.values[0]).sum())
            return "mask", (Note(code, count=count, total=len(line), first=int(order.indices[0])),)
    return None


def _untouched(d: torch.Tensor, r: torch.Tensor, floor: float) -> Explanation | None:
    """Rows that are right among rows that are wrong.

    The first of a sequence says nothing: what sees only itself is right whatever attention does with the others.
    """
    if r.ndim < 2:
        return None
    sizes = r.reshape(-1, r.shape[-1]).square().sum(1).clamp_min(1e-300)
    relative = (d.reshape(-1, d.shape[-1]).square().sum(1) / sizes).sqrt()
    clean = relative <= 2 * floor
    first = torch.arange(len(clean), device=clean.device) % max(r.shape[-2], 1) == 0
    if (clean & ~first).any() and (relative > 20 * floor).any():
        return "mask", (Note("cause.rows_right", sum=int(clean.sum()), count=len(clean)),)
    return None


def _near(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).norm() <= 1e-2 * a.norm()) and bool(a.any())
