"""How the values of several ranks were put together, seen from what each of them holds and what is right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from layertap.fault.places import Place
from layertap.fault.world import World, chunk
from layertap.result import Note

NEAR = 0.01
"""Two values are the same one if they differ by less than this, relatively; of errors by less than five times that."""
STIRRED = 1.5
"""What inputs are multiplied by in the run before the one that is judged: what is left of it shows."""

Told = tuple[str, tuple[str, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """One value on all ranks."""

    world: World
    places: Mapping[int, Place | None]
    found: Mapping[int, torch.Tensor]
    before: Mapping[int, torch.Tensor]
    """What each rank held in the run before, whose inputs were others."""
    right: Mapping[int, torch.Tensor]
    """The whole that is right; ranks that were given other data have others."""
    own: Mapping[int, torch.Tensor]
    """Of a gradient, the one of the rank's own data."""
    summands: Mapping[int, torch.Tensor]
    """What each rank adds to it, if all is well."""
    returned: bool
    """Whether a module returns it: then it depends on what the module was given."""
    added: Mapping[str, torch.Tensor]
    """Vectors that the module may add."""

    def part(self, rank: int) -> torch.Tensor:
        """What a rank is to hold."""
        place, right = self.places[rank], self.right[rank]
        return right if place is None or len(place.spans) != right.ndim else place.cut(right)


def explain_combination(one: Combined, off: tuple[int, ...]) -> Told | None:
    """A reduction that is missing, done twice or stale, a part of another rank, parts in another order."""
    if any(one.found[rank].shape != one.part(rank).shape for rank in one.found):
        return None
    return next(_told(one, off), None)


def _told(one: Combined, off: tuple[int, ...]) -> Iterator[Told]:
    wrong = tuple(rank for rank in one.found if not near(one.part(rank), one.found[rank]))
    yield from _own_gradients(one)
    for version in (one, *_before_adding(one)):
        yield from _not_reduced(version)
        yield from _reduced_twice(version)
    yield from _bias_summed(one)
    if one.returned:
        yield from _stale(one, wrong)
    yield from _one_summand(one)
    yield from _other_part(one, off or wrong)
    yield from _other_order(one)


def _before_adding(one: Combined) -> Iterator[Combined]:
    """The same before a bias was added, which every rank does for itself."""
    for vector in one.added.values():
        bias = vector.double()
        if vector.any() and all(bias.shape == value.shape[-1:] for value in (*one.right.values(), *one.found.values())):
            found, right = ({r: v.double() - bias for r, v in values.items()} for values in (one.found, one.right))
            yield replace(one, found=found, right=right)


def _own_gradients(one: Combined) -> Iterator[Told]:
    ranks = tuple(one.found)
    if len(one.own) == len(ranks) and all(near(one.own[rank], one.found[rank]) for rank in ranks):
        yield "reduce", (Note("cause.own_gradient"),), ()


def _not_reduced(one: Combined) -> Iterator[Told]:
    ranks = tuple(one.found)
    for dim in one.world.dims:
        fibers = {rank: one.world.fiber(dim, rank) for rank in ranks}
        if any(len(fiber) < 2 for fiber in fibers.values()):
            continue
        sums = {rank: _sum(one, fiber) for rank, fiber in fibers.items()}
        if all(total is not None and near(one.part(rank), total) for rank, total in sums.items()):
            yield "reduce", (Note("cause.not_reduced", ranks=_some(fibers.values())),), ()


def _reduced_twice(one: Combined) -> Iterator[Told]:
    for count in _counts(one):
        if all(near(count * one.part(rank).double(), one.found[rank]) for rank in one.found):
            yield "reduce", (Note("cause.reduced_twice", count=count),), ()


def _bias_summed(one: Combined) -> Iterator[Told]:
    for count in _counts(one):
        for name, vector in one.added.items():
            more = {rank: (count - 1) * vector.double() for rank in one.found}
            if vector.any() and all(
                vector.shape[-1:] == one.part(rank).shape[-1:] and _is_error(one, rank, more[rank])
                for rank in one.found
            ):
                yield "reduce", (Note("cause.bias_summed", name=name, count=count),), ()


def _stale(one: Combined, wrong: tuple[int, ...]) -> Iterator[Told]:
    same = [rank for rank in wrong if rank in one.before and torch.equal(one.before[rank], one.found[rank])]
    if wrong and len(same) == len(wrong) and any(one.found[rank].any() for rank in same):
        yield "reduce", (Note("cause.stale"),), wrong


def _one_summand(one: Combined) -> Iterator[Told]:
    """What one rank adds is missing from the sum, there twice, or that of an earlier run."""
    for other, summand in one.summands.items():
        for share, code in ((-1.0, "lost"), (1.0, "twice"), (STIRRED - 1, "stale")):
            reach = [rank for rank in one.found if summand.shape == one.found[rank].shape]
            hit = [rank for rank in reach if _is_error(one, rank, share * summand.double())]
            right = [rank for rank in one.found if near(one.part(rank), one.found[rank])]
            if hit and len(hit) + len(right) == len(one.found):
                yield "reduce", (Note(f"cause.summand_{code}", rank=other),), (other,)


def _other_part(one: Combined, wrong: tuple[int, ...]) -> Iterator[Told]:
    """A rank that holds what belongs to another."""
    notes, ranks = [], []
    for rank in wrong:
        for other, place in one.places.items():
            mine = one.places[rank]
            if place is None or mine is None or place.spans == mine.spans or len(place.spans) != one.right[rank].ndim:
                continue
            held = place.cut(one.right[rank])
            if held.shape == one.found[rank].shape and held.any() and near(held, one.found[rank]):
                notes.append(Note("cause.value_of_rank", rank=rank, other=other))
                ranks.append(rank)
                break
    if notes and len(ranks) == len(wrong):
        yield "shard", tuple(notes[:4]), tuple(ranks)


def _other_order(one: Combined) -> Iterator[Told]:
    """The parts of all ranks, gathered in another order."""
    rank = next(iter(one.found))
    right, found = one.part(rank), one.found[rank]
    for count in _counts(one):
        for axis in range(right.ndim):
            if right.shape[axis] % count:
                continue
            spans = [chunk(range(right.shape[axis]), count, number) for number in range(count)]
            pieces = [(right.narrow(axis, at[0], len(at)), found.narrow(axis, at[0], len(at))) for at in spans]
            order = [next((n for n, (piece, _) in enumerate(pieces) if near(piece, held)), None) for _, held in pieces]
            if order != list(range(count)) and sorted(n for n in order if n is not None) == list(range(count)):
                yield "permutation", (Note("cause.parts_order", axis=axis, order=", ".join(map(str, order))),), ()


def near(right: torch.Tensor, found: torch.Tensor) -> bool:
    """Whether two values are the same one."""
    if right.shape != found.shape:
        return False
    one, other = right.double(), found.double()
    return bool((one - other).norm() <= NEAR * one.norm()) and bool(one.any() or not other.any())


def _is_error(one: Combined, rank: int, wanted: torch.Tensor) -> bool:
    """Whether the error of a rank is this, as far as the rounding of the value lets one see."""
    error = one.found[rank].double() - one.part(rank).double()
    wanted = wanted.expand_as(error)
    return bool(wanted.any()) and bool((error - wanted).norm() <= 5 * NEAR * wanted.norm())


def _sum(one: Combined, fiber: tuple[int, ...]) -> torch.Tensor | None:
    held = [one.found[rank] for rank in fiber if rank in one.found]
    if len(held) < len(fiber) or any(part.shape != held[0].shape for part in held):
        return None
    return torch.stack([part.double() for part in held]).sum(0)


def _counts(one: Combined) -> list[int]:
    sizes = {max(dim.values()) + 1 for dim in one.world.dims}
    return sorted(size for size in sizes | {2} if 1 < size <= one.world.size)


def _some(fibers: Iterable[tuple[int, ...]]) -> str:
    return " | ".join(", ".join(map(str, group)) for group in dict.fromkeys(fibers))
