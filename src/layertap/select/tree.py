"""A model's modules laid out for matching, without importing torch."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

_NUMBER = re.compile(r"0|[1-9][0-9]*")


class Model(Protocol):
    """What is asked of a model: torch's `named_modules`, and nothing else."""

    def named_modules(self, *, remove_duplicate: bool = ...) -> Iterator[tuple[str, Any]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The module tree; a module that hangs in it twice lives under its first path, as in `named_modules()`."""

    modules: Mapping[str, Any]
    """First path → module, in the order of `named_modules()`."""
    aliases: Mapping[str, str]
    """Further path of a shared module → its first path."""
    further: Mapping[str, tuple[str, ...]]
    """First path of a shared module → its further paths."""
    children: Mapping[str, Mapping[str, str]]
    """Any path, aliases included → name of the child → path of the child."""

    @classmethod
    def of(cls, model: Model) -> Tree:
        modules: dict[str, Any] = {}
        aliases: dict[str, str] = {}
        further: dict[str, tuple[str, ...]] = {}
        children: dict[str, dict[str, str]] = {}
        first: dict[int, str] = {}
        for path, module in model.named_modules(remove_duplicate=False):
            children[path] = {}
            if path:
                parent = _parent(path, children)
                children[parent][path[len(parent) + 1 if parent else 0 :]] = path
            if id(module) in first:
                home = aliases[path] = first[id(module)]
                further[home] = (*further.get(home, ()), path)
            else:
                first[id(module)] = path
                modules[path] = module
        return cls(modules=modules, aliases=aliases, further=further, children=children)

    def home(self, path: str) -> str:
        """The first path of the module at `path`."""
        return self.aliases.get(path, path)

    def numbered(self, path: str) -> list[int]:
        """The numbers among the names of its children, ascending."""
        return sorted(int(name) for name in self.children[path] if _NUMBER.fullmatch(name))

    def below(self, path: str) -> Iterator[str]:
        """The path itself and all paths under it."""
        waiting = [path]
        while waiting:
            path = waiting.pop()
            yield path
            waiting.extend(self.children[path].values())


def _parent(path: str, known: Container[str]) -> str:
    """The path above; a name may contain dots, since `setattr(model, "block.0", …)` is allowed."""
    parent = path
    while parent:
        parent = parent.rpartition(".")[0]
        if parent in known:
            break
    return parent


def kind_of(module: Any) -> str:
    """The name of a module's class; for a TorchScript module, of the class that it was made from."""
    names = class_names(module)
    return str(module.original_name) if "ScriptModule" in names else names[0]


def class_names(module: Any) -> list[str]:
    """The names of its class and of all bases."""
    return [cls.__name__ for cls in type(module).__mro__ if cls is not object]
