"""How the calls of a module are seen: the class of that one instance is exchanged for a tapped subclass.

Why not `register_forward_hook`? A module with hooks takes another path through torch: `nn.TransformerEncoderLayer`
leaves its fused kernel as soon as one of its children carries a hook, so the tool would change what it measures. Hooks
also miss `self.scan.forward(x)`, travel along in `deepcopy` and `pickle`, and see an output before later hooks have
changed it. Why not a patch of `nn.Module`? It costs every module of the process, and undoes the patches of others.

A tap sees what flows: the arguments as `forward` receives them, after the user's forward pre-hooks, and the output as
the caller receives it, after the user's forward hooks. Nothing is left in the module's `__dict__`, so copies and
pickles contain no taps. classes.py makes the tapped classes; graph_taps.py holds the taps that a compiler sees.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, MethodType
from typing import Any, Protocol

import torch
from torch import nn
from torch.fx import _symbolic_trace
from torch.nn.modules import module as torch_module

from layertap.capture import short_way
from layertap.capture.classes import Kind, asks_own_type, class_of, put_off, put_on, set_class

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Tokens = list[tuple["Tap", Any]]


class Tap(Protocol):
    """What receives the calls of one module. A tap may also have `stopped(token, error)`: the call has raised."""

    def enter(self, args: Args, kwargs: Kwargs, direct: bool) -> tuple[Args, Kwargs, Any]:
        """Sees a call begin (`direct`: as `module.forward(…)`); returns its arguments and a token for `leave`."""

    def leave(self, token: Any, output: Any) -> Any:
        """Sees the call end; returns its output."""


class _UnderWay(short_way.UnderWayBase):
    """The modules whose calls are under way in a thread; a `forward` within its own module's call is not a new call.

    `waiting`: calls whose arguments still pass forward pre-hooks; the taps enter them as `forward` is called.
    `unseen`: whether layertap itself runs a model in this thread, which is no call of the user's.
    """

    def __init__(self) -> None:
        self.modules, self.waiting, self.unseen = set(), {}, False


class _ThisThread(threading.local):
    def __init__(self) -> None:
        self.calls = _UnderWay()


_lock = threading.RLock()
_taps: dict[int, tuple[Tap, ...]] = {}
_thread = _ThisThread()
_call: Any = nn.Module.__call__
# Asked at every call of every module.
_dynamo_compiles, _compiles = torch.compiler.is_dynamo_compiling, torch.compiler.is_compiling
_tracing_state: Any = torch._C._get_tracing_state


def attach(taps: Mapping[nn.Module, Tap]) -> dict[nn.Module, str]:
    """Puts one tap on each of these modules; returns those whose calls cannot be seen, and why."""
    refused = {}
    with _lock:
        for module, tap in taps.items():
            _taps[id(module)] = (*_taps.get(id(module), ()), tap)
            why = put_on(module, CALLS)
            _cover(module)
            if why:
                refused[module] = why
    return refused


def detach(taps: Mapping[nn.Module, Tap]) -> None:
    """Takes them off again. A class that somebody else has given the module meanwhile stays."""
    with _lock:
        for module, tap in taps.items():
            rest = tuple(t for t in _taps.get(id(module), ()) if t is not tap)
            if rest:
                _taps[id(module)] = rest
            else:
                _taps.pop(id(module), None)
                _uncover(module)
                put_off(module, CALLS)


def attached() -> int:
    """How many modules are tapped now."""
    return len(_taps)


def wanted(module: nn.Module) -> bool:
    """Whether any tap takes tensors from this module; one that only counts calls says so by its `idle`."""
    return any(not getattr(tap, "idle", False) for tap in _taps.get(id(module), ()))


@contextmanager
def unseen(module: nn.Module) -> Iterator[None]:
    """Around layertap's own use of a module: `module.forward(…)` in this thread is seen by no tap."""
    inside = _thread.calls.modules
    nested = id(module) in inside
    inside.add(id(module))
    try:
        yield
    finally:
        if not nested:
            inside.discard(id(module))


@contextmanager
def unseen_calls() -> Iterator[None]:
    """Around layertap's own run of a whole model: no call in this thread is seen by a tap that is attached."""
    inside = _thread.calls
    before, inside.unseen = inside.unseen, True
    try:
        yield
    finally:
        inside.unseen = before


def _taps_of(key: int) -> tuple[Tap, ...] | None:
    """The taps that are to see a call of the module with this id; None where it is not tapped."""
    taps = _taps.get(key)
    return () if taps is not None and _thread.calls.unseen else taps


def compiling() -> bool:
    """Whether this thread is making a graph: what flows through it meanwhile is no data of anybody's run."""
    if _dynamo_compiles():
        return True  # a constant for Dynamo; what follows is for those who trace by calling
    if _tracing_state() is not None:
        return True
    # That flag is the whole process's; the modes by which a graph is made are this thread's.
    return _compiles() and torch._C._len_torch_dispatch_stack() > 0


def around(
    module: nn.Module, taps: Iterable[Tap], call: Callable[..., Any], args: Args, kwargs: Kwargs, *, direct: bool
) -> Any:
    """A call of the module, seen by these taps."""
    tokens: Tokens = []
    inside = _thread.calls.modules
    nested = id(module) in inside
    try:
        args, kwargs = _enter(tokens, taps, args, kwargs, direct)
        inside.add(id(module))
        output = call(*args, **kwargs)
    except BaseException as error:
        _stopped(tokens, error)
        raise
    finally:
        if not nested:
            inside.discard(id(module))
    return _leave(tokens, output)


def _enter(tokens: Tokens, taps: Iterable[Tap], args: Args, kwargs: Kwargs, direct: bool) -> tuple[Args, Kwargs]:
    for tap in taps:
        args, kwargs, token = tap.enter(args, kwargs, direct)
        tokens.append((tap, token))
    return args, kwargs


def _leave(tokens: Tokens, output: Any) -> Any:
    for tap, token in reversed(tokens):
        output = tap.leave(token, output)
    return output


def _stopped(tokens: Tokens, error: BaseException) -> None:
    for tap, token in reversed(tokens):
        stopped = getattr(tap, "stopped", None)
        if stopped is not None:
            stopped(token, error)


def _methods(cls: Any) -> dict[str, Any]:
    """What a tapped subclass of `cls` has of its own."""
    restores = asks_own_type(cls)

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        # One frame, in the place of nn.Module's own: modules can be nested as deep as without taps.
        call = cls.__call__
        if compiling() or (call is not _call and _symbolic_trace._is_fx_tracing_flag):
            if restores and torch.compiler.is_dynamo_compiling():
                torch._dynamo.graph_break()  # it asks for its own type, and a graph cannot give that back
            return call(self, *args, **kwargs)
        key = id(self)
        taps, thread = _taps.get(key), _thread.calls
        if taps is None:  # a replica or a copy that was made by hand: it has the class and is not tapped
            put_off(self, CALLS)
            return call(self, *args, **kwargs)
        if thread.unseen:
            taps = ()
        tokens: Tokens = []
        late, inside, all_waiting = False, thread.modules, thread.waiting
        nested, waiting = key in inside, all_waiting.pop(key, None) if all_waiting else None
        try:
            if call is _call and self._compiled_call_impl is None:
                call = cls._call_impl
                late = bool(self._forward_pre_hooks or torch_module._global_forward_pre_hooks)
                late = late and type(self.__dict__.get("forward", _ANY)) is _Method
            if late:
                all_waiting[key] = tokens
            else:
                for tap in taps:
                    args, kwargs, token = tap.enter(args, kwargs, False)
                    tokens.append((tap, token))
            inside.add(key)
            if restores:
                set_class(self, cls)
            output = call(self, *args, **kwargs)
        except BaseException as error:
            _stopped(tokens, error)
            raise
        finally:
            if restores and key in _taps:
                put_on(self, CALLS)
            if not nested:
                inside.discard(key)
            if late:
                all_waiting.pop(key, None)
            if waiting is not None:
                all_waiting[key] = waiting
        for tap, token in reversed(tokens):
            output = tap.leave(token, output)
        return output

    return short_way.methods_of(cls, call=__call__, forward=_Forward(cls), simple=not restores)


class _Forward:
    """`forward` of a tapped class: a call of it from outside of the module's own call is seen.

    A descriptor that hands out the module's own method, so that a call has no frame more than without taps.
    """

    def __init__(self, cls: Any) -> None:
        self._cls = cls

    def __get__(self, module: Any, owner: Any = None) -> Any:
        if module is None:
            return self._cls.forward
        found = self._cls.__dict__.get("forward")
        target = MethodType(found, module) if type(found) is FunctionType else self._of_class(module)
        key, thread = id(module), _thread.calls
        if key in thread.modules:
            return _Method(module, target) if key in thread.waiting else target
        return _Method(module, target) if key in _taps and callable(target) and not compiling() else target

    def _of_class(self, module: Any) -> Any:
        for cls in self._cls.__mro__:
            if "forward" in cls.__dict__:
                found = cls.__dict__["forward"]
                bind = getattr(type(found), "__get__", None)
                return found if bind is None else bind(found, module, self._cls)
        raise AttributeError("forward")


class _Method:
    """What `module.forward` gives while it is tapped: a method like any other, whose calls are seen."""

    def __init__(self, module: nn.Module, target: Any) -> None:
        self._module = module
        self.__wrapped__ = target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if compiling():
            return self.__wrapped__(*args, **kwargs)
        module = self._module
        key = id(module)
        taps = _taps_of(key)
        thread = _thread.calls
        if key in thread.modules and key in thread.waiting:
            # The arguments have passed the user's pre-hooks: now the taps see them.
            args, kwargs = _enter(thread.waiting.pop(key), taps or (), args, kwargs, False)
            taps = None
        if taps is None or key in thread.modules:
            return self.__wrapped__(*args, **kwargs)
        restores = asks_own_type(class_of(module))
        if restores:
            set_class(module, class_of(module))
        try:
            return around(module, taps, self.__wrapped__, args, kwargs, direct=True)
        finally:
            if restores and key in _taps:
                put_on(module, CALLS)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return MethodType if isinstance(self.__wrapped__, MethodType) else _Method

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __eq__(self, other: object) -> bool:
        return bool(self.__wrapped__ == _unwrapped(other))

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __reduce__(self) -> Any:
        return getattr, (self._module, "forward")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.__wrapped__, memo)


def _unwrapped(value: Any) -> Any:
    return value.__wrapped__ if type(value) is _Method else value


def _stored(item: tuple[str, Any]) -> tuple[str, Any]:
    return item[0], _unwrapped(item[1])


CALLS = Kind("calls", _methods, traced=False, stored=_stored)


def _cover(module: nn.Module) -> None:
    """A `forward` in the module's own `__dict__` comes before that of any class; its calls are seen too."""
    own = module.__dict__.get("forward")
    if callable(own) and type(own) is not _Method:
        module.__dict__["forward"] = _Method(module, own)


def _uncover(module: nn.Module) -> None:
    own = module.__dict__.get("forward")
    if type(own) is _Method:
        module.__dict__["forward"] = own.__wrapped__


_ANY = _Method(nn.Identity(), None)


def names_for_calls() -> dict[str, Any]:
    """What tap.c asks at every call of a tapped module."""
    return {"all_taps": _taps, "this_thread": _thread, "module_call": _call}
