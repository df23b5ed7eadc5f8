"""Names that differ by what is in front: `model.`, `module.`, `_orig_mod.` and their like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from layertap.compare.align.site_pairing import SitePairing
from layertap.result import Note
from layertap.site import Record

PREFIXES = ("model", "module", "_orig_mod", "backbone", "transformer", "base_model")
"""What wrappers and heads put in front of a path."""

WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""What wrappers put anywhere into a path: torch.compile, FSDP, activation checkpointing."""

NameKey = tuple[str, str, str, int]


def pair_exact(pairing: SitePairing) -> list[str]:
    """The same path, role, leaf and call."""
    ours, theirs = pairing.left()
    by_name = {str(pairing.reference[i].site): i for i in ours}
    found = [(by_name[name], j) for j in theirs if (name := str(pairing.candidate[j].site)) in by_name]
    for i, j in found:
        pairing.pair(i, j, "exact")
    return [Note("align.step", way="exact", pairs=pairing.pairs_text(len(found)))]


def pair_by_prefix(pairing: SitePairing) -> list[str]:
    """Drops as little as is needed from the front of either side's paths; then also takes `:output.0`, or the one leaf
    that there is (`:output.logits`), for `:output`.

    Dropping one prefix from all names of a side cannot make two of them equal, so no pair is ambiguous. All prefixes at
    once could: `model.norm` and `norm` may be in one model.
    """
    lines: list[str] = []
    total = 0
    chains = [
        _chains([records[k] for k in left]) for records, left in zip(_sides(pairing), pairing.left(), strict=True)
    ]
    drops = sorted(((a, b) for a in chains[0] for b in chains[1]), key=lambda drop: (len(drop[0]) + len(drop[1]), drop))
    for loose in (False, True):
        for ours, theirs in drops:
            count = _pair(pairing, ours, theirs, loose)
            if count:
                total += count
                lines.append(Note("align.prefix", pairs=pairing.pairs_text(count), how=_how(ours, theirs, loose)))
    return lines or [Note("align.step", way="prefix", pairs=pairing.pairs_text(0))]


def keys_of(
    records: Sequence[Record], numbers: Sequence[int], drop: tuple[str, ...], loose: bool
) -> dict[NameKey, int]:
    """The names of some records without a prefix; those that would be called the same are left out.

    `loose` takes the first tensor of a tuple for a bare one, and likewise the only tensor of any value: a decoder layer
    returns one or the other, by the version of transformers, and a compiled model forgets the names in its output.
    """
    leaves = Counter((site.path, site.role, site.call) for site in (records[number].site for number in numbers))
    found: list[tuple[NameKey, int]] = []
    for number in numbers:
        site = records[number].site
        parts = tuple(part for part in site.path.split(".") if part not in WRAPPERS) if site.path else ()
        if parts[: len(drop)] != drop:
            continue
        # A whole model that is called `model` is no root: the root is its wrapper, which has its own output.
        if drop and len(parts) == len(drop) and drop[-1] != "module":
            continue
        only = leaves[site.path, site.role, site.call] == 1
        leaf = "" if loose and (site.leaf == "0" or only) else site.leaf
        found.append(((".".join(parts[len(drop) :]), site.role, leaf, site.call), number))
    often = Counter(key for key, _ in found)
    return {key: number for key, number in found if often[key] == 1}


def _pair(pairing: SitePairing, ours: tuple[str, ...], theirs: tuple[str, ...], loose: bool) -> int:
    left = pairing.left()
    references = keys_of(pairing.reference, left[0], ours, loose)
    candidates = keys_of(pairing.candidate, left[1], theirs, loose)
    both = [key for key in references if key in candidates]
    for key in both:
        pairing.pair(references[key], candidates[key], "prefix")
    return len(both)


def _sides(pairing: SitePairing) -> tuple[Sequence[Record], Sequence[Record]]:
    return pairing.reference, pairing.candidate


def _chains(records: Sequence[Record]) -> set[tuple[str, ...]]:
    """What could be dropped: every beginning of every path that consists of known prefixes."""
    found: set[tuple[str, ...]] = {()}
    for record in records:
        parts = [part for part in record.site.path.split(".") if part not in WRAPPERS]
        for length, part in enumerate(parts, start=1):
            if part not in PREFIXES:
                break
            found.add(tuple(parts[:length]))
    return found


def _how(ours: tuple[str, ...], theirs: tuple[str, ...], loose: bool) -> str:
    dropped = [
        Note("align.prefix_of", drop=".".join(drop), side=side)
        for drop, side in ((ours, "reference"), (theirs, "candidate"))
        if drop
    ]
    notes = [Note("align.after_dropping", dropped=" and ".join(dropped))] if dropped else []
    notes += [Note("align.first_leaf")] if loose else []
    return ", ".join(notes) or Note("align.without_wrappers")
