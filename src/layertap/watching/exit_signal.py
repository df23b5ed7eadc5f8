"""Ends of a process that run no `atexit` function: `os._exit`, `os.abort`, `os.exec…`, a signal without a handler.

What is to be saved is saved first; then the process ends as it would have, by the same code or signal. A Python handler
for SIGTERM would not do: frameworks look whether there is one and leave theirs out, and none runs while the main thread
waits in a collective. So `faulthandler`, which Python's own table of handlers has no record of, writes to a pipe, and a
thread that reads it saves.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

Save = Callable[[str], None]
"""Saves what there is; is given what ends the process, in words."""

ENDED_WELL = "os._exit(0)"
"""How a forked process ends that did what it should."""
LONGEST = 20.0
"""Seconds that saving may take once a signal has come; then the process ends all the same."""
_SIGNALS = ("TERM", "HUP", "USR1", "USR2", "XCPU", "QUIT", "ALRM")
_EXITS = ("_exit", "abort", "execv", "execve")
_in_turn = threading.RLock()

_savers: list[Save] = []
_originals: dict[str, tuple[Any, Any]] = {}
_pipes: dict[int, tuple[int, int, int]] = {}
"""Signal → where a pipe is read and written, and the C handler that writes."""
_pid = 0


def before_sudden_end(save: Save) -> None:
    """Has `save` called before this process ends without its `atexit` functions."""
    global _pid
    if not _savers:
        _pid = os.getpid()
        _wrap_exits()
        _listen()
    _savers.append(save)


def no_longer(save: Save) -> None:
    """Takes that back; with the last one everything is as it was."""
    if save in _savers:
        _savers.remove(save)
    if not _savers:
        _unwrap_exits()
        _stop_listening()


def _save(what: str) -> None:
    if os.getpid() != _pid:
        return
    with _in_turn:
        for save in _savers.copy():
            with contextlib.suppress(Exception):  # the process is ending; the others are saved all the same
                save(what)


def _wrap_exits() -> None:
    for name in _EXITS:
        original = getattr(os, name, None)
        if original is None:
            continue

        @functools.wraps(original)
        def wrapper(*args: Any, name: str = name, original: Any = original) -> Any:
            shown = ", ".join(map(repr, args)) if name == "_exit" else ""
            _save(ENDED_WELL if name == "_exit" and args == (0,) else f"os.{name}({shown})")
            return original(*args)

        _originals[name] = (wrapper, original)
        setattr(os, name, wrapper)


def _unwrap_exits() -> None:
    for name, (wrapper, original) in _originals.items():
        if getattr(os, name) is wrapper:
            setattr(os, name, original)
    _originals.clear()


def _listen() -> None:
    if sys.platform == "win32":
        return
    for name in _SIGNALS:
        number = getattr(signal, f"SIG{name}", None)
        if number is None or signal.getsignal(number) is not signal.SIG_DFL or _handler(number) != 0:
            continue
        read, write = os.pipe()
        os.set_blocking(write, False)
        faulthandler.register(number, file=write, all_threads=False, chain=False)
        _pipes[number] = (read, write, _handler(number))
    if _pipes:
        pipes = {read: number for number, (read, _, _) in _pipes.items()}
        threading.Thread(target=_await, args=(pipes,), name="layertap-exit_signal", daemon=True).start()


def _stop_listening() -> None:
    for number, (_, write, ours) in _pipes.items():
        if _handler(number) == ours:
            faulthandler.unregister(number)
            os.close(write)  # ends the thread; with a handler of someone else's above ours the pipe has to stay
    _pipes.clear()


def _await(pipes: dict[int, int]) -> None:
    while pipes:
        ready, _, _ = select.select(list(pipes), [], [])
        for read in ready:
            if not os.read(read, 1 << 16):
                os.close(read)
                del pipes[read]
                continue
            number = pipes[read]
            threading.Timer(LONGEST, _die, [number]).start()
            _save(signal.Signals(number).name)
            _die(number)


def _die(number: int) -> None:
    faulthandler.unregister(number)  # what was there before: the signal's own effect
    os.kill(os.getpid(), number)


def _handler(number: int) -> int:
    """The address of the C handler of a signal, 0 where it has none: Python's own table reports only of Python's."""
    handlers = (ctypes.c_void_p * 64)()  # struct sigaction is smaller everywhere, and begins with the handler
    ctypes.CDLL(None).sigaction(number, None, ctypes.byref(handlers))
    return handlers[0] or 0


def _after_fork() -> None:
    """In a forked child: the parent's exit_signal are not its own, and signals end it as they would."""
    global _in_turn
    _in_turn = threading.RLock()
    _savers.clear()
    _unwrap_exits()
    for number, (read, write, ours) in _pipes.items():
        if _handler(number) == ours:
            faulthandler.unregister(number)
        os.close(read)
        os.close(write)
    _pipes.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
