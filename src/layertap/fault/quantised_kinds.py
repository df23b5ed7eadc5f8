"""What modules of a kind do alike: a quantised model is coarser everywhere, and that is no fault of one of them."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from layertap.capture.sharding import same_part
from layertap.fault.exchange import is_rounded
from layertap.fault.module_differences import QUANTISED, plain_values
from layertap.fault.pairing import Pairing
from layertap.fault.quantised import moved_on_grid, quantisation_error, weights_in_effect
from layertap.fault.result import ModuleRow
from layertap.judge.calibration import FINER
from layertap.judge.roundoff import ROUNDOFF
from layertap.measure.dense import equal_pairs
from layertap.measure.pair.deferred import compare_tensors, on_one_device
from layertap.result import Note

MANY = 4
"""Modules of one kind that it takes to speak of a system."""


def systematic(
    rows: list[ModuleRow], coarse: Mapping[str, Coarse], beside: Mapping[str, ModuleRow] | None
) -> tuple[list[ModuleRow], tuple[str, ...]]:
    """Where many modules are quantised, that is how this model computes.

    Where the reference could be given the same weights, the floors have that error in them, and `beside` says, as a row
    of its own, how far each module is from what those weights make of right values: then only what stands out from its
    kind is faulty, since activations may be quantised as well. Where it could not, the median of those of a kind is
    their floor, or the error of their own weights where that is more.

    What is above its floor alike for any other reason (a setting, code, other weights) is a fault of each of them, and
    so is one quantised module among many that are not. Returns the kinds as well.
    """
    kinds = _by_kind(rows)
    in_eight_bits = {kind for kind, alike in kinds.items() if _compute_in_eight_bits(alike)}
    rows = [
        replace(row, ratio=row.ratio / FINER) if row.sign == "grid" and row.kind in in_eight_bits else row
        for row in rows
    ]
    kinds = _by_kind(rows)
    times: dict[str, float] = {}
    stands: dict[str, ModuleRow] = {}
    shared = []
    for kind, alike in kinds.items():
        quantised = [row for row in alike if row.reference_path in coarse]
        if not quantised:
            continue
        shared.append(kind)
        if beside is not None:
            seen = [beside[row.reference_path] for row in quantised if row.reference_path in beside]
            if len(seen) >= MANY:
                typical = max(statistics.median(row.ratio for row in seen), 1.0)
                stands |= {row.reference_path: replace(row, ratio=row.ratio / typical) for row in seen}
        finite = [row.ratio for row in quantised if math.isfinite(row.ratio)]
        median = statistics.median(finite) if finite and len(alike) >= MANY else 1.0
        own = 0.0 if beside is not None else math.inf  # the floors have the weights' error in them, or not
        times |= {
            row.reference_path: max(median, min(coarse[row.reference_path].error / row.floor, own)) for row in quantised
        }
    adjusted = [
        replace(row, ratio=row.ratio / by, floor=row.floor * by)
        if (by := times.get(row.reference_path, 1.0)) > 1
        else row
        for row in rows
    ]
    worst = [max(row, stands.get(row.reference_path, row), key=lambda one: one.ratio) for row in adjusted]
    return worst, tuple(shared)


def _by_kind(rows: list[ModuleRow]) -> defaultdict[str, list[ModuleRow]]:
    kinds: defaultdict[str, list[ModuleRow]] = defaultdict(list)
    for row in rows:
        kinds[row.kind].append(row)
    return kinds


def _compute_in_eight_bits(fellows: list[ModuleRow]) -> bool:
    """Whether most of a kind give eight-bit floats: then that is how this model computes."""
    alike = sum(one.sign == "grid" for one in fellows)
    return alike >= MANY and 2 * alike > len(fellows)


@dataclass(frozen=True, slots=True)
class Coarse:
    """The weights of one module, quantised."""

    error: float
    """How far they are off by that."""
    values: dict[str, torch.Tensor]
    """In plain numbers, by the reference's names."""
    slope: float = 0.0
    """By how much the largest of them is scaled besides."""
    slope_noise: float = 0.0
    """What chance gives for that."""
    moved: float = math.nan
    """How many steps of its grid its values are off, as a root mean square."""


def quantised_modules(pairing: Pairing) -> dict[str, Coarse]:
    """The modules that are the reference's, quantised, by path: where many are, that is how this model computes."""
    found: dict[str, Coarse] = {}
    kinds: Counter[str] = Counter()
    both: dict[str, tuple[nn.Module, nn.Module]] = {}
    for path, candidate in pairing.candidate.items():
        reference = pairing.reference.get(path)
        own = reference.parameters(recurse=False) if reference is not None and path else ()
        if reference is not None and any(parameter.ndim > 1 for parameter in own):
            kinds[type(candidate).__name__] += 1
            both[path] = reference, candidate
    apart = _with_other_weights(both)
    for path, (reference, candidate) in both.items():
        coarse = quantised(reference, candidate) if path in apart else None
        if coarse is not None:
            found[path] = coarse
    if len(found) < MANY:
        found = {path: one for path, one in found.items() if kinds[type(pairing.candidate[path]).__name__] < MANY}
    return found


def _with_other_weights(both: Mapping[str, tuple[nn.Module, nn.Module]]) -> set[str]:
    """The modules that do not have equal plain weights: of most models there are few."""
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    paths: list[str] = []
    apart = set()
    for path, (reference, candidate) in both.items():
        own = candidate._parameters
        for name, right in reference._parameters.items():
            here = own.get(name)
            if right is None:
                continue
            if here is None or not (_is_plain(right) and _is_plain(here)):
                apart.add(path)
            else:
                pairs.append((right.detach(), here.detach()))
                paths.append(path)
    return apart | {path for path, equal in zip(paths, equal_pairs(pairs), strict=True) if not equal}


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) is nn.Parameter and tensor.layout == torch.strided and not tensor.is_meta


def quantised(reference: nn.Module, candidate: nn.Module) -> Coarse | None:
    """A module's weights, if they are the reference's, quantised; None where they are not that."""
    right = dict(reference.named_parameters(recurse=False))
    own = dict(candidate.named_parameters(recurse=False))
    largest = max(right, key=lambda name: right[name].numel(), default=None)
    if largest is None or right[largest].ndim < 2:  # norms are not quantised
        return None
    plain: dict[str, torch.Tensor] = {}
    worst = 0.0
    for name, whole in right.items():
        here = same_part(whole, own[name]) if name in own else None  # of a sharded one, what this rank holds
        wanted, (values, typed) = (whole, (None, True)) if here is None else (here[0], plain_values(here[1]))
        if values is not None and not typed and is_rounded(wanted, values):
            continue
        if values is None and name == largest and name not in own and isinstance(reference, nn.Linear):
            values = weights_in_effect(candidate, reference)
        if values is None:
            if name == largest:
                return None
            continue
        wanted, values = on_one_device(wanted.detach(), values)
        found = compare_tensors(wanted, values)
        if found is None:
            return None
        if wanted.ndim < 2 and found.error <= 2 * ROUNDOFF["bfloat16"]:
            continue  # a bias that makes up for some of it
        error = quantisation_error(wanted, values)
        if error is None and typed and found.error < QUANTISED:
            error = found.error  # of a type that says so itself
        if error is None:
            return None
        worst = max(worst, error)
        if wanted.shape == whole.shape:
            plain[name] = values
    if not worst:
        return None
    values = plain.get(largest)
    if values is None:
        return Coarse(worst, plain)
    r, c = (t.double() for t in on_one_device(right[largest].detach(), values))
    square = float(r.square().sum().clamp_min(1e-300))
    slope, chance = float((r * (c - r)).sum()) / square, float((c - r).norm()) / math.sqrt(square * r.numel())
    moved = moved_on_grid(r, c)
    return Coarse(worst, plain, slope, chance, math.nan if moved is None else moved)


def stand_out(coarse: Mapping[str, Coarse]) -> dict[str, Note]:
    """By path, modules whose weights are further off than their own grid explains, or scaled, among many that are not.

    Each is forced against the rest, as some ways to quantise do not take the nearest value; the note gives the reason.
    """
    found: dict[str, Note] = {}
    slopes = {path: (one.slope, one.slope_noise) for path, one in coarse.items()}
    moves = {path: (one.moved, GRID_NOISE * one.moved) for path, one in coarse.items() if not math.isnan(one.moved)}
    for path in _outliers(moves):
        usual = statistics.median(value for value, _ in moves.values())
        if coarse[path].moved > usual:
            found[path] = Note("cause.steps_off", moved=coarse[path].moved, usual=usual)
    for path in _outliers(slopes):
        found[path] = Note("cause.scaled_quantised", slope=1 + coarse[path].slope)
    return found


def _outliers(values: Mapping[str, tuple[float, float]]) -> list[str]:
    """Those far from the typical value, for what chance does to each and for how the others spread."""
    if len(values) < MANY:
        return []
    typical = statistics.median(value for value, _ in values.values())
    spread = SPREAD * statistics.median(abs(value - typical) for value, _ in values.values())
    return [path for path, (value, noise) in values.items() if abs(value - typical) > FAR * math.hypot(noise, spread)]


GRID_NOISE = 0.015
"""How far the root mean square of some thousand roundings is off by chance, relatively."""
SPREAD = 1.5
"""Standard deviations in a median absolute deviation."""
FAR = 6.0
"""Standard deviations that no chance makes."""
