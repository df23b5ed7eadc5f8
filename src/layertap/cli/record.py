"""`layertap record TARGET -o RUN`: run a model once and record what flows through it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layertap.cli.screen import import_extension, progress, show_json, show_screen, show_text, status
from layertap.errors import BadArgument
from layertap.report.receipt import receipt_view


def record(
    target: Annotated[str, typer.Argument(help="file.py:factory, hf:PATH, or a compiled file: .pt, .pt2, .onnx, .xml")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="the run's folder")] = None,
    sites: Annotated[list[str] | None, typer.Option(help="pattern; repeat for more")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="pattern to leave out; repeat for more")] = None,
    what: Annotated[str, typer.Option(help="roles, separated by commas")] = "output",
    keep: Annotated[str, typer.Option(help="stats, tensor, histogram, or a slice such as '[:, -1]'")] = "stats",
    prompt: Annotated[str | None, typer.Option(help="text, for models with a tokenizer")] = None,
    input: Annotated[Path | None, typer.Option("--input", "--inputs", help=".npz, .safetensors, .json, .pt")] = None,  # noqa: A002
    seq_len: Annotated[int | None, typer.Option(help="length of random ids when no input is given")] = None,
    seed: Annotated[int, typer.Option(help="seed of random ids")] = 0,
    imports: Annotated[
        list[str] | None, typer.Option("--import", help="a Python module that registers operators; repeat for more")
    ] = None,
    config: Annotated[list[str] | None, typer.Option(help="KEY=VALUE for OpenVINO's compiler; repeat for more")] = None,
    steps: Annotated[int, typer.Option(min=1, help="how often to run the same input")] = 1,
    budget: Annotated[str, typer.Option(help="bytes under way at most")] = "2GiB",
    policy: Annotated[str, typer.Option(help="past the budget: block, stats or drop")] = "block",
    replace: Annotated[bool, typer.Option("--replace", help="replace a run that is there")] = False,
    append: Annotated[bool, typer.Option("--append", help="go on with a run that is there")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="print what would be recorded, with sizes, and stop")] = False,
    json: Annotated[bool, typer.Option("--json", help="the receipt as JSON")] = False,
) -> None:
    """Run a model and record what flows through it."""
    if output is None and not plan:
        raise BadArgument("where to? give the run's folder: -o RUN (or --plan to see what would be recorded)")
    if replace and append:
        raise BadArgument("--replace and --append exclude each other; give one of them")
    from layertap.capture import plan as planned
    from layertap.capture import record as start
    from layertap.select import select
    from layertap.targets import make_inputs, open_target

    roles = tuple(role.strip() for role in what.split(","))
    for name in imports or ():
        import_extension(name)
    with status(f"opening {target}"):
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
        for _ in bar.track(range(steps), description=f"recording {len(recording.selection)} sites"):
            opened.run(inputs)
            recording.step()
    if json:
        show_json({"run": str(output), "receipt": recording.receipt.to_dict()})
    else:
        show_screen(receipt_view(recording.receipt))
        show_text(f"wrote {output}; next: layertap show {output}")


def _pairs(config: list[str] | None) -> dict[str, str]:
    for text in config or ():
        if "=" not in text:
            raise BadArgument(f"--config {text!r}: expected KEY=VALUE, for instance INFERENCE_PRECISION_HINT=f32")
    return dict(text.split("=", 1) for text in config or ())
