"""`layertap watch -- python train.py`: a training script that nobody edits, recorded on the steps that matter."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from layertap.cli.screen import err, problem, show_json, show_text
from layertap.errors import BadArgument, LayertapError

if TYPE_CHECKING:
    from layertap.watching.script import Outcome, WatchedRun


def watch(
    command: Annotated[list[str] | None, typer.Argument(help="after --: the command, as you would type it")] = None,
    config: Annotated[Path | None, typer.Option(help="a TOML or JSON file of options; see docs/watching.md")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="the run's folder")] = None,
    model: Annotated[str | None, typer.Option(help="the model's class or variable, if not what is optimized")] = None,
    sites: Annotated[list[str] | None, typer.Option(help="pattern; repeat for more")] = None,
    what: Annotated[str | None, typer.Option(help="roles, optimizer, update; separated by commas")] = None,
    keep: Annotated[str | None, typer.Option(help="stats, tensor, histogram, or a slice such as '[:, -1]'")] = None,
    schedule: Annotated[
        str | None, typer.Option(help="'every 10', 'first 5', 'epochs 1,5 and batches 0', 'log'")
    ] = None,
    ring: Annotated[int | None, typer.Option(min=0, help="hold the last n steps for a trigger")] = None,
    phases: Annotated[str | None, typer.Option(help="train, eval, or both separated by a comma")] = None,
    disk: Annotated[str | None, typer.Option(help="bytes that the run may take; 20GiB by default")] = None,
    triggers: Annotated[str | None, typer.Option(help="nonfinite, loss_spike, grad_norm; separated by commas")] = None,
    tensorboard: Annotated[str | None, typer.Option(help="a folder for TensorBoard, written as it goes on")] = None,
    progress: Annotated[float | None, typer.Option(min=0, help="a line of progress every so many seconds")] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="replace a run that is there, instead of going on")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="layertap's own errors end the script")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="print what would be recorded, and stop")] = False,
    check_determinism: Annotated[
        bool, typer.Option("--check-determinism", help="run the command twice and say where the two trainings part")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="the outcome as JSON, on the error stream")] = False,
) -> None:
    """Watch a training script that nobody edits. Its exit code is passed on."""
    from layertap.watching.config import read_config
    from layertap.watching.folder import check_writable
    from layertap.watching.script import run

    options: dict[str, Any] = {"model": model, "sites": sites or None, "what": what, "keep": keep}
    options |= {"schedule": schedule, "ring": ring, "strict": strict or None, "path": output and str(output)}
    options |= {"phases": phases, "disk": disk, "progress": progress}
    options["tensorboard"] = tensorboard and str(Path(tensorboard).absolute())
    options["triggers"] = triggers.split(",") if triggers else None
    options["exists"] = "replace" if replace else None
    settings = read_config(config, **options)
    if plan:
        show_text(settings)
        return
    if not command:
        raise BadArgument("watch what? give the command after --, for instance: layertap watch -- python train.py")
    check_writable(Path(settings.path))
    asked = {**_as_options(config, options), "path": str(Path(settings.path).absolute())}
    if check_determinism:
        raise typer.Exit(_determinism(command, asked, json))
    outcome = run(command, asked)
    _show(command, outcome, json)
    raise typer.Exit(outcome.code)


def _as_options(config: Path | None, given: dict[str, Any]) -> dict[str, Any]:
    from layertap.watching.config import file_options

    found = file_options(config) if config is not None else {}
    return {**found, **{name: value for name, value in given.items() if value is not None}}


def _show(command: list[str], outcome: Outcome, json: bool) -> None:
    if json:
        show_json(outcome, file=sys.stderr)
        return
    for text in outcome.problems:
        problem(text)
    for watched in outcome.watched:
        rank = f" (rank {watched.rank})" if watched.rank else ""
        told = f" {watched.model}{rank} → {watched.run}"
        err.print(Text.assemble(("layertap:", "bold"), told), highlight=False, soft_wrap=True)
        if not watched.closed:
            problem("its process ended without a word; what was committed before is in the run")
        for text in (watched.receipt, *watched.triggers):
            err.print(text, markup=False, highlight=False, soft_wrap=True)
    _show_ranks(outcome.watched)
    if not any(watched.fired or not watched.closed for watched in outcome.watched):
        problem(
            f"nothing was captured from `{shlex.join(command)}`: "
            + ("see above" if outcome.watched or outcome.problems else "no Python in it made a torch optimizer")
        )


def _show_ranks(watched: list[WatchedRun]) -> None:
    """What the ranks of each run say about each other."""
    from layertap.compare.ranks import compare_ranks

    for run in sorted({one.run for one in watched if one.rank and one.closed}):
        try:
            err.print(str(compare_ranks(run)), markup=False, highlight=False, soft_wrap=True)
        except LayertapError as error:
            problem(f"the ranks of {run} cannot be compared: {error}")


def _determinism(command: list[str], options: dict[str, Any], json: bool) -> int:
    """Two runs of one command, held against each other: 0 bit-identical, 1 not, 3 nothing, or not all, to compare."""
    from layertap.compare.training import diff_training
    from layertap.watching.script import run

    folder = Path(options["path"])
    sides = [folder / "first", folder / "second"]
    found: list[dict[str, Path]] = []
    for side in sides:
        outcome = run(command, {**options, "path": str(side), "exists": "replace"})
        _show(command, outcome, json=False)
        if outcome.code:
            problem(f"`{shlex.join(command)}` ended with {outcome.code}; nothing can be said of its determinism")
            return 3
        if not any(watched.fired for watched in outcome.watched):
            return 3
        runs = [Path(watched.run) for watched in outcome.watched if watched.fired]
        found.append({path.name.removeprefix(side.name): path for path in runs})
    first, second = found
    reports = [diff_training(first[name], second[name]) for name in first if name in second]
    for report in reports:
        show_json(report.to_dict()) if json else show_text(report)
    for name in sorted(set(first) ^ set(second)):
        problem(f"only one of the two has a run {sides[0].name if name in first else sides[1].name}{name}")
    if any(report.first is not None for report in reports):
        return 1
    same = set(first) == set(second) and all(report.verdict == "identical" for report in reports)
    return 0 if same else 3
