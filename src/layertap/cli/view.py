"""`layertap view RUN [RUN …]`: runs in the browser, from a server on this machine alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layertap.cli.screen import show_json, show_text
from layertap.messages import tr


def view(
    runs: Annotated[list[str] | None, typer.Argument(help=tr("cli.view_runs"))] = None,
    floor: Annotated[list[str] | None, typer.Option(help=tr("cli.floor"))] = None,
    mapping: Annotated[Path | None, typer.Option(help=tr("cli.mapping"))] = None,
    port: Annotated[int | None, typer.Option(help=tr("cli.view_port"))] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help=tr("cli.view_open"))] = True,
    json: Annotated[bool, typer.Option("--json", help=tr("cli.view_json"))] = False,
) -> None:
    """Look at runs in the browser: two side by side, or one by itself. Reads only; nothing leaves this machine."""
    from layertap.view import serve

    def told(address: str) -> None:
        if json:
            show_json({"url": address})
        else:
            show_text(f"{tr('view.listening', url=address)}   ({tr('view.stop')})")
        import sys

        sys.stdout.flush()

    serve(
        runs or [],
        floors=floor or [],
        mapping=None if mapping is None else str(mapping),
        port=port,
        browser=browser,
        told=told,
    )
