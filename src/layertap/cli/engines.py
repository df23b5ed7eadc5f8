"""The options by which a command is given to the workers of a Ray cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from layertap.messages import tr

EngineOption = Annotated[str | None, typer.Option("--engine", help=tr("cli.engine"))]
AddressOption = Annotated[str | None, typer.Option("--address", help=tr("cli.address"))]
