"""Which module of the candidate is which of the reference's: by name, by what the user says, by order."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import Any

from torch import nn

from layertap.compare.align.mapping import read_rules
from layertap.compare.align.names import PREFIXES, WRAPPERS
from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.result import Note

Mapped = Mapping[str, Any] | str | os.PathLike[str]


class Pairing:
    """Modules are known by the reference's path; each path has at most one module on either side.

    >>> plain = nn.Sequential(nn.Linear(2, 2))
    >>> Pairing(plain, nn.ModuleDict({"module": plain})).names
    {'': 'module', '0': 'module.0'}
    """

    def __init__(self, reference: nn.Module, candidate: nn.Module, mapping: Mapped | None = None) -> None:
        self.reference = dict(reference.named_modules())
        theirs = dict(candidate.named_modules())
        self.notes: list[str] = []
        self.names: dict[str, str] = {}
        """The candidate's own path for each path of the reference."""
        taken: dict[str, str] = {}
        for reference_path, path in (*self._told(theirs, mapping), *_by_name(self.reference, theirs)):
            if reference_path not in self.names and path not in taken:
                self.names[reference_path], taken[path] = path, reference_path
        if "" not in self.names:
            self.names = {"": "", **self.names} if "" not in taken else self.names
        for reference_path, path in _by_order(self.reference, theirs, self.names, set(taken)):
            self.names[reference_path], taken[path] = path, reference_path
            self.notes.append(Note("fault.paired_by_order", page=reference_path, path=path))
        self.candidate = {reference_path: theirs[path] for reference_path, path in self.names.items()}
        self.extra = [path for path in theirs if path not in taken]
        """Modules that the candidate alone has, by its own paths."""

    def name(self, path: str) -> str:
        """What the candidate calls it, or the reference's name where the candidate has none."""
        return self.names.get(path, path)

    def _told(self, theirs: Mapping[str, nn.Module], mapping: Mapped | None) -> list[tuple[str, str]]:
        rules = () if mapping is None else read_rules(mapping)
        if not rules:
            return []
        found, nowhere = [], []
        for path in theirs:
            paths = [reference_path for rule in reversed(rules) if (reference_path := rule.rename(path)) is not None]
            if paths and paths[0] in self.reference:
                found.append((paths[0], path))
            elif paths:
                nowhere.append(f"{path} → {paths[0]}")
        if not found:
            hint = Note("fault.mapping_hint", nowhere=nowhere[0]) if nowhere else ""
            raise BadArgument(tr("fault.mapping_useless", hint=hint))
        return found


def _by_name(ours: Mapping[str, nn.Module], theirs: Mapping[str, nn.Module]) -> list[tuple[str, str]]:
    """The same path, after dropping from either side what wrappers put in front; the drop that pairs most wins."""
    left, right = [clean_path(path) for path in ours], [clean_path(path) for path in theirs]
    best: list[tuple[str, str]] = []
    drops = [(a, b) for a in _chains(left) for b in _chains(right)]
    for a, b in sorted(drops, key=lambda drop: (len(drop[0]) + len(drop[1]), drop)):
        paths = dict(_dropped(left, list(ours), a))
        found = [(paths[key], path) for key, path in _dropped(right, list(theirs), b) if key in paths]
        if len(found) > len(best):
            best = found
    return best


def clean_path(path: str) -> tuple[str, ...]:
    """The parts of a path without what wrappers put into it."""
    return tuple(part for part in path.split(".") if part and part not in WRAPPERS)


def _chains(paths: list[tuple[str, ...]]) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = {()}
    for parts in paths:
        for length, part in enumerate(parts, start=1):
            if part not in PREFIXES:
                break
            found.add(parts[:length])
    return found


def _dropped(
    clean: list[tuple[str, ...]], paths: list[str], drop: tuple[str, ...]
) -> list[tuple[tuple[str, ...], str]]:
    found: dict[tuple[str, ...], str] = {}
    for parts, path in zip(clean, paths, strict=True):
        if parts[: len(drop)] == drop:
            found[parts[len(drop) :]] = path  # of a wrapper and what it wraps, the inner one
    return list(found.items())


def _by_order(
    ours: Mapping[str, nn.Module], theirs: Mapping[str, nn.Module], names: Mapping[str, str], taken: set[str]
) -> list[tuple[str, str]]:
    """Among those left, modules with parameters of the same shapes, in the same order."""
    left = [
        (reference_path, shapes)
        for reference_path, m in ours.items()
        if reference_path not in names and (shapes := _shapes(m))
    ]
    right = [(path, shapes) for path, m in theirs.items() if path not in taken and (shapes := _shapes(m))]
    matcher = difflib.SequenceMatcher(None, [s for _, s in left], [s for _, s in right], autojunk=False)
    return [
        (left[block.a + k][0], right[block.b + k][0])
        for block in matcher.get_matching_blocks()
        for k in range(block.size)
    ]


def _shapes(module: nn.Module) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(p.shape) for p in module.parameters(recurse=False))
