"""Functions of other packages that are watched for a while: put back afterwards, also where they are imported later."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any


class Patches:
    """Attributes that were replaced, and how they were; `undo` leaves alone what somebody else has replaced since."""

    def __init__(self) -> None:
        self._held: list[tuple[Any, str, Any, Any]] = []
        self._finder: _OnImport | None = None

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Puts `make(original)` in place of an attribute that the owner has itself; of others nothing happens."""
        original = vars(owner).get(name)
        if original is not None:
            setattr(owner, name, make(original))
            self._held.append((owner, name, vars(owner)[name], original))

    def when_imported(self, watched: Mapping[str, Callable[[ModuleType], None]]) -> None:
        """Calls each function with its module: at once where it is imported, and otherwise when somebody imports it."""
        for name, then in watched.items():
            module = sys.modules.get(name)
            if module is not None:
                then(module)
        self._finder = _OnImport(watched)
        sys.meta_path.insert(0, self._finder)

    def undo(self) -> None:
        if self._finder is not None and self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        for owner, name, ours, original in reversed(self._held):
            if vars(owner).get(name) is ours:
                setattr(owner, name, original)
        self._held.clear()


class _OnImport(importlib.abc.MetaPathFinder):
    """Finds nothing itself: asks the others, and has a word when the module has been executed."""

    def __init__(self, watched: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self._watched = watched

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._watched:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find is not None and finder is not self else None
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, self._watched[fullname])
                return spec  # type: ignore[no-any-return]
        return None


class _Loader(importlib.abc.Loader):
    """The module's own loader, and then the function."""

    def __init__(self, loader: Any, then: Callable[[ModuleType], None]) -> None:
        self._loader, self._then = loader, then

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader  # nothing of ours stays in the module
        self._loader.exec_module(module)
        self._then(module)
