"""`layertap fault REF CAND`: two models, one culprit; its exit code is the verdict's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from layertap.cli.screen import import_extension, show_json, show_screen, show_text, status


def fault(
    reference: Annotated[str, typer.Argument(help="file.py:factory, or hf:PATH")],
    candidate: Annotated[str, typer.Argument(help="the same, or a compiled file, of the variant in question")],
    prompt: Annotated[str | None, typer.Option(help="text, for models with a tokenizer")] = None,
    input: Annotated[Path | None, typer.Option("--input", "--inputs", help=".npz, .safetensors, .json, .pt")] = None,  # noqa: A002
    seq_len: Annotated[int | None, typer.Option(help="length of random ids when no input is given")] = None,
    seed: Annotated[int, typer.Option(help="seed of random ids")] = 0,
    mapping: Annotated[Path | None, typer.Option(help="JSON, TOML or YAML: {regex: replacement}")] = None,
    imports: Annotated[
        list[str] | None, typer.Option("--import", help="a Python module that registers operators; repeat for more")
    ] = None,
    budget: Annotated[str | None, typer.Option(help="memory for the reference's tensors; the rest to disk")] = None,
    repro: Annotated[Path | None, typer.Option(help="also write the culprit into a folder of its own")] = None,
    html: Annotated[Path | None, typer.Option(help="also write a page")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="show all modules and notes")] = False,
    json: Annotated[bool, typer.Option("--json", help="the same as JSON")] = False,
) -> None:
    """Find the module that goes wrong, and why: identical or noise (0), fault (1), inconclusive (3)."""
    from layertap.fault import find_fault
    from layertap.report.finding import finding_view
    from layertap.targets import make_inputs, open_target

    for name in imports or ():
        import_extension(name)
    with status(f"opening {reference}") as shown:

        def tell(text: str) -> None:
            shown.update(Text(text))

        ours = open_target(reference)
        tell(f"opening {candidate}")
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
            show_text(f"wrote {repro}; next: python {repro / 'repro.py'}")
    raise typer.Exit(finding.exit_code)
