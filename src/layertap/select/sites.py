"""The same patterns, asked of recorded sites in place of a model's modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.select.nearest import nearest
from layertap.select.pattern import leaf_regex, read
from layertap.select.tree import Tree
from layertap.site import Site


def matching_sites(patterns: str | Iterable[str], sites: Iterable[tuple[Site, str]]) -> set[str]:
    """The sites, given with their modules' classes, that any of the patterns matches. All roles and calls count.

    >>> sites = [(Site.parse(text), "") for text in ("layers.0", "layers.1", "layers.1:input.0", "norm")]
    >>> sorted(matching_sites("layers.*", sites)), sorted(matching_sites(["norm", "**:input"], sites))
    (['layers.0', 'layers.1', 'layers.1:input.0'], ['layers.1:input.0', 'norm'])
    """
    known = list(sites)
    tree = Tree.of(_Paths(known))
    found: set[str] = set()
    for text in [patterns] if isinstance(patterns, str) else patterns:
        taken: set[str] = set()
        for pattern in read(text, tree):
            paths = set(pattern.find(tree))
            taken |= {
                str(site)
                for site, _ in known
                if site.path in paths
                and pattern.role in (None, site.role)
                and (pattern.leaf is None or leaf_regex(pattern.leaf).fullmatch(site.leaf))
            }
        if not taken:
            near = nearest(text, tree)
            hint = tr("select.and_nearest", near=", ".join(near)) if near else ""
            raise BadArgument(
                tr("select.sites_no_match", text=text, count=len({str(site) for site, _ in known}), hint=hint)
            )
        found |= taken
    return found


class _Paths:
    """What the sites' paths tell of a model's modules."""

    def __init__(self, sites: Sequence[tuple[Site, str]]) -> None:
        self._kinds: dict[str, str] = {"": ""}
        for site, kind in sites:
            parts = site.path.split(".")
            for length in range(1, len(parts)):
                self._kinds.setdefault(".".join(parts[:length]), "")
            self._kinds[site.path] = kind or self._kinds.get(site.path, "")

    def named_modules(self, *, remove_duplicate: bool = True) -> Iterator[tuple[str, Any]]:
        for path, kind in self._kinds.items():
            yield path, type(kind or "Module", (), {})()
