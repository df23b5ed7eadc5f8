"""The process of one mode: `python -m layertap.sweeping.worker TASK.json`. What it found is in files when it ends.

A task has a `kind`: `record` (the mode's run), `teach`, `sensitivity`, `inject` and `explain`. The outcome,
`outcome.json` beside the task, is written last; a process that dies leaves none.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any, NoReturn

from layertap.errors import LayertapError
from layertap.sweeping.task import write_json

KINDS = {
    "record": "layertap.sweeping.recording:record_mode",
    "teach": "layertap.sweeping.teaching:teach",
    "sensitivity": "layertap.sweeping.ranking:rank",
    "inject": "layertap.sweeping.ranking:inject",
    "explain": "layertap.sweeping.explaining:explain_here",
}


def main(path: str) -> int:
    """Does the task in a file; returns the exit code."""
    task: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    outcome = Path(path).with_name("outcome.json")
    module, _, name = KINDS[task["kind"]].partition(":")
    try:
        found = getattr(import_module(module), name)(task)
    except LayertapError as error:
        write_json(outcome, {"error": str(error), "trace": ""})
        return 2
    except Exception as error:  # noqa: BLE001  whatever the user's code raises is the mode's error
        text = traceback.format_exception_only(error)[-1].strip()
        write_json(outcome, {"error": text, "trace": traceback.format_exc()})
        return 2
    write_json(outcome, {"error": "", **found})
    return 0


def run(path: str) -> NoReturn:
    """The whole life of the process. It ends with the task, whatever threads the mode has left, and with the sweep."""
    Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    code = main(path)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    run(sys.argv[1])
