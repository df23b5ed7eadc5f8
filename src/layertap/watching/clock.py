"""The events of a training loop that is not edited: batches, backward passes, optimizer steps, steps that AMP skips.

One clock for the process. While someone listens, it replaces seven functions of torch and sets two of torch's global
optimizer hooks; with the last listener gone, torch is as it was. A listener's error never reaches the loop: the
listener gets it, and decides whether it may.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter


class ClockListener(Protocol):
    """A listener to the events of a training loop. Every method is called in the loop's own thread."""

    def on_batch(self, loader: int, data: int, index: int, ahead: bool, batch: Any) -> None:
        """A DataLoader over this data set gave its `index`-th batch; `ahead`: to a library that fetches more than is in
        use."""

    def on_exhausted(self, loader: int) -> None:
        """A DataLoader has no more batches."""

    def on_backward(self, loss: torch.Tensor | None) -> None:
        """A backward pass begins, from this scalar if it is one; as it was before an AMP scaler multiplied it."""

    def after_backward(self) -> None:
        """It is over."""

    def on_compiled(self, module: nn.Module) -> None:
        """torch.compile made this wrapper, or `module.compile()` was called."""

    def on_built(self, optimizer: Optimizer) -> None:
        """An optimizer was made."""

    def before_update(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""

    def after_update(self, optimizer: Optimizer) -> None:
        """It has stepped."""

    def on_skipped(self, optimizer: Optimizer) -> None:
        """An AMP scaler found Inf or NaN in the gradients and left this optimizer's step out."""

    def failed(self, error: Exception, event: str) -> bool:
        """The listener's own error; returns whether the loop is never_raise it."""


_lock = threading.RLock()
_listeners: tuple[ClockListener, ...] = ()
_undo: list[Callable[[], None]] = []
_pid = 0


def listen(listener: ClockListener) -> None:
    """Begins to tell `listener` what happens."""
    global _listeners, _pid
    with _lock:
        if not _listeners:
            _pid = os.getpid()
            _install()
        _listeners = (*_listeners, listener)


def forget(listener: ClockListener) -> None:
    """Ends it; the last to go puts back what was replaced."""
    global _listeners
    with _lock:
        _listeners = tuple(other for other in _listeners if other is not listener)
        if not _listeners:
            while _undo:
                _undo.pop()()


def _after_fork() -> None:
    """In a forked child, which may train too: those who listen in the parent have their say about it."""
    global _lock, _listeners, _pid
    _lock = threading.RLock()
    _pid = os.getpid()
    before, _listeners = _listeners, ()
    while _undo:
        _undo.pop()()
    for listener in before:
        child = getattr(listener, "forked", lambda: None)()
        if child is not None:
            child.begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def listeners() -> tuple[ClockListener, ...]:
    """Who listens now."""
    return _listeners


def _tell(event: str, *given: Any) -> None:
    if os.getpid() != _pid:  # a DataLoader's worker, forked from a process that is watched
        return
    for listener in _listeners:
        try:
            getattr(listener, event)(*given)
        except Exception as error:  # a watcher must never end what it watches
            if not listener.failed(error, event):
                raise


def _install() -> None:
    pre = register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: _tell("before_update", optimizer))
    post = register_optimizer_step_post_hook(lambda optimizer, args, kwargs: _tell("after_update", optimizer))
    _undo.extend((pre.remove, post.remove))
    _replace(torch.autograd, "backward", _backward)
    _replace(_BaseDataLoaderIter, "__next__", _next_batch)
    _replace(GradScaler, "scale", _scale)
    _replace(GradScaler, "step", _scaler_step)
    _replace(Optimizer, "__init__", _build)
    _replace(torch, "compile", _compile)
    _replace(nn.Module, "compile", _compile_in_place)


def _replace(place: Any, name: str, replacement: Callable[..., Any]) -> None:
    original = getattr(place, name)

    @functools.wraps(original)
    def around(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    def undo() -> None:
        if getattr(place, name) is around:  # what someone else has put above it stays
            setattr(place, name, original)

    setattr(place, name, around)
    _undo.append(undo)


def _backward(original: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
    if torch._C._current_graph_task_id() != -1:  # checkpointing, in the middle of a backward pass
        return original(tensors, *args, **kwargs)
    _tell("on_backward", _scaled.pop(id(tensors), None) if id(tensors) in _scaled else _scalar(tensors))
    result = original(tensors, *args, **kwargs)
    _tell("after_backward")
    return result


def _next_batch(original: Callable[..., Any], iterator: Any) -> Any:
    loader = _numbers.of(iterator._index_sampler)
    try:
        batch = original(iterator)
    except StopIteration:
        _tell("on_exhausted", loader)
        raise
    caller = sys._getframe(2).f_globals.get("__name__", "")  # past the replacement itself
    data = _numbers.of(iterator._dataset)
    _tell("on_batch", loader, data, iterator._num_yielded - 1, caller.startswith("accelerate."), batch)
    return batch


class _Numbers:
    """A number for an object as long as it lives: its id is given again as soon as it is gone, to the next epoch's."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._next = itertools.count(1)

    def of(self, thing: Any) -> int:
        reference, number = self._known.get(id(thing), (None, 0))
        if reference is not None and reference() is thing:
            return number
        try:
            reference = weakref.ref(thing, functools.partial(self._gone, id(thing)))
        except TypeError:  # a plain list
            return -id(thing)
        number = next(self._next)
        self._known[id(thing)] = reference, number
        return number

    def _gone(self, key: int, reference: weakref.ref[Any]) -> None:
        if self._known.get(key, (None,))[0] is reference:
            del self._known[key]


_numbers = _Numbers()


_scaled: dict[int, torch.Tensor] = {}
"""Losses under way from an AMP scaler to their backward pass: id of the scaled one → the loss itself."""


def _scale(original: Callable[..., Any], scaler: GradScaler, outputs: Any) -> Any:
    result = original(scaler, outputs)
    loss = _scalar(outputs)
    if loss is not None and result is not outputs:
        _scaled.clear()  # one loss is under way at a time; those that never went backward are forgotten here
        _scaled[id(result)] = loss
    return result


def _scaler_step(original: Callable[..., Any], scaler: GradScaler, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(optimizer, Optimizer):  # a wrapper of someone's own
        return original(scaler, optimizer, *args, **kwargs)
    seen: list[Optimizer] = []
    handle = optimizer.register_step_post_hook(lambda *_: seen.append(optimizer))
    try:
        result = original(scaler, optimizer, *args, **kwargs)
    finally:
        handle.remove()
    if not seen:
        _tell("on_skipped", optimizer)
    return result


def _build(original: Callable[..., Any], optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
    original(optimizer, *args, **kwargs)
    _tell("on_built", optimizer)


def _compile(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    compiled = original(*args, **kwargs)
    if isinstance(compiled, nn.Module):
        _tell("on_compiled", compiled)
    return compiled


def _compile_in_place(original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    result = original(module, *args, **kwargs)
    _tell("on_compiled", module)
    return result


def _scalar(tensors: Any) -> torch.Tensor | None:
    if isinstance(tensors, torch.Tensor):
        tensors = (tensors,)
    if isinstance(tensors, Iterable):
        found = list(tensors) if isinstance(tensors, (tuple, list)) else []
        if len(found) == 1 and isinstance(found[0], torch.Tensor) and found[0].numel() == 1:
            return found[0].detach()
    return None
