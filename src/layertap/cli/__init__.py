"""The command line: one small file a verb, each calls the public API and has `--json`.

Exit codes: 0 identical or noise (or simply done), 1 fault, 2 bad usage or input, 3 inconclusive.
"""

from __future__ import annotations

import sys

import typer

from layertap.cli import demo, diff, export, fault, record, show, watch
from layertap.cli.screen import problem
from layertap.errors import LayertapError

app = typer.Typer(
    name="layertap",
    help="See inside any PyTorch model, and find the first layer that goes wrong.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("record")(record.record)
app.command("show")(show.show)
app.command("diff")(diff.diff)
app.command("fault")(fault.fault)
app.command("watch")(watch.watch)
app.command("export")(export.export)
app.command("demo")(demo.demo)


def main() -> None:
    """Runs the command line; an error of layertap's own is one message, not a traceback."""
    try:
        app()
    except LayertapError as error:
        problem(str(error))
        sys.exit(2)
