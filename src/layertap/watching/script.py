"""A script that is not edited: what `layertap watch` sets up around it, and what happens inside.

Outside (`run`): the command is started with a folder on PYTHONPATH whose sitecustomize waits for torch's first
optimizer, so it works for `python train.py`, `python -m package`, torchrun and whatever else ends in a Python. Inside
(`install`): the clock is listened to, and the models behind each optimizer are watched.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import sys
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from layertap.errors import BadArgument, LayertapError
from layertap.messages import tr
from layertap.result import jsonable
from layertap.watching.signals import run_forwarding

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim.optimizer import Optimizer

    from layertap.watching.loop import Watch

CONFIG, NOTES = "LAYERTAP_WATCH", "LAYERTAP_WATCH_NOTES"
"""Environment variables: the options as JSON, and the folder where each process says what it watched."""

MOST = 8
"""Models that one process has watched: a search over a thousand small ones is not what anybody means."""

log = logging.getLogger("layertap")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRun:
    """What became of one model in one process."""

    run: str
    model: str
    pid: int
    rank: int
    closed: bool
    """False when the process ended without notice: killed, or by os._exit."""
    receipt: str
    fired: int
    triggers: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a watched command ended."""

    code: int
    """Its exit code; 128 + n when signal n ended it."""
    watched: list[WatchedRun] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def run(command: Sequence[str], options: dict[str, Any]) -> Outcome:
    """Runs a command with every Python in it watched; its input, output and exit code are its own."""
    if not command:
        raise BadArgument(tr("watch.no_command"))
    with tempfile.TemporaryDirectory(prefix="layertap-watch-") as notes:
        inject = str(Path(__file__).with_name("inject"))
        paths = [inject, *filter(None, [os.environ.get("PYTHONPATH")])]
        given = {CONFIG: json.dumps(jsonable(options)), NOTES: notes, "PYTHONPATH": os.pathsep.join(paths)}
        try:
            code = run_forwarding(command, {**os.environ, **given})
        except OSError as error:
            raise BadArgument(tr("watch.cannot_run", command=command[0], strerror=error.strerror or error)) from None
        entries = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(notes).glob("*.json"))]
    return Outcome(
        code=code if code >= 0 else 128 - code,
        watched=[WatchedRun(**item) for item in entries if "run" in item],
        problems=[str(item["problem"]) for item in entries if "problem" in item],
    )


def install(optimizer: Optimizer) -> None:
    """In the script's own process, when its first optimizer was made."""
    from layertap.capture.exit_signal import keep_interrupts
    from layertap.watching.config import read_config

    scout = Scout(read_config(json.loads(os.environ[CONFIG])))
    keep_interrupts()
    scout.mind_crashes()
    scout.begin()
    try:
        scout.on_built(optimizer)
    except Exception as error:  # the script must run, watched or not
        if not scout.failed(error, "on_built"):
            raise


class Scout:
    """Waits for optimizers, and has the models behind them watched."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self._watches: list[Watch] = []
        self._made = 0
        self._missed: set[str] = set()
        self._built: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._forked = False
        self._pid = os.getpid()

    def begin(self) -> None:
        """Begins to listen, in this process."""
        from layertap.watching import clock, exit_signal

        atexit.register(self.close)
        exit_signal.before_sudden_end(self._ends_suddenly)
        clock.listen(self)

    def forked(self) -> Scout:
        """The one of a forked child: it knows the optimizers, and watches none of them yet."""
        scout = Scout(self._config)
        scout._built.update(self._built)
        scout._forked = True
        return scout

    def on_built(self, optimizer: Optimizer) -> None:
        from layertap.watching.find import models_of, unwrap
        from layertap.watching.loop import Watch

        self._built.add(optimizer)
        self._retire()
        known = {id(parameter) for watch in self._watches for parameter in watch.model.parameters()}
        if all(id(parameter) in known for group in optimizer.param_groups for parameter in group["params"]):
            return
        if self._made >= MOST:
            self._missed.add(tr("watch.most_models", MOST=MOST))
            return
        models = models_of(optimizer, self._config.model)
        if not models:
            wanted = f"no {self._config.model!r}" if self._config.model else tr("watch.no_module")
            self._missed.add(tr("watch.other_module", name=type(optimizer).__name__, wanted=wanted))
        watched = {id(watch.model) for watch in self._watches}
        for model in models:
            if id(unwrap(model)[0]) in watched:
                continue
            try:
                watch = Watch(model, self._config)
            except LayertapError as error:
                if self._config.strict:
                    raise
                self._missed.add(tr("watch.cannot_watch", name=type(model).__name__, error=error))
                log.error(tr("watch.log_cannot"), type(model).__name__, error)
                continue
            if watch.active:
                self._watches.append(watch)
                self._made += 1
                self._tell(watch)

    def on_batch(self, loader: int, data: int, index: int, ahead: bool, batch: Any) -> None:
        pass

    def on_compiled(self, module: nn.Module) -> None:
        pass

    def after_backward(self) -> None:
        pass

    def on_exhausted(self, loader: int) -> None:
        pass

    def on_backward(self, loss: torch.Tensor | None) -> None:
        if self._forked:  # the child trains with an optimizer that the parent made
            self._forked = False
            for optimizer in list(self._built):
                self.on_built(optimizer)

    def before_update(self, optimizer: Optimizer) -> None:
        pass

    def after_update(self, optimizer: Optimizer) -> None:
        pass

    def on_skipped(self, optimizer: Optimizer) -> None:
        pass

    def failed(self, error: Exception, event: str) -> bool:
        self._missed.add(tr("watch.search_failed", name=type(error).__name__, error=error))
        log.error(tr("watch.log_search"), type(error).__name__, error)
        return not self._config.strict

    def mind_crashes(self) -> None:
        """An error that ends the script brings the rings to disk before the traceback is printed."""
        before = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            for watch in self._watches:
                with contextlib.suppress(Exception):
                    watch.crashed(error)
            before(kind, error, trace)

        sys.excepthook = hook

    def _ends_suddenly(self, what: str) -> None:
        for watch in self._watches:
            watch.ends_suddenly(what)
        self.close()

    def close(self) -> None:
        from layertap.watching import clock, exit_signal

        if os.getpid() != self._pid:  # a child that was forked, and ends in its own way
            return
        clock.forget(self)
        exit_signal.no_longer(self._ends_suddenly)
        for watch in self._watches:
            watch.close()
        self._retire()
        for number, problem in enumerate(sorted(self._missed)):
            self._write(f"{os.getpid()}-problem-{number}", {"problem": problem})

    def _retire(self) -> None:
        """Reports the watches that have ended, and lets go of them."""
        for watch in [watch for watch in self._watches if watch.closed]:
            watch.close()
            self._tell(watch, closed=True)
            self._watches.remove(watch)

    def _tell(self, watch: Watch, *, closed: bool = False) -> None:
        entries = {
            "run": str(watch.path),
            "model": type(watch.model).__name__,
            "pid": os.getpid(),
            "rank": watch.rank,
            "closed": closed,
            "receipt": str(watch.receipt) if closed else "",
            "fired": len(watch.receipt.fired) if closed else 0,
            "triggers": [str(report) for report in watch.reports] if closed else [],
        }
        self._write(f"{os.getpid()}-{watch.path.name}", entries)

    @staticmethod
    def _write(name: str, entries: dict[str, Any]) -> None:
        folder = Path(os.environ.get(NOTES, ""))
        with contextlib.suppress(OSError):  # whoever asked is gone; the run is on disk all the same
            (folder / f"{name}.json").write_text(json.dumps(entries), encoding="utf-8")
