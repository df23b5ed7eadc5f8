"""How a call of a module is seen: one door around `nn.Module._call_impl`, one around each `forward`.

Why not `register_forward_hook`? A module with hooks takes another path through torch: `nn.TransformerEncoderLayer`
leaves its fused kernel as soon as one of its children carries a hook, so the tool would change what it measures. Hooks
also miss `self.scan.forward(x)`, travel along in `deepcopy` and `pickle`, and see an output before later hooks have
changed it. The doors stand in the class, are keyed by the module's identity, and go when the last tap is gone.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class Tap(Protocol):
    """What wants to see the calls of one module."""

    def enter(self, args: Args, kwargs: Kwargs, direct: bool) -> tuple[Args, Kwargs, Any]:
        """Sees a call begin (`direct`: as `module.forward(…)`); returns its arguments and a token for `leave`."""

    def leave(self, token: Any, output: Any) -> Any:
        """Sees the call end; returns its output."""


class _Inside(threading.local):
    """The modules that this thread is inside of; a `forward` within its own module's call is not a new call."""

    def __init__(self) -> None:
        self.modules: set[int] = set()


_lock = threading.RLock()
_taps: dict[int, tuple[Tap, ...]] = {}
_doors: dict[type[nn.Module], tuple[int, Any]] = {}
_inside = _Inside()
_call_impl: Callable[..., Any] = nn.Module._call_impl
_ABSENT = object()


def attach(taps: Mapping[nn.Module, Tap]) -> None:
    """Puts one tap on each of these modules."""
    with _lock:
        for module, tap in taps.items():
            _taps[id(module)] = (*_taps.get(id(module), ()), tap)
            _open(type(module))
        if _taps:
            nn.Module._call_impl = _tapped_call  # type: ignore[method-assign]


def detach(taps: Mapping[nn.Module, Tap]) -> None:
    """Takes them off again; with the last one the doors are gone, and torch is as it was."""
    with _lock:
        for module, tap in taps.items():
            rest = tuple(t for t in _taps.get(id(module), ()) if t is not tap)
            if rest:
                _taps[id(module)] = rest
            else:
                _taps.pop(id(module), None)
            _close(type(module))
        if not _taps:
            nn.Module._call_impl = _call_impl  # type: ignore[method-assign]


def attached() -> int:
    """How many modules are tapped now."""
    return len(_taps)


def wanted(module: nn.Module) -> bool:
    """Whether any tap takes tensors from this module; one that only counts calls says so by its `idle`."""
    return any(not getattr(tap, "idle", False) for tap in _taps.get(id(module), ()))


@contextmanager
def unseen(module: nn.Module) -> Iterator[None]:
    """Around layertap's own use of a module: `module.forward(…)` in this thread is seen by no tap."""
    nested = id(module) in _inside.modules
    _inside.modules.add(id(module))
    try:
        yield
    finally:
        if not nested:
            _inside.modules.discard(id(module))


def _tapped_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    # First of all: Dynamo traces this too, and would make one graph for each identity that it looks up.
    if compiling():
        return _call_impl(self, *args, **kwargs)
    taps = _taps.get(id(self))
    if taps is None:
        return _call_impl(self, *args, **kwargs)
    return around(self, taps, functools.partial(_call_impl, self), args, kwargs, direct=False)


def compiling() -> bool:
    """Whether this thread is making a graph: what flows through it meanwhile is no data of anybody's run."""
    if torch.compiler.is_dynamo_compiling():
        return True  # a constant for Dynamo; what follows is for those who trace by calling
    if torch._C._get_tracing_state() is not None:
        return True
    # That flag is the whole process's; the modes by which a graph is made are this thread's.
    return torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack() > 0


def around(
    module: nn.Module, taps: Iterable[Tap], call: Callable[..., Any], args: Args, kwargs: Kwargs, *, direct: bool
) -> Any:
    """A call of the module, seen by these taps."""
    tokens = []
    for tap in taps:
        args, kwargs, token = tap.enter(args, kwargs, direct)
        tokens.append((tap, token))
    nested = id(module) in _inside.modules
    _inside.modules.add(id(module))
    try:
        output = call(*args, **kwargs)
    finally:
        if not nested:
            _inside.modules.discard(id(module))
    for tap, token in reversed(tokens):
        output = tap.leave(token, output)
    return output


def _open(cls: type[nn.Module]) -> None:
    count, original = _doors.get(cls, (0, _ABSENT))
    if count == 0:
        original = cls.__dict__.get("forward", _ABSENT)
        if not issubclass(cls, torch.jit.ScriptModule):  # its methods belong to the compiler
            cls.forward = _door(cls.forward)
    _doors[cls] = (count + 1, original)


def _close(cls: type[nn.Module]) -> None:
    count, original = _doors[cls]
    if count > 1:
        _doors[cls] = (count - 1, original)
        return
    del _doors[cls]
    if issubclass(cls, torch.jit.ScriptModule):
        return
    if original is _ABSENT:
        del cls.forward
    else:
        cls.forward = original


def _door(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def tapped_forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if compiling():
            return forward(self, *args, **kwargs)
        taps = _taps.get(id(self))
        if taps is None or id(self) in _inside.modules:
            return forward(self, *args, **kwargs)
        return around(self, taps, functools.partial(forward, self), args, kwargs, direct=True)

    return tapped_forward
