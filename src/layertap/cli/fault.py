"""`layertap fault REF CAND`: two models, one culprit; its exit code is the verdict's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from layertap.cli.screen import import_extension, show_json, show_screen, show_text, status
from layertap.messages import tr


def fault(
    reference: Annotated[str, typer.Argument(help=tr("cli.model"))],
    candidate: Annotated[str, typer.Argument(help=tr("cli.fault_candidate"))],
    prompt: Annotated[str | None, typer.Option(help=tr("cli.prompt"))] = None,
    input: Annotated[Path | None, typer.Option("--input", "--inputs", help=tr("cli.inputs"))] = None,  # noqa: A002
    seq_len: Annotated[int | None, typer.Option(help=tr("cli.seq_len"))] = None,
    seed: Annotated[int, typer.Option(help=tr("cli.seed"))] = 0,
    mapping: Annotated[Path | None, typer.Option(help=tr("cli.mapping"))] = None,
    imports: Annotated[list[str] | None, typer.Option("--import", help=tr("cli.import"))] = None,
    budget: Annotated[str | None, typer.Option(help=tr("cli.fault_budget"))] = None,
    repro: Annotated[Path | None, typer.Option(help=tr("cli.fault_repro"))] = None,
    html: Annotated[Path | None, typer.Option(help=tr("cli.html"))] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help=tr("cli.fault_verbose"))] = False,
    json: Annotated[bool, typer.Option("--json", help=tr("cli.json"))] = False,
) -> None:
    """Find the module that goes wrong, and why: identical or noise (0), fault (1), inconclusive (3)."""
    from layertap.fault import find_fault
    from layertap.report.finding import finding_view
    from layertap.targets import make_inputs, open_target

    for name in imports or ():
        import_extension(name)
    with status(tr("cli.opening_reference", reference=reference)) as shown:

        def tell(text: str) -> None:
            shown.update(Text(text))

        ours = open_target(reference)
        tell(tr("cli.opening_candidate", candidate=candidate))
        theirs = open_target(candidate)
        # The reference decides what both are run on.
        inputs = make_inputs(ours, prompt=prompt, input=input, seq_len=seq_len, seed=seed)
        finding = find_fault(ours.model, theirs.model, inputs, mapping=mapping, budget=budget, progress=tell)
    if repro is not None and finding.verdict == "fault":
        finding.repro(repro)
    if html is not None:
        finding.to_html(html)
    if json:
        show_json(finding.to_dict())
    else:
        show_screen(finding_view(finding, verbose=verbose))
        if repro is not None and finding.verdict == "fault":
            show_text(tr("cli.fault_wrote", repro=repro, repro2=repro / "repro.py"))
    raise typer.Exit(finding.exit_code)
