"""Signals that reach `layertap watch` reach the command: a scheduler signals only the process that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

# What the process itself brings about (faults, a closed pipe), what cannot be caught, and the end of a child.
_KEPT = ("KILL", "STOP", "CHLD", "SEGV", "BUS", "FPE", "ILL", "SYS", "TRAP", "PIPE", "TTIN", "TTOU", "URG")
_BY_TERMINAL = {signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH, signal.SIGHUP}
"""A terminal sends these to the command as well, since both are in its foreground group."""
LOOK = 0.5
"""Seconds after which the command is looked at, where another thread has taken the signal of its end."""


def run_forwarding(command: Sequence[str], environment: dict[str, str]) -> int:
    """Runs a command to its end; returns its exit code (-n: ended by signal n). OSError: it cannot be run."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may have handlers
        return subprocess.Popen(list(command), env=environment).wait()
    return _Forwarding().run(command, environment)


class _Forwarding:
    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []

    def run(self, command: Sequence[str], environment: dict[str, str]) -> int:
        old: dict[int, Any] = {}
        try:
            # Before the command is started: no signal may end this process and leave the command alone. What is ignored
            # here (nohup) stays ignored, in the command too: a handler would be the default there.
            for number in _forwarded():
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    old[number] = signal.signal(number, self._received)
            self._process = subprocess.Popen(list(command), env=environment)
            for number in self._early:
                self._send(number)
            return self._wait(old.keys())
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def _wait(self, numbers: Any) -> int:
        process = self._process
        assert process is not None
        if not hasattr(signal, "sigtimedwait"):  # macOS
            return process.wait()
        waited = {*numbers, signal.SIGCHLD}
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
        try:
            while process.poll() is None:
                found = signal.sigtimedwait(waited, LOOK)
                if found is not None and found.si_signo != signal.SIGCHLD:
                    # A code above 0 is the kernel's: typed at the terminal, which has signalled the command too.
                    self._forward(found.si_signo, typed=found.si_code > 0)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return process.returncode

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self._process is None:
            self._early.append(number)
        else:
            self._forward(number, typed=number in _BY_TERMINAL and _in_foreground())

    def _forward(self, number: int, *, typed: bool) -> None:
        if not typed or number not in _BY_TERMINAL:
            self._send(number)
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)

    def _send(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)


def _forwarded() -> list[int]:
    kept = {getattr(signal, f"SIG{name}", None) for name in _KEPT}
    return [number for number in signal.valid_signals() if number not in kept] if sys.platform != "win32" else []


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
