"""What could not be judged inside a module that is out of line: then the error may be there, and not the module's own.

A child that returns another form than the reference's, or has no partner, is not forced to anything: its error shows in
the module that calls it. It is ruled out where both sides have the same class with the same parameters and settings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from layertap.fault.module_differences import config_apart, weights_differ
from layertap.fault.pairing import Pairing
from layertap.fault.reference_trace import ReferenceTrace, ReplayResult
from layertap.fault.result import ModuleRow


def judged_paths(forced: ReplayResult) -> set[str]:
    """The modules whose output was laid beside the reference's."""
    return {event.site.path for event in forced.events if event.site.role == "output" and not event.found.shape}


def suspects(
    row: ModuleRow, pairing: Pairing, trace: ReferenceTrace, forced: ReplayResult, *, spread: bool = False
) -> list[str]:
    """The candidate's modules inside this one that were not judged and may be at fault in its place.

    Modules that are `spread` over ranks are ruled out by nothing.
    """
    judged = judged_paths(forced)
    own = pairing.names.get(row.reference_path)
    prefix = f"{own}." if own else ""
    extra = [path for path in pairing.extra if path and path.startswith(prefix) and "." not in path[len(prefix) :]]
    left = list(_unjudged(row.reference_path, trace, judged))
    paired = [reference_path for reference_path in left if reference_path in pairing.names]
    found = [
        pairing.name(reference_path)
        for reference_path in paired
        if forced.calls[reference_path] and (spread or not _alike(reference_path, pairing, trace))
    ]
    # A module whose children all have no partner is the smallest that both sides have.
    alone = len(paired) < len(left) and extra
    if alone and (paired or not row.reference_path):
        found += extra
    return found


def _unjudged(path: str, trace: ReferenceTrace, judged: Collection[str]) -> Iterator[str]:
    """Called modules below one whose errors belong to no other module: not inside another that was judged."""
    prefix = f"{path}." if path else ""
    for other in trace.calls:
        if other == path or not other.startswith(prefix) or other in judged:
            continue
        above, inside = other, False
        while (above := above.rpartition(".")[0]) and above != path:
            inside |= above in judged
        if not inside:
            yield other


def _alike(path: str, pairing: Pairing, trace: ReferenceTrace) -> bool:
    """Whether the two modules are of one class, and equal in what they force and how they are set."""
    ours, theirs = pairing.reference[path], pairing.candidate[path]
    if type(ours) is not type(theirs):
        return False
    return config_apart(ours, theirs) is None and not weights_differ(ours, theirs, path, set(trace.calls))
