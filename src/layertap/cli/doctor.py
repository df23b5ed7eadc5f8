"""`layertap doctor REF CAND`: is it the code, the loading, the cache, or the idea?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from layertap.cli.screen import show_json, show_text, status
from layertap.errors import BadArgument
from layertap.messages import tr


def doctor(
    reference: Annotated[str, typer.Argument(help=tr("cli.model"))],
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
    import torch

    from layertap.targets import make_inputs, open_target
    from layertap.weights import doctor as diagnose

    with status(tr("cli.opening_reference", reference=reference)) as shown:
        ours, theirs = open_target(reference), open_target(candidate)
        if ids is not None:
            try:
                inputs: Any = {"input_ids": torch.tensor([[int(part) for part in ids.replace(",", " ").split()]])}
            except ValueError:
                raise BadArgument(tr("cli.ids_expected", ids=ids)) from None
        else:
            inputs = make_inputs(ours, prompt=prompt, input=input, seq_len=seq_len)
        found = diagnose(ours.model, theirs.model, inputs, plan=plan, progress=lambda text: shown.update(Text(text)))
    if html is not None:
        found.to_html(html)
    show_json(found.to_dict()) if json else show_text(found)
    raise typer.Exit(found.exit_code)
