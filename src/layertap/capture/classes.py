"""The classes of tapped modules: one subclass for each class and kind of tap, always the same.

A module whose class is exchanged must not find out, nor anybody who looks at it. Its class is a subclass that answers
for the class itself: it is equal to it, its attributes are that class's, assigning to them assigns there, calling it
makes an instance of that class, a subclass of it is a subclass of that class. Assigning to `module.__class__` works,
and the taps stay on. Only `type(module) is X` tells the difference; a class whose methods ask that of themselves
(`asks_own_type`) gets its own class back while its `forward` runs. While Dynamo makes a graph it finds the subclass
with nothing of its own, so it traces, and guards, the methods of the class.
"""

from __future__ import annotations

import contextlib
import dis
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch._guards import CompileContext

from layertap.result import Note

LEFT_OUT = object()


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of tapped class."""

    name: str
    methods: Callable[[Any], dict[str, Any]]
    """From a class to the methods that a tapped subclass of it has of its own."""
    traced: bool
    """Whether Dynamo finds the methods of the subclass, and makes a graph of them."""
    stored: Callable[[tuple[str, Any]], tuple[str, Any]] = lambda item: item
    """How an item of a tapped module's `__dict__` is pickled; as `LEFT_OUT` not at all."""
    lasting: Callable[[Any], bool] = lambda module: False
    """Whether copies of the module are tapped too."""


_set: Callable[[Any, Any], None] = object.__dict__["__class__"].__set__
_made: dict[tuple[int, str], tuple[Any, Any]] = {}
"""(Identity of a class, kind) → the class and its subclass, for good: a second recording finds the graph."""
_known: dict[int, tuple[Kind, Any]] = {}
"""Identity of a tapped class → its kind, and the class that it was made from."""


def put_on(module: nn.Module, kind: Kind) -> str:
    """Gives the module a tapped class of that kind; returns why it cannot have one."""
    kinds, own = _peeled(type(module))
    if kind in kinds:
        return ""
    return _give(module, own, [*kinds, kind])


def put_off(module: nn.Module, kind: Kind) -> None:
    """Takes the tapped class away, if the module still has it."""
    kinds, own = _peeled(type(module))
    if kind in kinds:
        _give(module, own, [other for other in kinds if other is not kind])


def class_of(module: nn.Module) -> Any:
    """The class that the module has without taps."""
    return _peeled(type(module))[1]


def set_class(module: nn.Module, cls: Any) -> None:
    """Gives the module a class, whatever `__class__` means to it."""
    _set(module, cls)


def _peeled(cls: Any) -> tuple[list[Kind], Any]:
    kinds: list[Kind] = []
    while id(cls) in _known:
        kind, cls = _known[id(cls)]
        kinds.insert(0, kind)
    return kinds, cls


def _give(module: nn.Module, own: Any, kinds: list[Kind]) -> str:
    try:
        cls = own
        for kind in kinds:
            cls = _tapped(cls, kind)
        _set(module, cls)
    except Exception as error:  # noqa: BLE001 - a metaclass, or `__init_subclass__`, may raise anything
        _set(module, own)
        return Note("capture.no_class", name=own.__name__, name2=type(error).__name__, error=error)
    return ""


def _tapped(cls: Any, kind: Kind) -> Any:
    key = (id(cls), kind.name)
    if key not in _made:
        _made[key] = (cls, _make(cls, kind))
        _known[id(_made[key][1])] = (kind, cls)
    return _made[key][1]


class _Blank(nn.Module):
    """What a tapped class is made from before it gets its true base."""


def _make(cls: Any, kind: Kind) -> Any:
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    names |= kind.methods(cls)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:  # noqa: N807
        made = super(tapped, self).__reduce_ex__(protocol)
        if kind.lasting(self):
            return made
        made = _plain(made, kind)
        _reduced.module = self  # pickle compares the class that it is given with the next `__class__` that it reads
        return made

    names["__reduce_ex__"] = __reduce_ex__
    if not any("__class__" in base.__dict__ for base in cls.__mro__ if base is not object):
        names["__class__"] = _PatchedClass()
    meta = _transparent(type(cls))
    tapped: Any
    try:
        tapped = type.__new__(meta, cls.__name__, (_Blank,), names)
        # Not from the start: a class may refuse to be subclassed, or keep a list of who did.
        type.__setattr__(tapped, "__bases__", (cls,))
    except TypeError:  # a class with __slots__: no other base can be exchanged for it
        tapped = type.__new__(meta, cls.__name__, (cls,), {**names, "__slots__": ()})
    return tapped


def _plain(made: Any, kind: Kind) -> Any:
    """What `__reduce_ex__` returned, with nothing of taps in it."""
    if not isinstance(made, tuple) or len(made) < 2 or not isinstance(made[1], tuple):
        return made
    function, arguments = _own(made[0]), tuple(map(_own, made[1]))
    rest = made[2:]
    if rest and isinstance(rest[0], dict):
        rest = ({name: value for name, value in map(kind.stored, rest[0].items()) if value is not LEFT_OUT}, *rest[1:])
    return (function, arguments, *rest)


class _Reduced(threading.local):
    module: Any = None


_reduced = _Reduced()


class _PatchedClass:
    """`module.__class__`: a new one that is assigned to it is tapped too."""

    def __get__(self, module: Any, owner: Any = None) -> Any:
        if module is None:
            return type(owner)
        reduced, _reduced.module = _reduced.module is module, None
        return _own(type(module)) if reduced and CompileContext.try_get() is None else type(module)

    def __set__(self, module: Any, value: Any) -> None:
        kinds, _ = _peeled(type(module))
        own = _own(value)
        _set(module, own)
        _give(module, own, kinds)


_metaclasses: dict[int, tuple[Any, Any]] = {}


def _transparent(meta: Any) -> Any:
    """A metaclass like `meta` whose classes answer for the class that they were made from."""
    if id(meta) not in _metaclasses:
        bases = (_Transparent,) if meta is type else (_Transparent, meta)
        _metaclasses[id(meta)] = (meta, type.__new__(type, meta.__name__, bases, {}))
    return _metaclasses[id(meta)][1]


def _own(cls: Any) -> Any:
    return _peeled(cls)[1]


_METHODS = ("__call__", "_call_impl", "forward")
_PLACES = ("__dict__", "__mro__", "__bases__", "__base__", *_METHODS)


def _dynamo_asks(frame: types.FrameType) -> bool:
    if CompileContext.try_get() is not None:
        return True
    asking: types.FrameType | None = frame
    if frame.f_code.co_filename == "<string>":  # a guard as text
        asking = frame.f_back
    return asking is not None and str(asking.f_globals.get("__name__")).startswith(("torch._dynamo", "torch._guards"))


class _Transparent(type):
    """Answers for another class. What Python looks up for an instance does not come by here."""

    def __new__(mcs, name: str, bases: tuple[Any, ...], names: dict[str, Any], **options: Any) -> Any:
        names.setdefault("__module__", sys._getframe(1).f_globals.get("__name__"))
        return types.new_class(name, tuple(map(_own, bases)), options, lambda space: space.update(names))

    def __getattribute__(cls, name: str) -> Any:
        if name in _PLACES and _dynamo_asks(sys._getframe(1)):
            # Dynamo guards what it finds by the places where it found it, so these must be the true ones.
            kind, own = _known[id(cls)]
            hidden = not kind.traced and not asks_own_type(_own(own))
            if not hidden or name not in _METHODS:
                found = type.__getattribute__(cls, name)
                return types.MappingProxyType({"__doc__": None}) if hidden and name == "__dict__" else found
        return getattr(_own(cls), name)

    def __setattr__(cls, name: str, value: Any) -> None:
        setattr(_own(cls), name, value)

    def __delattr__(cls, name: str) -> None:
        delattr(_own(cls), name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return _own(cls)(*args, **kwargs)

    def __eq__(cls, other: object) -> bool:
        if CompileContext.try_get() is not None:
            return cls is other
        return bool(_own(cls) == _own(other))

    def __hash__(cls) -> int:
        return hash(_own(cls))

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _own(cls))

    def __subclasscheck__(cls, subclass: Any) -> bool:
        return issubclass(_own(subclass), _own(cls))

    def __repr__(cls) -> str:
        return repr(_own(cls))

    def __dir__(cls) -> list[str]:
        return dir(_own(cls))


# A class that asks for its own type.

DECORATORS = 4
"""How many decorators of a method are looked through."""

_asks: dict[int, tuple[Any, bool]] = {}


def asks_own_type(cls: Any) -> bool:
    """Whether a method compares its own type by identity: then a subclass could take another way through it.

    >>> class Picky(nn.Linear):
    ...     def forward(self, x):
    ...         return x if type(self) is Picky else -x
    >>> asks_own_type(Picky), asks_own_type(nn.Linear)
    (True, False)
    """
    if id(cls) not in _asks:
        bound = any(isinstance(base.__dict__.get("forward"), classmethod) for base in cls.__mro__)
        _asks[id(cls)] = (cls, bound or any(map(_compares_own_type, _codes_of_forward(cls))))
    return _asks[id(cls)][1]


def _codes_of_forward(cls: Any) -> Iterator[types.CodeType]:
    """What runs in a call, as far as the names of methods tell."""
    own = [base for base in cls.__mro__ if base not in (nn.Module, object)]
    due, met = ["__call__", "forward"], set()
    while due:
        name = due.pop()
        met.add(name)
        for value in [base.__dict__[name] for base in own if name in base.__dict__]:
            for code in _codes(value, 0):
                yield code
                due += [each for each in code.co_names if each not in met]


def _codes(value: Any, depth: int) -> Iterator[types.CodeType]:
    value = getattr(value, "__func__", getattr(value, "fget", value))
    code = getattr(value, "__code__", None)
    if isinstance(code, types.CodeType):
        yield code
    if depth < DECORATORS:
        for cell in getattr(value, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # an empty cell
                if isinstance(cell.cell_contents, types.FunctionType):
                    yield from _codes(cell.cell_contents, depth + 1)


_QUIET = ("PUSH_NULL", "CACHE", "PRECALL", "RESUME", "NOP", "CALL", "CALL_FUNCTION")


def _compares_own_type(code: types.CodeType) -> bool:
    """Whether it compares `type(self)` or `self.__class__` by `is`, or hands it to `super`."""
    if not {"type", "__class__"} & set(code.co_names) or not code.co_varnames:
        return False
    lines = [line for line in dis.get_instructions(code) if line.opname not in _QUIET]
    compares = [
        line.opname == "IS_OP" and lines[number - 1].argval is not None for number, line in enumerate(lines)
    ] + [False]
    for number, line in enumerate(lines):
        before = [each.argval for each in lines[max(number - 2, 0) : number]][::-1]
        of_self = line.opname.startswith("LOAD_FAST") and line.argval == code.co_varnames[0]
        if not (of_self and before[:1] == ["type"]) and not (
            line.argval == "__class__" and before[:1] == [code.co_varnames[0]]
        ):
            continue
        end = number + 1
        while end < len(lines) and lines[end].opname.startswith("LOAD_"):
            if end == number + 1 and lines[end].opname.startswith(("LOAD_ATTR", "LOAD_METHOD")):
                break  # an attribute of the class, its name for instance, is the same
            end += 1
        stored = end == number + 1 < len(lines) and lines[end].opname.startswith("STORE_")
        if compares[end] or "super" in before or (stored and any(compares)):
            return True
    return False
