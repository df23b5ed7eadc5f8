"""The command line: one small file a verb, each calls the public API and has `--json`.

Exit codes: 0 identical or noise (or simply done), 1 fault, 2 bad usage or input, 3 inconclusive.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated

import typer

from layertap import __version__
from layertap.cli import audit, demo, diff, doctor, export, fault, prune, record, report, show, sweep, view, watch
from layertap.cli.screen import problem
from layertap.cli.usage import Command, CommandGroup, translate_titles, usage_error
from layertap.errors import LayertapError
from layertap.messages import tr

app = typer.Typer(
    name="layertap",
    cls=CommandGroup,
    help=tr("cli.about"),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        print(f"layertap {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help=tr("cli.version"))
    ] = False,
) -> None:
    pass


VERBS: dict[str, Callable[..., None]] = {
    "record": record.record,
    "show": show.show,
    "diff": diff.diff,
    "fault": fault.fault,
    "audit": audit.audit,
    "doctor": doctor.doctor,
    "prune": prune.prune,
    "sweep": sweep.sweep,
    "watch": watch.watch,
    "export": export.export,
    "report": report.report,
    "view": view.view,
    "demo": demo.demo,
}
for name, verb in VERBS.items():
    app.command(name, cls=Command, help=tr(f"cli.help_{name}"))(verb)


def main() -> None:
    """Runs the command line; an error of layertap's own is one message, not a traceback.

    Nothing that goes wrong may leave with Python's own exit code 1, which says that a fault was found.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode gets question marks
    translate_titles()
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except LayertapError as error:
        problem(str(error))
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # a full disk, a folder that is not ours: the message says it all
        problem(str(error))
    except MemoryError as error:
        problem(tr("cli.memory", more=f" ({error})" if str(error) else ""))
    except Exception as error:  # noqa: BLE001  whatever it is, it is no verdict
        if type(error).__name__ != "NoArgsIsHelpError":  # typer has shown the help already
            problem(usage_error(error) or _traceback(error))
    else:
        sys.exit(code if isinstance(code, int) else 0)
    sys.exit(2)


def _traceback(error: Exception) -> str:
    return tr("cli.unexpected") + "".join(traceback.format_exception(error)).rstrip()
