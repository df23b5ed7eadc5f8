"""What is known of objects that the model is called with again and again, a cache for instance.

Contents: which of their tensors have been recorded already, as they are now. OwnState: whether they are still as the
model's own last call left them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from layertap.measure import measure, supported

Mark = tuple[str, int]


class Contents:
    """Tensors by identity, with what shows whether they have been written into.

    >>> contents, tensor = Contents(), torch.ones(2)
    >>> contents.add(tensor, "stats")
    >>> contents.known(tensor, "stats"), contents.known(tensor, "tensor")
    (True, False)
    >>> _ = tensor.add_(1)
    >>> contents.known(tensor, "stats")
    False
    """

    def __init__(self) -> None:
        self._marks: dict[tuple[int, str], tuple[weakref.ref[torch.Tensor], Mark]] = {}

    def add(self, tensor: torch.Tensor, level: str) -> None:
        """Remembers a tensor that has been recorded at this level."""
        mark = _mark(tensor)
        if mark is not None:
            self._marks[id(tensor), level] = weakref.ref(tensor), mark

    def known(self, tensor: torch.Tensor, level: str) -> bool:
        """Whether it has been recorded at this level and is as it was then."""
        reference, mark = self._marks.get((id(tensor), level), (None, None))
        return reference is not None and reference() is tensor and mark == _mark(tensor)

    def clear(self) -> None:
        self._marks.clear()


def _mark(tensor: torch.Tensor) -> Mark | None:
    """What changes with every write; None where only reading the tensor could tell, and that would cost a wait."""
    if not tensor.is_inference():
        return "version", tensor._version
    if tensor.device.type == "cpu" and not supported(tensor):
        return "fingerprint", measure(tensor).fingerprint
    return None


DEPTH = 6
"""Containers inside each other that are looked through."""


@dataclass(slots=True)
class _Snapshot:
    """The tensors inside an object: where each is, and what shows that it is still the same."""

    containers: list[tuple[Any, int]] = field(default_factory=list)
    """Each dictionary and list inside, and its length."""
    links: list[tuple[Any, Any, Any]] = field(default_factory=list)
    """Container, key, and the object or container that is there."""
    places: list[tuple[Any, Any, weakref.ref[torch.Tensor], int]] = field(default_factory=list)
    """Container, key, the tensor and its version."""

    def holds(self) -> bool:
        """Whether all is as it was. In plain loops: this is asked, and answered, at every call of the model."""
        for container, length in self.containers:
            if len(container) != length:
                return False
        try:
            for container, key, value in self.links:
                if container[key] is not value:
                    return False
            for container, key, reference, version in self.places:
                tensor = reference()
                if tensor is None or container[key] is not tensor or tensor._version != version:
                    return False
        except LookupError:
            return False
        return True


class OwnState:
    """Objects that are as the model's own last call left them: what is in them is no input of anybody else's.

    >>> class Cache:
    ...     def __init__(self):
    ...         self.keys = [torch.ones(2)]
    >>> own, cache = OwnState(), Cache()
    >>> own.unchanged(cache), own.left([cache]), own.unchanged(cache)
    (False, None, True)
    >>> _ = cache.keys[0].zero_()
    >>> own.unchanged(cache)
    False
    """

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, _Snapshot] = weakref.WeakKeyDictionary()

    def left(self, values: Iterable[Any]) -> None:
        """The end of a call: takes down what is in the objects that it was given, and in those that it returned."""
        for value in values:
            if not _is_object(value):
                continue
            snapshot = _Snapshot()
            if _look(vars(value), snapshot, 0) and snapshot.places:
                self._known[value] = snapshot
            else:
                self._known.pop(value, None)

    def unchanged(self, value: Any) -> bool:
        """Whether an object is as the last call left it."""
        snapshot = self._known.get(value) if _is_object(value) else None
        return snapshot is not None and snapshot.holds()

    def clear(self) -> None:
        self._known.clear()


def _is_object(value: Any) -> bool:
    """Whether it is an object with attributes of its own, that can be known again."""
    kind: Any = type(value)
    return _is_of_objects(kind) and hasattr(value, "__dict__")


@lru_cache(maxsize=256)
def _is_of_objects(kind: type) -> bool:
    if issubclass(kind, (torch.Tensor, nn.Module, Mapping, type)) or any("__call__" in vars(c) for c in kind.__mro__):
        return False
    own_hash = getattr(kind, "__hash__", None)
    return hasattr(kind, "__weakref__") and own_hash is getattr(object, "__hash__")  # noqa: B009


def _look(container: Any, snapshot: _Snapshot, depth: int) -> bool:
    """Adds what is in a dictionary, list or tuple; False where something in it cannot be known again."""
    if depth >= DEPTH:
        return False
    if not isinstance(container, tuple):
        snapshot.containers.append((container, len(container)))
    for key, value in container.items() if isinstance(container, dict) else enumerate(container):
        kind = type(value)
        if kind in _PLAIN:
            continue
        if kind is torch.Tensor or isinstance(value, torch.Tensor):
            if value.is_inference():  # it has no version that would show a write
                return False
            snapshot.places.append((container, key, weakref.ref(value), value._version))
        elif kind is dict or kind is list or kind is tuple or _has_tensors(value):
            snapshot.links.append((container, key, value))
            inside = value if isinstance(value, (dict, list, tuple)) else vars(value) if _is_object(value) else None
            if inside is None or not _look(inside, snapshot, depth + 1):
                return False
    return True


_PLAIN = frozenset(
    {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size},
)
"""Types in which there is no tensor."""


def _has_tensors(value: Any) -> bool:
    """Whether there may be tensors in it."""
    return not isinstance(value, (*_PLAIN, type)) and not callable(value)
