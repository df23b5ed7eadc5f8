"""The verb: patterns and a model become a plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from layertap.errors import BadArgument, NoMatch
from layertap.messages import tr
from layertap.select.default import default_paths
from layertap.select.nearest import no_match
from layertap.select.pattern import Pattern, read
from layertap.select.plan import Choice, Selection
from layertap.select.tree import Model, Tree, kind_of
from layertap.site import ROLES


def select(
    model: Model, sites: Any = None, *, exclude: Any = None, what: str | Sequence[str] = ("output",)
) -> Selection:
    """Which modules of the model are wanted, and in which roles; `layertap.select` describes patterns.

    `sites=None` is a sensible default: the repeated blocks and what is beside them, or a small model whole.
    `exclude` takes what `sites` takes; with a role or leaf it excludes that alone.

    >>> from torch import nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, 16)
    >>> model = nn.TransformerEncoder(layer, 4, norm=nn.LayerNorm(8), enable_nested_tensor=False)
    >>> print(select(model))
    5 of 43 modules of TransformerEncoder
    layers.[0-3]  TransformerEncoderLayer  output
    norm          LayerNorm                output
    >>> print(select(model, ["layers.[first,last]", "**.self_attn:input.0"], exclude="layers.[1-2].**"))
    4 of 43 modules of TransformerEncoder
    layers.[0,3]            TransformerEncoderLayer  output
    layers.[0,3].self_attn  MultiheadAttention       input.0
    >>> print(select(model, "layer.*"))
    Traceback (most recent call last):
    layertap.errors.NoMatch: 'layer.*' matches none of the 43 modules of TransformerEncoder. Nearest: layers.[0-3], ...
    """
    roles = _roles(what)
    tree = Tree.of(model)
    wishes: dict[str, _Wish] = {}
    if sites is None:
        wishes = {path: _Wish(dict.fromkeys(roles)) for path in default_paths(tree)}
    for pattern in _patterns(sites, tree, "sites"):
        for path in _homes(pattern, tree):
            wishes.setdefault(path, _Wish()).add([pattern.role] if pattern.role else roles, pattern.leaf)
    asked = len(wishes)
    for pattern in _patterns(exclude, tree, "exclude"):
        for path in _homes(pattern, tree):
            if path in wishes:
                wishes[path].remove(pattern.role, pattern.leaf)
    choices = tuple(_choice(path, wishes[path], tree) for path in tree.modules if path in wishes and wishes[path].only)
    if not choices:
        raise NoMatch(tr("select.nothing_left", exclude=exclude, asked=asked, sites=sites))
    return Selection(choices=choices, model=kind_of(tree.modules[""]), modules=len(tree.modules))


@dataclass
class _Wish:
    """What the patterns read so far want of one module."""

    only: dict[str, list[str] | None] = field(default_factory=dict)
    """Role → globs of the leaves, or None for all of them."""
    without: dict[str, list[str]] = field(default_factory=dict)

    def add(self, roles: Iterable[str], leaf: str | None) -> None:
        for role in roles:
            globs = self.only.setdefault(role, [])
            if leaf is None or globs is None:
                self.only[role] = None
            elif leaf not in globs:
                globs.append(leaf)

    def remove(self, role: str | None, leaf: str | None) -> None:
        if role is None:
            self.only.clear()
        elif leaf is None:
            self.only.pop(role, None)
        elif leaf not in self.without.setdefault(role, []):
            self.without[role].append(leaf)


def _choice(path: str, wish: _Wish, tree: Tree) -> Choice:
    roles = tuple(role for role in ROLES if role in wish.only)
    return Choice(
        path=path,
        kind=kind_of(tree.modules[path]),
        roles=roles,
        leaves=tuple((role, glob) for role in roles for glob in wish.only[role] or ()),
        without=tuple((role, glob) for role in roles for glob in wish.without.get(role, ())),
        aliases=tree.further.get(path, ()),
    )


def _patterns(items: Any, tree: Tree, name: str) -> list[Pattern]:
    if items is None:
        return []
    # A Sequential can be iterated over, and represents itself all the same.
    several = isinstance(items, Iterable) and not isinstance(items, str) and not hasattr(items, "named_modules")
    found = [pattern for item in (items if several else [items]) for pattern in read(item, tree)]
    if not found and name == "sites":
        raise BadArgument(tr("select.empty_list"))
    return found


def _homes(pattern: Pattern, tree: Tree) -> set[str]:
    homes = {tree.home(path) for path in pattern.find(tree)}
    if not homes:
        raise NoMatch(no_match(pattern, tree))
    return homes


def _roles(what: str | Sequence[str]) -> list[str]:
    roles = [what] if isinstance(what, str) else list(what)
    for role in roles:
        if role not in ROLES:
            near = get_close_matches(str(role), ROLES, n=1)
            hint = tr("select.did_you_mean", near=near[0]) if near else ""
            raise BadArgument(tr("select.no_role", what=what, role=role, ROLES=", ".join(ROLES), hint=hint))
    if not roles:
        raise BadArgument(tr("select.what_empty", ROLES=", ".join(ROLES)))
    return roles
