"""What could not be judged inside a module that is out of line: then the error may be there, and not the module's own.

A child that returns another form than the reference's, or has no partner, is not forced to anything: its error shows in
the module that calls it. It is ruled out where both sides have the same class with the same parameters and settings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from layertap.fault.module_differences import config_apart, weights_apart
from layertap.fault.pairing import Pairing
from layertap.fault.reference_trace import ReferenceTrace, ReplayResult
from layertap.fault.result import ModuleRow


def judged_pages(forced: ReplayResult) -> set[str]:
    """The modules whose output was laid beside the reference's."""
    return {event.site.path for event in forced.events if event.site.role == "output" and not event.found.shape}


def suspects(
    row: ModuleRow, pairing: Pairing, trace: ReferenceTrace, forced: ReplayResult, *, spread: bool = False
) -> list[str]:
    """The candidate's modules inside this one that were not judged and may be at fault in its place.

    Modules that are `spread` over ranks are ruled out by nothing.
    """
    judged = judged_pages(forced)
    own = pairing.names.get(row.page)
    prefix = f"{own}." if own else ""
    extra = [path for path in pairing.extra if path and path.startswith(prefix) and "." not in path[len(prefix) :]]
    left = list(_unjudged(row.page, trace, judged))
    paired = [page for page in left if page in pairing.names]
    found = [
        pairing.name(page) for page in paired if forced.calls[page] and (spread or not _alike(page, pairing, trace))
    ]
    # A module whose children all have no partner is the smallest that both sides have.
    alone = len(paired) < len(left) and extra
    if alone and (paired or not row.page):
        found += extra
    return found


def _unjudged(page: str, trace: ReferenceTrace, judged: Collection[str]) -> Iterator[str]:
    """Called modules below one whose errors belong to no other module: not inside another that was judged."""
    prefix = f"{page}." if page else ""
    for other in trace.calls:
        if other == page or not other.startswith(prefix) or other in judged:
            continue
        above, inside = other, False
        while (above := above.rpartition(".")[0]) and above != page:
            inside |= above in judged
        if not inside:
            yield other


def _alike(page: str, pairing: Pairing, trace: ReferenceTrace) -> bool:
    """Whether the two modules are of one class, and equal in what they force and how they are set."""
    ours, theirs = pairing.reference[page], pairing.candidate[page]
    if type(ours) is not type(theirs):
        return False
    return weights_apart(ours, theirs, page, set(trace.calls)) is None and config_apart(ours, theirs) is None
