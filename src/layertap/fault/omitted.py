"""A module that was left out when its neighbours were rearranged, as they are in every other layer.

Queries and keys that a port holds in another order are wrong one by one and right together. Where one key was left in
the reference's order, it is equal to the reference, and the queries beside it look wrong. Which it is, the other layers
say: given the reference's inputs and left free inside, they come out right, and this one does not, even where the
queries are put right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from layertap.fault.cancelling import Ends, Probe, role_of
from layertap.fault.result import ModuleRow
from layertap.judge.calibration import LIMIT_OF_MODULES
from layertap.measure.pair.difference import UNMEASURED, Difference
from layertap.site import Site


@dataclass(frozen=True, slots=True)
class Omitted:
    """A module that is the reference's where all that it works with is rearranged."""

    row: ModuleRow
    like: str
    """One of its role that is rearranged."""
    cleared: frozenset[str]
    """The modules that are rearranged, and no fault."""


def omitted(
    first: ModuleRow,
    out: Sequence[ModuleRow],
    table: Iterable[ModuleRow],
    floors: Mapping[Site, Difference],
    least: float,
    probe: Callable[[Ends], Probe],
) -> Omitted | None:
    """The module that was left out beside the first fault; `out` are all modules that are out of line."""
    parent = _above(first.reference_path)
    beside = {role_of(row.reference_path) for row in out if _above(row.reference_path) == parent}
    twins: dict[str, set[str]] = {}
    for row in out:
        above = _above(row.reference_path)
        if parent and above != parent and role_of(above) == role_of(parent):
            twins.setdefault(above, set()).add(role_of(row.reference_path))
    further = [roles - beside for roles in twins.values() if beside < roles]
    if not further or any(roles != further[0] for roles in further) or len(further[0]) != 1:
        return None
    (role,) = further[0]
    rows = {row.reference_path: row for row in table if _above(row.reference_path) == parent}
    left = next((row for path, row in rows.items() if role_of(path) == role and row.found.equal), None)
    whole = [above for above, roles in twins.items() if beside < roles]
    if left is None:
        return None
    # If the reference's value there makes all right, it is to blame itself, whatever the others are.
    ends = {(path, "input") for path in (parent, *whole)} | {(first.reference_path, "output")}
    replayed = probe(frozenset(ends)).replayed
    right: dict[str, bool] = {}
    for event in replayed.events:
        path, end = event.site.path, event.site.role
        if end == "output" and path in (parent, *whole):
            within = event.found.error <= LIMIT_OF_MODULES * max(floors.get(event.site, UNMEASURED).error, least)
            right[path] = right.get(path, True) and within and not event.found.mismatched
    if right.get(parent, True) or not all(right.get(path, False) for path in whole):
        return None
    like = next(row.reference_path for row in out if role_of(row.reference_path) == role)
    places = (parent, *whole)
    return Omitted(
        left,
        like,
        frozenset(
            row.reference_path for row in out if row.reference_path in places or _above(row.reference_path) in places
        ),
    )


def _above(path: str) -> str:
    return path.rpartition(".")[0]
