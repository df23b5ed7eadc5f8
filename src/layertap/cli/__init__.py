"""The command line: one small file a verb, each calls the public API and has `--json`.

Exit codes: 0 identical or noise (or simply done), 1 fault, 2 bad usage or input, 3 inconclusive.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from typing import Annotated

import typer

from layertap import __version__
from layertap.cli import audit, demo, diff, doctor, export, fault, prune, record, report, show, sweep, view, watch
from layertap.cli.screen import problem
from layertap.errors import LayertapError
from layertap.messages import tr

app = typer.Typer(
    name="layertap",
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


app.command("record")(record.record)
app.command("show")(show.show)
app.command("diff")(diff.diff)
app.command("fault")(fault.fault)
app.command("audit")(audit.audit)
app.command("doctor")(doctor.doctor)
app.command("prune")(prune.prune)
app.command("sweep")(sweep.sweep)
app.command("watch")(watch.watch)
app.command("export")(export.export)
app.command("report")(report.report)
app.command("view")(view.view)
app.command("demo")(demo.demo)


def main() -> None:
    """Runs the command line; an error of layertap's own is one message, not a traceback.

    Nothing that goes wrong may leave with Python's own exit code 1, which says that a fault was found.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode gets question marks
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
        # typer comes with a click of its own, or with the one that is installed: its errors are known by their method.
        usage = getattr(error, "format_message", None)
        problem(f"{usage()} ({_help(error)})" if usage and str(error) else _traceback(error))
    else:
        sys.exit(code if isinstance(code, int) else 0)
    sys.exit(2)


def _help(error: Exception) -> str:
    path = getattr(getattr(error, "ctx", None), "command_path", "layertap")
    return tr("cli.see_help", path=path)


def _traceback(error: Exception) -> str:
    return tr("cli.unexpected") + "".join(traceback.format_exception(error)).rstrip()
