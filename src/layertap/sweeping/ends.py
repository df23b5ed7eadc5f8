"""`first` and `last` as sites: the first and the last block of the model, whatever they are called."""

from __future__ import annotations

from collections.abc import Sequence

from layertap.select.default import default_paths
from layertap.select.tree import Tree

_ENDS = {"first": 0, "last": -1}


def resolve_sites(tree: Tree, sites: Sequence[str] | None) -> list[str] | None:
    """The patterns, with `first` and `last` replaced by paths; a module that is called so keeps its name.

    A role may follow, and what is inside: `first:input`, `last.attention.**`.
    """
    if sites is None:
        return None
    found = []
    for site in sites:
        path, colon, role = site.partition(":")
        name, dot, inside = path.partition(".")
        if name not in _ENDS or name in tree.children:
            found.append(site)
            continue
        found.append(blocks(tree)[_ENDS[name]] + dot + inside + colon + role)
    return found


def blocks(tree: Tree) -> list[str]:
    """The longest stack of blocks, in order; without one the modules that are recorded by default."""
    paths = default_paths(tree)
    stacks: dict[str, list[str]] = {}
    for path in paths:
        head, _, last = path.rpartition(".")
        if last.isdecimal():
            stacks.setdefault(head, []).append(path)
    longest = max(stacks.values(), key=len, default=[])
    return longest or [path for path in paths if path] or [""]
