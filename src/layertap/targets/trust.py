"""Are the captures of an artefact real? Asked once for each set of taps, reported in the receipt.

Drift: taps can change what a compiler fuses, so the tapped artefact's own output is compared with the untapped one's.
Freshness: on a second input every capture must change, or it is a constant of the file, or a relic of its making.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import torch

from layertap.capture.leaves import leaves, map_tensors
from layertap.judge.calibration import PER_LAYER
from layertap.result import Note

if TYPE_CHECKING:
    from layertap.targets.reader import Ran, Reader

NAMED = 4
NOT_VARIED = "trust.not_varied"
CHECKED = "trust.checked"
_FIXED = re.compile(r"mask|position|seq_id|sampling|cache")
"""Inputs that say how to read the others; varied, they would make another question, not another text."""


def check(
    reader: Reader, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: frozenset[str], ran: Ran
) -> list[str]:
    """What is known of the captures of one run, in words."""
    lines: list[str] = []
    if reader.can_do_without:
        plain = reader.run(args, kwargs, frozenset())
        lines.append(drift(plain.output, ran.output, layers=len(wanted), computes=ran.computes))
    if not reader.probes_itself:
        lines += freshness(reader, args, kwargs, wanted, ran)
    return [*lines, *reader.cross_check(args, kwargs, wanted)]


def drift(plain: Any, tapped: Any, layers: int, computes: AbstractSet[str] = frozenset()) -> str:
    """The output with taps against the output without, judged by what rounding in the precision used explains.

    >>> drift(torch.ones(3), torch.ones(3), layers=1)
    'observer drift: none; the output with taps is bit-identical to the one without'
    """
    worst, where = largest_difference(plain, tapped)
    if worst == 0:
        return Note("trust.no_drift")
    floor = floor_of(plain, layers, computes)
    ratio = worst / floor if floor else math.inf
    values = {"error": f"{worst:.2g}", "ratio": f"{ratio:.2g}", "where": where}
    if ratio <= 1:
        return Note(
            "trust.drift_rounding",
            **values,
        )
    return Note(
        "trust.drift",
        **values,
    )


def freshness(
    reader: Reader, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: frozenset[str], ran: Ran
) -> list[str]:
    """Whether each capture follows the input: the artefact is run once more, on another input of the same shapes."""
    second = second_input(args, kwargs)
    if second is None:
        return [Note(NOT_VARIED)]
    try:
        again = reader.run(*second, wanted)
    except Exception as error:  # noqa: BLE001
        return [refused(error)]
    return moved(ran, again, reader.contents.constant)


def second_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Another input, to see what follows it; None where nothing can be varied."""
    varied = {name: value if _FIXED.search(name) else another(value) for name, value in kwargs.items()}
    second = another(args), varied
    return None if _same(second, (args, dict(kwargs))) else second


def refused(error: Exception) -> str:
    """What is said when a second input made the artefact fail."""
    text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return Note("trust.refused", error=text)


def moved(ran: Ran, again: Ran, constant: AbstractSet[str]) -> list[str]:
    """Which captures changed from one input to another, in words."""
    stale = [
        path
        for (path, one), (_, two) in zip(ran.calls, again.calls, strict=False)
        if all(leaf in two and _same(one[leaf], two[leaf]) for leaf in one)
    ]
    stale = list(dict.fromkeys(stale))
    folded = [path for path in stale if path in constant]
    unmoved = [path for path in stale if path not in constant]
    tested = len({path for path, _ in ran.calls})
    lines: list[str] = [Note("trust.moved", moved=tested - len(stale), tested=tested)]
    if folded:
        lines.append(Note("trust.constant", sites=named(folded)))
    if unmoved:
        lines.append(Note("trust.unmoved", sites=named(unmoved)))
    return lines


def another(value: Any) -> Any:
    """Another input of the same shapes: values in reverse order, floats also scaled; masks and flags as they are.

    >>> another((torch.tensor([[3, 7, 9]]), torch.tensor([1, 0])))
    (tensor([[9, 7, 3]]), tensor([1, 0]))
    """
    return map_tensors(value, _varied)


def floor_of(output: Any, layers: int, computes: AbstractSet[str] = frozenset()) -> float:
    """What rounding explains in an output: from its coarsest dtype, or one computed in, and the number of layers."""
    eps = [torch.finfo(leaf.tensor.dtype).eps for leaf in _floats(output)]
    eps += [_eps(getattr(torch, dtype)) for dtype in computes]
    return PER_LAYER * max(eps, default=0.0) / 2 * math.sqrt(1 + layers)


def _eps(dtype: torch.dtype) -> float:
    """Twice the most that one rounding moves a value, relatively; integers are scaled to the largest of a tensor."""
    return torch.finfo(dtype).eps if dtype.is_floating_point else 2.0**-7


def largest_difference(one: Any, two: Any) -> tuple[float, str]:
    """The largest relative L2 error over the leaves of two values of one structure, and ` at LEAF`."""
    worst, where = 0.0, ""
    others = {leaf.path: leaf.tensor for leaf in leaves(two)}
    for leaf in leaves(one):
        other = others.get(leaf.path)
        if leaf.tensor is None and other is None:
            continue
        if leaf.tensor is None or other is None or leaf.tensor.shape != other.shape:
            return math.inf, Note("targets.at_leaf", leaf=leaf.path)
        if leaf.tensor.numel() and not torch.equal(leaf.tensor, other):
            error = _relative(leaf.tensor.detach(), other.detach())
            if error > worst:
                worst, where = error, Note("targets.at_leaf", leaf=leaf.path) if leaf.path else ""
    return worst, where


def _relative(one: torch.Tensor, two: torch.Tensor) -> float:
    one, two = one.to(torch.complex128 if one.is_complex() else torch.float64), two.to(one.device)
    error = float((two - one).norm() / one.norm())
    return math.inf if math.isnan(error) else error


def _varied(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.numel() < 2 or tensor.dtype == torch.bool:
        return tensor
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor.flip(-1) * 0.75 if tensor.ndim else tensor
    if not tensor.is_floating_point() and bool(((tensor == 0) | (tensor == 1)).all()):
        return tensor
    backwards = tensor.flip(-1)
    # Reversed ids are ids; a run of equal ones is moved instead, by one that is surely in the vocabulary.
    return backwards if not torch.equal(backwards, tensor) else (tensor - 1).clamp_min(0)


def _floats(value: Any) -> list[Any]:
    return [leaf for leaf in leaves(value) if leaf.tensor is not None and leaf.tensor.is_floating_point()]


def _same(one: Any, two: Any) -> bool:
    pairs = list(zip(leaves(one), leaves(two), strict=True))
    return all(
        (a.tensor is None and b.tensor is None)
        or (a.tensor is not None and b.tensor is not None and _equal(a.tensor, b.tensor))
        for a, b in pairs
    )


def _equal(one: torch.Tensor, two: torch.Tensor) -> bool:
    if one.shape != two.shape:
        return False
    return torch.equal(one, two) or bool(torch.allclose(one, two, rtol=0, atol=0, equal_nan=True))


def named(paths: list[str]) -> str:
    """The first few, and how many more."""
    more = Note("targets.and_more", count=len(paths) - NAMED) if len(paths) > NAMED else ""
    return ", ".join(paths[:NAMED]) + more
