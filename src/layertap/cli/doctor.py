"""`layertap doctor REF CAND`: is it the code, the loading, the cache, or the idea?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from layertap.cli.models import given_inputs, open_model
from layertap.cli.screen import show_json, show_text, status
from layertap.messages import tr


def doctor(
    reference: Annotated[str, typer.Argument(help=tr("cli.model_pruned"))],
    candidate: Annotated[str, typer.Argument(help=tr("cli.model_changed"))],
    prompt: Annotated[str | None, typer.Option(help=tr("cli.prompt"))] = None,
    ids: Annotated[str | None, typer.Option(help=tr("cli.ids"))] = None,
    input: Annotated[Path | None, typer.Option("--input", "--inputs", help=tr("cli.inputs"))] = None,  # noqa: A002
    seq_len: Annotated[int | None, typer.Option(help=tr("cli.seq_len"))] = None,
    plan: Annotated[str | None, typer.Option(help=tr("cli.doctor_plan"))] = None,
    html: Annotated[Path | None, typer.Option(help=tr("cli.html"))] = None,
    json: Annotated[bool, typer.Option("--json", help=tr("cli.json"))] = False,
) -> None:
    """Say why a changed model goes wrong: healthy (0), code, loading, cache or idea (1), inconclusive (3)."""
    from layertap.weights import doctor as diagnose

    with status(tr("cli.opening_reference", reference=reference)) as shown:
        (target, ours), (_, theirs) = open_model(reference), open_model(candidate)
        inputs = given_inputs(target, ids, prompt, input, seq_len)
        found = diagnose(ours, theirs, inputs, plan=plan, progress=lambda text: shown.update(Text(text)))
    if html is not None:
        found.to_html(html)
    show_json(found.to_dict()) if json else show_text(found)
    raise typer.Exit(found.exit_code)
