"""The tensors inside whatever a module takes or returns, each with its key path.

A value that is one tensor has the empty path. Everything else is named by the way down to it: tuple index, dictionary
key, field or attribute name, keyword.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from layertap.capture import collectives
from layertap.capture.sharding import sharding_of
from layertap.messages import tr
from layertap.site import Sharding

DEPTH = 8
"""How deep a value is searched; deeper nests are counted as skipped, not walked forever."""

_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


class Leaf(NamedTuple):
    """One thing at the end of a key path: a tensor, or the reason why it is none."""

    path: str
    tensor: torch.Tensor | None
    reason: str = ""


def no_leaf(code: str, value: Any) -> str:
    """Why a value has no tensor: a code and the name of its class. A compiler traces this, so no sentence is made."""
    return f"{code} {type(value).__name__}"


def reason_text(reason: str) -> str:
    """The sentence of such a reason; any other text is its own.

    >>> reason_text(no_leaf("record.without_tensors", object())), reason_text("None")
    ('object without tensors', 'None')
    """
    code, _, name = reason.partition(" ")
    return tr(code, name=name, depth=DEPTH) if name and code.startswith("record.") else reason


def leaves(value: Any) -> Iterator[Leaf]:
    """Walks a nested value in order.

    >>> [leaf.path for leaf in leaves((torch.ones(1), {"mask": torch.ones(1)}))]
    ['0', '1.mask']
    >>> [(leaf.path, leaf.reason) for leaf in leaves((torch.ones(1), None)) if leaf.tensor is None]
    [('1', 'None')]
    """
    if type(value) is torch.Tensor:
        return iter((Leaf("", value),))
    return iter(_found([], "", value, 0, ()))


def call_leaves(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Leaf]:
    """The leaves of a call: positional arguments by index, keywords by name; a lone tensor has the empty path."""
    if len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor):
        yield Leaf("", args[0])
        return
    for index, value in enumerate(args):
        yield from _found([], str(index), value, 1, ())
    for name, value in kwargs.items():
        yield from _found([], name, value, 1, ())


def given_directly(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> set[int]:
    """The identities of the tensors that are arguments themselves, or are in a tuple that is one.

    Others lie in something that can be written into and shared: a list, a dictionary, a cache.
    """
    found: set[int] = set()
    for value in (*args, *kwargs.values()):
        found.update(
            id(item) for item in (value if type(value) is tuple else (value,)) if isinstance(item, torch.Tensor)
        )
    return found


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same structure with every tensor changed; objects other than plain containers are passed on as they are.

    >>> map_tensors((1, [torch.zeros(1)]), lambda t: t + 1)
    (1, [tensor([1.])])
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple):
        items = [map_tensors(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if type(value) is list:
        return [map_tensors(item, change) for item in value]
    if type(value) is dict:
        return {key: map_tensors(item, change) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        return dataclasses.replace(value, **{name: map_tensors(item, change) for name, item in fields.items()})
    return value


@dataclasses.dataclass(frozen=True, slots=True)
class LeafSlot:
    """Where a tensor stood in an outline."""

    path: str


def outline(value: Any) -> Any:
    """The value in plain tuples, lists and dicts, a slot with its key path in the place of each tensor.

    >>> outline((torch.ones(1), None, {"mask": torch.ones(1)}))
    (LeafSlot(path='0'), None, {'mask': LeafSlot(path='2.mask')})
    """
    return _outline("", value, 0, set())


def fill(outlined: Any, tensor: Callable[[str], Any]) -> Any:
    """The value again: `tensor(path)` for each slot of its outline.

    >>> fill(outline([torch.ones(1), 3]), {"0": "a"}.get)
    ['a', 3]
    """
    if isinstance(outlined, LeafSlot):
        return tensor(outlined.path)
    if isinstance(outlined, tuple):
        return tuple(fill(item, tensor) for item in outlined)
    if isinstance(outlined, list):
        return [fill(item, tensor) for item in outlined]
    if isinstance(outlined, dict):
        return {key: fill(item, tensor) for key, item in outlined.items()}
    return outlined


class TensorPart(NamedTuple):
    """One of the plain tensors that a tensor is made of."""

    name: str
    """Empty where there is only one."""
    tensor: torch.Tensor
    sharding: Sharding | None = None
    """How the tensor that it is a part of is spread over ranks."""


def parts(tensor: torch.Tensor, *, wait: bool = True) -> Iterator[TensorPart]:
    """The plain tensors of one tensor: itself, or what a sparse tensor, a shard or a quantised subclass is made of.

    A collective that still writes one of them is waited for; without `wait` only shapes may be read.

    >>> [part.name for part in parts(torch.eye(2).to_sparse())]
    ['indices', 'values']
    """
    kind = type(tensor)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        for name, plain in _layout_parts(tensor):
            yield TensorPart(name, collectives.complete(plain) if wait else plain)
    elif collectives.in_flight(kind):
        yield from parts(collectives.result_of(tensor, wait=wait), wait=wait)
    elif hasattr(tensor, "placements") and hasattr(tensor, "to_local"):
        for part in parts(tensor.to_local(), wait=wait):
            yield part._replace(sharding=sharding_of(tensor, None if part.name else part.tensor))
    elif hasattr(kind, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        for name in names:
            for part in parts(getattr(tensor, name), wait=wait):
                yield part._replace(name=_join(name.lstrip("_"), part.name))
    else:
        yield TensorPart("", tensor)


def plain_value(tensor: torch.Tensor) -> AbstractContextManager[torch.Tensor]:
    """What a tensor inside `torch.func.grad` and its like represents; any other tensor is itself."""
    if not torch._C._functorch.is_gradtrackingtensor(tensor):
        return nullcontext(tensor)
    return _unwrapped(tensor)


@contextmanager
def _unwrapped(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    while torch._C._functorch.is_gradtrackingtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    with temporarily_clear_interpreter_stack():  # or what is computed from it would be wrapped again
        yield tensor


def _layout_parts(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.detach()
        yield "indices", tensor._indices()
        yield "values", tensor._values()
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield "crow_indices", tensor.crow_indices()
        yield "col_indices", tensor.col_indices()
        yield "values", tensor.values()
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield "ccol_indices", tensor.ccol_indices()
        yield "row_indices", tensor.row_indices()
        yield "values", tensor.values()
    else:
        yield "", tensor


def _found(into: list[Leaf], path: str, value: Any, depth: int, above: tuple[Any, ...]) -> list[Leaf]:
    """Adds the leaves of a value that lies in those `above`. A list, as generators inside each other take longer."""
    if isinstance(value, torch.Tensor):
        into.append(Leaf(path, value))
    elif value is None:
        into.append(Leaf(path, None, "None"))
    elif isinstance(value, _PLAIN):
        into.append(Leaf(path, None, type(value).__name__))
    elif depth >= DEPTH:
        into.append(Leaf(path, None, no_leaf("record.below_depth", value)))
    elif any(value is other for other in above):
        # A cache holds itself in odd corners of some models; a value is walked once on the way down.
        into.append(Leaf(path, None, no_leaf("record.seen_already", value)))
    else:
        above, children = (*above, value), list(_children(value))
        for name, child in children:
            _found(into, _join(path, name), child, depth + 1, above)
        if not children:
            into.append(Leaf(path, None, no_leaf("record.without_tensors", value)))
    return into


def _outline(path: str, value: Any, depth: int, seen: set[int]) -> Any:
    if isinstance(value, torch.Tensor):
        return LeafSlot(path)
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return value
    if isinstance(value, _PLAIN):
        return str(value)
    if depth >= DEPTH or id(value) in seen:
        return None
    seen = seen | {id(value)}
    inner = {name: _outline(_join(path, name), child, depth + 1, seen) for name, child in _children(value)}
    if isinstance(value, (tuple, list)):
        return tuple(inner.values()) if isinstance(value, tuple) else list(inner.values())
    return inner or None


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):  # transformers' ModelOutput is one, with its None fields left out
        yield from ((str(key), item) for key, item in value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=True)
    elif isinstance(value, (tuple, list)):
        yield from ((str(index), item) for index, item in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
    elif isinstance(value, (torch.nn.Module, type)) or callable(value):
        return
    else:
        # Cache objects and their like: their attributes, but only those in which a tensor can be.
        for name, item in getattr(value, "__dict__", {}).items():
            if isinstance(item, (torch.Tensor, list, tuple, dict)) or hasattr(item, "__dict__"):
                yield name, item


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
