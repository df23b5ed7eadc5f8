"""`layertap view RUN [RUN …]`: runs in the browser, from a server on this machine alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from layertap.cli.screen import show_json, show_text, status
from layertap.errors import BadArgument
from layertap.messages import tr


def view(
    runs: Annotated[list[str] | None, typer.Argument(help=tr("cli.view_runs"))] = None,
    floor: Annotated[list[str] | None, typer.Option(help=tr("cli.floor"))] = None,
    mapping: Annotated[Path | None, typer.Option(help=tr("cli.mapping"))] = None,
    model: Annotated[str | None, typer.Option(help=tr("cli.view_model"))] = None,
    plan: Annotated[str | None, typer.Option(help=tr("cli.view_plan"))] = None,
    prompt: Annotated[str, typer.Option(help=tr("cli.view_prompt"))] = "",
    tokenizer: Annotated[str | None, typer.Option(help=tr("cli.view_tokenizer"))] = None,
    port: Annotated[int | None, typer.Option(help=tr("cli.view_port"))] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help=tr("cli.view_open"))] = True,
    json: Annotated[bool, typer.Option("--json", help=tr("cli.view_json"))] = False,
) -> None:
    """Look at runs in the browser, or into a model while it runs a prompt. Nothing leaves this machine."""
    from layertap.view import serve

    def show_address(address: str) -> None:
        if json:
            show_json({"url": address})
        else:
            show_text(f"{tr('view.listening', url=address)}   ({tr('view.stop')})")
        sys.stdout.flush()

    if model is None and (plan is not None or prompt):
        raise BadArgument(tr("view.needs_model"))
    scanner = None
    if model is not None:
        from layertap.view.scan import Scanner

        scanner = Scanner(model, plan=plan or "", prompt=prompt)
        with status(tr("view.opening", model=model)):
            scanner.open()
    serve(
        runs or [],
        floors=floor or [],
        mapping=None if mapping is None else str(mapping),
        tokenizer=tokenizer,
        port=port,
        browser=browser,
        scanner=scanner,
        told=show_address,
    )
