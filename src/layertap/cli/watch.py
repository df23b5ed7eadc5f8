"""`layertap watch -- python train.py`: a training script, unedited, recorded on the steps that matter."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from layertap.cli.screen import err, problem, show_json, show_text
from layertap.errors import BadArgument, LayertapError
from layertap.messages import tr
from layertap.store.storage import on_this_machine

if TYPE_CHECKING:
    from layertap.watching.script import Outcome, WatchedRun


def watch(
    command: Annotated[list[str] | None, typer.Argument(help=tr("cli.watch_command"))] = None,
    config: Annotated[Path | None, typer.Option(help=tr("cli.watch_config"))] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help=tr("cli.run_folder"))] = None,
    model: Annotated[str | None, typer.Option(help=tr("cli.watch_model"))] = None,
    sites: Annotated[list[str] | None, typer.Option(help=tr("cli.sites"))] = None,
    what: Annotated[str | None, typer.Option(help=tr("cli.watch_what"))] = None,
    keep: Annotated[str | None, typer.Option(help=tr("cli.keep"))] = None,
    schedule: Annotated[str | None, typer.Option(help=tr("cli.watch_schedule"))] = None,
    ring: Annotated[int | None, typer.Option(min=0, help=tr("cli.watch_ring"))] = None,
    phases: Annotated[str | None, typer.Option(help=tr("cli.watch_phases"))] = None,
    disk: Annotated[str | None, typer.Option(help=tr("cli.watch_disk"))] = None,
    triggers: Annotated[str | None, typer.Option(help=tr("cli.watch_triggers"))] = None,
    tensorboard: Annotated[str | None, typer.Option(help=tr("cli.watch_tensorboard"))] = None,
    progress: Annotated[float | None, typer.Option(min=0, help=tr("cli.watch_progress"))] = None,
    replace: Annotated[bool, typer.Option("--replace", help=tr("cli.watch_replace"))] = False,
    strict: Annotated[bool, typer.Option("--strict", help=tr("cli.watch_strict"))] = False,
    plan: Annotated[bool, typer.Option("--plan", help=tr("cli.watch_plan"))] = False,
    check_determinism: Annotated[bool, typer.Option("--check-determinism", help=tr("cli.watch_twice"))] = False,
    json: Annotated[bool, typer.Option("--json", help=tr("cli.watch_json"))] = False,
) -> None:
    """Watch a training script without editing it. Its exit code is passed on."""
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
        raise BadArgument(tr("watch.no_command"))
    check_writable(on_this_machine(settings.path, "watch"))
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
        rank = tr("cli.watch_rank", rank=watched.rank) if watched.rank else ""
        line = f" {watched.model}{rank} → {watched.run}"
        err.print(Text.assemble(("layertap:", "bold"), line), highlight=False, soft_wrap=True)
        if not watched.closed:
            problem(tr("watch.died"))
        for text in (watched.receipt, *watched.triggers):
            err.print(text, markup=False, highlight=False, soft_wrap=True)
    _show_ranks(outcome.watched)
    if not any(watched.fired or not watched.closed for watched in outcome.watched):
        problem(
            tr("watch.nothing", command=shlex.join(command))
            + (tr("watch.see_above") if outcome.watched or outcome.problems else tr("watch.no_optimizer"))
        )


def _show_ranks(watched: list[WatchedRun]) -> None:
    """What the ranks of each run say about each other."""
    from layertap.compare.ranks import compare_ranks

    for run in sorted({one.run for one in watched if one.rank and one.closed}):
        try:
            err.print(str(compare_ranks(run)), markup=False, highlight=False, soft_wrap=True)
        except LayertapError as error:
            problem(tr("watch.ranks_failed", run=run, error=error))


def _determinism(command: list[str], options: dict[str, Any], json: bool) -> int:
    """Two runs of one command, compared with each other: 0 bit-identical, 1 not, 3 nothing, or not all, to compare."""
    from layertap.compare.training import diff_training
    from layertap.watching.script import run

    folder = Path(options["path"])
    sides = [folder / "first", folder / "second"]
    found: list[dict[str, Path]] = []
    for side in sides:
        outcome = run(command, {**options, "path": str(side), "exists": "replace"})
        _show(command, outcome, json=False)
        if outcome.code:
            problem(tr("watch.ended", command=shlex.join(command), value=outcome.code))
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
        problem(tr("watch.one_run", name=sides[0].name if name in first else sides[1].name, name2=name))
    if any(report.first is not None for report in reports):
        return 1
    same = set(first) == set(second) and all(report.verdict == "identical" for report in reports)
    return 0 if same else 3
