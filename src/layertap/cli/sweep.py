"""`layertap sweep MODES.toml`: one input through many modes; its exit code is the verdict's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from layertap.cli.engines import AddressOption, EngineOption
from layertap.cli.screen import progress, show_json, show_screen, show_text, status
from layertap.errors import BadArgument
from layertap.messages import tr


def sweep(
    definition: Annotated[Path, typer.Argument(help=tr("cli.sweep_modes"))],
    more: Annotated[list[str] | None, typer.Argument(help=tr("cli.sweep_names"))] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help=tr("cli.sweep_out"))] = Path("runs/sweep"),
    modes: Annotated[list[str] | None, typer.Option(help=tr("cli.sweep_only"))] = None,
    preset: Annotated[str | None, typer.Option(help=tr("cli.sweep_preset"))] = None,
    reference: Annotated[str | None, typer.Option(help=tr("cli.sweep_reference"))] = None,
    sites: Annotated[list[str] | None, typer.Option(help=tr("cli.sweep_sites"))] = None,
    model: Annotated[str | None, typer.Option("--model", "--target", help=tr("cli.sweep_target"))] = None,
    pretrained_dir: Annotated[
        str | None, typer.Option("--pretrained-dir", "--pretrained_dir", help=tr("cli.sweep_pretrained"))
    ] = None,
    argument: Annotated[list[str] | None, typer.Option(help=tr("cli.sweep_argument"))] = None,
    seq_len: Annotated[int | None, typer.Option("--seq-len", "--seq_len", min=1, help=tr("cli.sweep_length"))] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help=tr("cli.sweep_workers"))] = None,
    timeout: Annotated[float | None, typer.Option(help=tr("cli.sweep_timeout"))] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help=tr("cli.sweep_again"))] = False,
    sensitivity: Annotated[
        bool | None, typer.Option("--sensitivity/--no-sensitivity", help=tr("cli.sweep_rank"))
    ] = None,
    explain: Annotated[tuple[str, str] | None, typer.Option(help=tr("cli.sweep_between"))] = None,
    screen: Annotated[bool, typer.Option("--screen", help=tr("cli.sweep_first"))] = False,
    output_file: Annotated[
        Path | None, typer.Option("--output-file", "--output_file", "--npz", help=tr("cli.sweep_layer"))
    ] = None,
    png: Annotated[Path | None, typer.Option(help=tr("cli.sweep_histograms"))] = None,
    engine: EngineOption = None,
    address: AddressOption = None,
    html: Annotated[Path | None, typer.Option(help=tr("cli.html"))] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help=tr("cli.sweep_verbose"))] = False,
    json: Annotated[bool, typer.Option("--json", help=tr("cli.json"))] = False,
) -> None:
    """Run one input through many modes and compare: identical or noise (0), fault (1), a mode failed (3)."""
    from layertap.report.sweep import sweep_view
    from layertap.report.sweep_screen import screen_text
    from layertap.sweeping import read_definition
    from layertap.sweeping import sweep as run

    chosen = [name for text in [*(modes or ()), *(more or ())] for name in text.split(",") if name]
    if preset is not None and preset != "all" and preset not in read_definition(definition).presets:
        raise BadArgument(
            tr("cli.sweep_preset_has", preset=preset, value=", ".join((*read_definition(definition).presets, "all")))
        )
    chosen += [preset] if preset is not None else []
    changes = _changes(definition, model, pretrained_dir, argument, seq_len)
    with progress() as bar:
        task = bar.add_task("starting", total=None)

        def tell(name: str, state: str, done: int, total: int) -> None:
            text = state if name == "compare" else f"{name}: {state}"
            bar.update(task, description=text, completed=done, total=total)

        result = run(
            definition,
            output,
            chosen or None,
            reference=reference,
            sites=sites,
            jobs=jobs,
            timeout=timeout,
            fresh=fresh,
            sensitivity=False if explain is not None and sensitivity is None else sensitivity,
            changes=changes,
            engine=engine,
            address=address,
            progress=tell,
        )
    if html is not None:
        result.to_html(html)
    notes = [] if output_file is None else [result.to_npz(output_file)]
    if png is not None:
        result.to_png(png)
    if explain is not None:
        with status(tr("cli.sweep_searching", explain=explain[1], explain2=explain[0])) as shown:
            shown.update(Text(tr("cli.sweep_searching", explain=explain[1], explain2=explain[0])))
            found = result.explain(*explain)
        show_json(found.to_dict()) if json else show_text(found)
        raise typer.Exit(found.exit_code)
    if json:
        show_json(result.to_dict())
    else:
        if screen:
            show_text(screen_text(result))
        show_screen(sweep_view(result, verbose=verbose))
        for note in notes:
            show_text(note)
    raise typer.Exit(result.exit_code)


def _changes(
    path: Path, model: str | None, pretrained_dir: str | None, arguments: list[str] | None, seq_len: int | None
) -> dict[str, Any]:
    """What the options replace in the definition."""
    from dataclasses import replace

    from layertap.sweeping import read_definition

    changes: dict[str, Any] = {}
    defined = read_definition(path)
    if model is not None:
        changes["target"] = model
    given: dict[str, Any] = {} if pretrained_dir is None else {"pretrained_dir": pretrained_dir}
    for text in arguments or ():
        name, sign, value = text.partition("=")
        if not sign:
            raise BadArgument(tr("cli.sweep_pair", text=text))
        given[name] = _value(value)
    if given:
        changes["modes"] = tuple(replace(mode, arguments={**given, **mode.arguments}) for mode in defined.modes)
    if seq_len is not None:
        changes["input"] = {**defined.input, "seq_len": seq_len}
    return changes


def _value(text: str) -> Any:
    """A number, a truth value, or the text itself."""
    import json

    try:
        return json.loads(text)
    except ValueError:
        return text
