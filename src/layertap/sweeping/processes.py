"""Tasks in processes of their own: a fresh interpreter and a clean environment each; as many as memory allows."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from layertap.messages import tr
from layertap.sweeping import memory
from layertap.sweeping.task import write_json

# The interpreter finds what the caller's does, in the same order, and nothing of the working directory besides.
_BOOT = (
    "import json, sys; sys.path[:] = json.load(open(sys.argv[1], encoding='utf-8'))['sys_path']; "
    "from layertap.sweeping.worker import run; run(sys.argv[1])"
)
POLL = 0.02
_TAIL = 12
"""Lines of a dead process's output that its error shows."""


@dataclass(kw_only=True)
class Job:
    """One task, and what became of it."""

    name: str
    task: Mapping[str, Any]
    folder: Path
    """Where the task, its outcome and its output are written. Who asked for the job removes it."""
    environment: Mapping[str, str]
    timeout: float
    command: tuple[str, ...] = ()
    """A program to run in place of a worker."""
    outcome: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    log: str = ""
    seconds: float = 0.0
    peak: int = 0
    """The most memory that it held, in bytes."""
    _process: subprocess.Popen[bytes] | None = None
    _output: IO[bytes] | None = None
    _began: float = 0.0

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        task = self.folder / "task.json"
        write_json(task, self.task)
        self._output = (self.folder / "output.txt").open("wb")
        self._began = time.monotonic()
        words = self.command or (sys.executable, "-c", _BOOT, str(task))
        try:
            self._process = subprocess.Popen(
                words,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that whatever it starts ends with it
            )
        except OSError as error:
            self.error = f"{words[0]}: {error.strerror or error}"
            self._close()

    def done(self) -> bool:
        """Whether it has ended; one that takes too long is ended."""
        if self._process is None:
            return True
        self.peak = max(self.peak, memory.peak_of(self._process.pid))
        self.seconds = time.monotonic() - self._began
        code = self._process.poll()
        if code is None:
            if self.seconds < self.timeout:
                return False
            self.kill()
            self.error = tr("sweeping.timeout", timeout=self.timeout)
            return True
        self.kill()  # what it may have left running
        self._read(code)
        return True

    def kill(self) -> None:
        """Ends it and whatever it started."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._close()

    def _read(self, code: int) -> None:
        self.log = (self.folder / "output.txt").read_text(encoding="utf-8", errors="replace")
        if self.command:
            self.error = (
                ""
                if code == 0
                else tr("sweeping.command_failed", command=self.command[0], value=code, log=_tail(self.log))
            )
            return
        try:
            self.outcome = json.loads((self.folder / "outcome.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            how = (
                tr("sweeping.killed", name=signal.Signals(-code).name)
                if code < 0
                else tr("sweeping.exit_code", value=code)
            )
            memory_too = tr("sweeping.memory") if code == -signal.SIGKILL else ""
            self.error = tr(
                "sweeping.process", how=how, memory_too=memory_too, value=_tail(self.log) or tr("sweeping.silent")
            )
            return
        self.error = self.outcome.get("error", "")
        self.log += self.outcome.get("trace", "")

    def _close(self) -> None:
        if self._output is not None:
            self._output.close()
            self._output = None


def run_jobs(jobs: Sequence[Job], at_once: int, notify: Callable[[Job, str], None]) -> Iterator[Job]:
    """Runs the jobs, hands each out when it has ended, and reports when one starts. Ends all of them on any exception.

    A further process is started where the machine has room for as much as the largest so far has taken.
    """
    waiting, running = list(jobs), list[Job]()
    largest = memory.FIRST_GUESS
    try:
        while waiting or running:
            while waiting and (not running or (len(running) < at_once and _room(running, largest))):
                job = waiting.pop(0)
                job.start()
                running.append(job)
                notify(job, "started")
            ended = [job for job in running if job.done()]
            largest = max([largest, *(job.peak for job in (*running, *ended))])
            for job in ended:
                running.remove(job)
                yield job
            if not ended:
                time.sleep(POLL)
    finally:
        for job in running:
            job.kill()


def _room(running: Sequence[Job], largest: int) -> bool:
    """Whether another one fits, when those that run have grown to the size of the largest."""
    growing = sum(max(0, largest - job.peak) for job in running)
    return memory.available() - growing - memory.LEFT_ALONE >= largest


def remove(folder: Path) -> None:
    """Removes a folder of a job."""
    shutil.rmtree(folder, ignore_errors=True)


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_TAIL:])
