"""What to record by default: the repeated blocks, and what is beside them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from layertap.select.tree import Tree, class_names, kind_of

SMALL = 64
"""A model with fewer modules is recorded whole if it has no repeated blocks."""

# Neither computes anything that a block's output does not show: rotary tables are constants of the positions.
_DULL = re.compile(r"Dropout|Identity|Rotary")
_UNCALLABLE = {"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"}


def default_paths(tree: Tree) -> list[str]:
    """The blocks of every stack, and the modules beside the way to a stack: embeddings, final norms, heads.

    Experts inside a block are a stack too, but not one that a first look is after: nothing is searched inside a block.
    Without stacks all modules that can be called, or only the leaves when there are many.
    """
    stacks: dict[str, list[str]] = {}
    _search("", tree, stacks)
    if not stacks:
        everything = [path for path, module in tree.modules.items() if not _uncallable(module)]
        if len(everything) >= SMALL:
            everything = [path for path in everything if not tree.children[path]]
        return everything
    spine = {ancestor for stack in stacks for ancestor in _upwards(stack)}
    blocks = {block for found in stacks.values() for block in found}
    beside = {
        child
        for path in spine
        for child in tree.children[path].values()
        if child in tree.modules and child not in spine and not _dull(tree.modules[child])
    }
    return [path for path in tree.modules if path in blocks or path in beside]


def _search(path: str, tree: Tree, stacks: dict[str, list[str]]) -> None:
    blocks = _blocks(path, tree)
    if blocks:
        stacks[path] = blocks
    for child in tree.children[path].values():
        if child in tree.modules and child not in blocks:
            _search(child, tree, stacks)


def _blocks(path: str, tree: Tree) -> list[str]:
    """The numbered children that have children themselves, if two are of one class or this is a ModuleList."""
    children = [tree.children[path][str(number)] for number in tree.numbered(path)]
    blocks = [child for child in children if child in tree.modules and tree.children[child]]
    kinds = Counter(kind_of(tree.modules[block]) for block in blocks)
    listed = "ModuleList" in class_names(tree.modules[path])
    return blocks if listed or any(count > 1 for count in kinds.values()) else []


def _upwards(path: str) -> Iterable[str]:
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def _dull(module: object) -> bool:
    return _uncallable(module) or _DULL.search(kind_of(module)) is not None


def _uncallable(module: object) -> bool:
    return not _UNCALLABLE.isdisjoint(class_names(module))
