"""`layertap record TARGET -o RUN`: run a model once and record what flows through it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layertap.cli.screen import import_extension, progress, show_json, show_screen, show_text, status
from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.report.receipt import receipt_view


def record(
    target: Annotated[str, typer.Argument(help=tr("cli.record_model"))],
    output: Annotated[str | None, typer.Option("--output", "-o", help=tr("cli.run_folder"))] = None,
    sites: Annotated[list[str] | None, typer.Option(help=tr("cli.sites"))] = None,
    exclude: Annotated[list[str] | None, typer.Option(help=tr("cli.exclude"))] = None,
    what: Annotated[str, typer.Option(help=tr("cli.what"))] = "output",
    keep: Annotated[str, typer.Option(help=tr("cli.keep"))] = "stats",
    prompt: Annotated[str | None, typer.Option(help=tr("cli.prompt"))] = None,
    input: Annotated[Path | None, typer.Option("--input", "--inputs", help=tr("cli.inputs"))] = None,  # noqa: A002
    seq_len: Annotated[int | None, typer.Option(help=tr("cli.seq_len"))] = None,
    seed: Annotated[int, typer.Option(help=tr("cli.seed"))] = 0,
    imports: Annotated[list[str] | None, typer.Option("--import", help=tr("cli.import"))] = None,
    config: Annotated[list[str] | None, typer.Option(help=tr("cli.config"))] = None,
    steps: Annotated[int, typer.Option(min=1, help=tr("cli.steps"))] = 1,
    budget: Annotated[str, typer.Option(help=tr("cli.budget"))] = "2GiB",
    policy: Annotated[str, typer.Option(help=tr("cli.policy"))] = "block",
    replace: Annotated[bool, typer.Option("--replace", help=tr("cli.replace"))] = False,
    append: Annotated[bool, typer.Option("--append", help=tr("cli.append"))] = False,
    plan: Annotated[bool, typer.Option("--plan", help=tr("cli.plan"))] = False,
    json: Annotated[bool, typer.Option("--json", help=tr("cli.receipt_json"))] = False,
) -> None:
    """Run a model and record what flows through it."""
    if output is None and not plan:
        raise BadArgument(tr("cli.record_where"))
    if replace and append:
        raise BadArgument(tr("cli.record_exclusive"))
    from layertap.capture import plan as planned
    from layertap.capture import record as start
    from layertap.select import select
    from layertap.targets import make_inputs, open_target

    roles = tuple(role.strip() for role in what.split(","))
    for name in imports or ():
        import_extension(name)
    with status(tr("cli.opening_target", target=target)):
        opened = open_target(target, config=_pairs(config))
        if plan and opened.outline is not None:
            # A file is read for its plan, and not run: so there are no sizes.
            chosen = select(opened.outline, sites, exclude=exclude, what=roles)
            show_json({"sites": [str(line) for line in chosen]}) if json else show_text(chosen)
            return
        inputs = make_inputs(opened, prompt=prompt, input=input, seq_len=seq_len, seed=seed)
    if plan:
        selection = planned(opened.model, lambda: opened.run(inputs), sites=sites, exclude=exclude, what=roles)
        show_json({"sites": [str(line) for line in selection]}) if json else show_text(selection)
        return
    recording = start(
        opened,
        output,
        sites=sites,
        exclude=exclude,
        what=roles,
        keep=keep,
        budget=budget,
        policy=policy,  # type: ignore[arg-type]
        exists="replace" if replace else "append" if append else "error",
    )
    with recording, progress() as bar:
        for _ in bar.track(range(steps), description=tr("cli.recording", count=len(recording.selection))):
            opened.run(inputs)
            recording.step()
    if json:
        show_json({"run": str(output), "receipt": recording.receipt.to_dict()})
    else:
        show_screen(receipt_view(recording.receipt))
        show_text(tr("cli.record_wrote", output=output))


def _pairs(config: list[str] | None) -> dict[str, str]:
    for text in config or ():
        if "=" not in text:
            raise BadArgument(tr("cli.config_expected", text=text))
    return dict(text.split("=", 1) for text in config or ())
