"""`layertap prune MODEL --plan … -o DIR`, and `--scan`: which branches may go."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from layertap.cli.engines import AddressOption, EngineOption
from layertap.cli.models import given_inputs, only_model, open_model, refuse_stock_class
from layertap.cli.screen import progress, show_json, show_text
from layertap.errors import BadArgument
from layertap.messages import tr


def prune(
    model: Annotated[str, typer.Argument(help=tr("cli.model_pruned"))],
    plan: Annotated[str | None, typer.Option(help=tr("cli.prune_plan"))] = None,
    out: Annotated[Path | None, typer.Option("--output", "-o", help=tr("cli.prune_out"))] = None,
    scan: Annotated[bool, typer.Option("--scan", help=tr("cli.prune_scan"))] = False,
    heads: Annotated[bool, typer.Option("--heads", help=tr("cli.prune_heads"))] = False,
    size: Annotated[float | None, typer.Option(help=tr("cli.prune_keep"))] = None,
    prompt: Annotated[str | None, typer.Option(help=tr("cli.prompt"))] = None,
    ids: Annotated[str | None, typer.Option(help=tr("cli.ids"))] = None,
    input: Annotated[Path | None, typer.Option("--input", "--inputs", help=tr("cli.inputs"))] = None,  # noqa: A002
    seq_len: Annotated[int | None, typer.Option(help=tr("cli.seq_len"))] = None,
    engine: EngineOption = None,
    address: AddressOption = None,
    html: Annotated[Path | None, typer.Option(help=tr("cli.prune_html"))] = None,
    json: Annotated[bool, typer.Option("--json", help=tr("cli.json"))] = False,
) -> None:
    """Save a model without some of its branches, or measure which ones may go."""
    from layertap.weights import knockout, save_pruned
    from layertap.weights import prune as cut

    if scan == (plan is not None):
        raise BadArgument(tr("cli.prune_which"))
    if plan is not None and out is None:
        raise BadArgument(tr("cli.prune_where"))
    if html is not None and not scan:
        raise BadArgument(tr("cli.prune_html_scan"))
    if not scan and engine not in (None, "in-process"):
        raise BadArgument(tr("engine.scan"))
    refuse_stock_class(model)
    target, whole = open_model(model)
    inputs = given_inputs(target, ids, prompt, input, seq_len)
    if plan is not None and out is not None:
        small = cut(whole, plan, how="physical", inputs=inputs)
        save_pruned(small, out, inputs=inputs)
        before, after = (sum(p.numel() for p in m.parameters()) for m in (whole, small))
        found = {"output": str(out), "plan": plan, "parameters": after, "share": after / before}
        show_json(found) if json else show_text(
            tr("cli.prune_wrote", out=out, after=after, before=before, after2=after / before)
        )
        return
    with progress() as bar:
        task = bar.add_task(tr("cli.prune_scanning"), total=None)

        def tell(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        result = knockout(
            whole,
            inputs,
            heads=heads,
            engine=engine,
            address=address,
            build=partial(only_model, model),
            progress=tell,
        )
        joint = result.plan(size, progress=tell) if size is not None else None
    if html is not None:
        result.to_html(html)
    if json:
        show_json(
            {**result.to_dict(), "plan": joint and {"skip": list(joint.plan.paths), "kl": joint.kl, "size": joint.size}}
        )
        return
    show_text(result)
    if joint is not None:
        show_text(f"\n{joint}")
