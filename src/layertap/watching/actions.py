"""What a trigger does besides bringing the ring to disk: stop the training, run a command, call a URL."""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path

from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.watching.trigger_report import TriggerReport

LONGEST = 60.0
"""Seconds that a command or a URL may take."""

log = logging.getLogger("layertap")


def check_action(action: object) -> str:
    """An action that can be done: `snapshot`, `stop`, `command: …`, or a URL."""
    text = str(action)
    if text in ("snapshot", "stop") or text.startswith(("http://", "https://")):
        return text
    if text.startswith("command:") and text.removeprefix("command:").strip():
        return text
    raise BadArgument(tr("watch.action", text=text))


def act(actions: Iterable[str], report: TriggerReport, run: Path | None) -> None:
    """Does what is asked, in threads of its own: neither the training nor what records it waits.

    A command gets the report as JSON on its input and RULE, STEP, RUN in its environment (LAYERTAP_…); a URL gets it by
    POST. `stop` sends this process SIGTERM, as a scheduler does: a framework that handles it saves a checkpoint.
    """
    text = json.dumps({**report.to_dict(), "run": str(run or "")})
    for action in actions:
        if action.startswith("command:"):
            _begin(lambda action=action: _command(action.removeprefix("command:"), text, report, run))  # type: ignore[misc]
        elif action.startswith("http"):
            _begin(lambda action=action: _post(action, text))  # type: ignore[misc]
        elif action == "stop":
            log.warning(tr("watch.log_stop"), report.rule, report.step)
            os.kill(os.getpid(), signal.SIGTERM)


def _begin(work: Callable[[], None]) -> None:
    def guarded() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a pager that is out of order must not harm the training
            log.error(tr("watch.log_action"), type(error).__name__, error)

    threading.Thread(target=guarded, name="layertap-action").start()


def _command(command: str, text: str, report: TriggerReport, run: Path | None) -> None:
    variables = {"LAYERTAP_RULE": report.rule, "LAYERTAP_STEP": str(report.step), "LAYERTAP_RUN": str(run or "")}
    environment = {name: value for name, value in os.environ.items() if name != "LAYERTAP_WATCH"}
    done = subprocess.run(
        shlex.split(command), input=text, text=True, env={**environment, **variables}, timeout=LONGEST, check=False
    )
    if done.returncode:
        log.error(tr("watch.log_command"), command.strip(), report.rule, done.returncode)


def _post(url: str, text: str) -> None:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, text.encode(), headers, method="POST")
    urllib.request.urlopen(request, timeout=LONGEST).close()
