"""`layertap prune MODEL --plan … -o DIR`, and `--scan`: which branches may go."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layertap.cli.screen import progress, show_json, show_text
from layertap.errors import BadArgument


def prune(
    model: Annotated[str, typer.Argument(help="hf:PATH or file.py:factory")],
    plan: Annotated[str | None, typer.Option(help="what to skip: 'attention[:3] mlp[n//2:]'")] = None,
    out: Annotated[Path | None, typer.Option("--output", "-o", help="where the pruned model goes")] = None,
    scan: Annotated[bool, typer.Option("--scan", help="measure what each branch is worth, and prune nothing")] = False,
    heads: Annotated[bool, typer.Option("--heads", help="with --scan: every attention head as well")] = False,
    size: Annotated[float | None, typer.Option(help="with --scan: also a plan that leaves this share")] = None,
    prompt: Annotated[str | None, typer.Option(help="text, for models with a tokenizer")] = None,
    input: Annotated[Path | None, typer.Option("--input", "--inputs", help=".npz, .safetensors, .json, .pt")] = None,  # noqa: A002
    seq_len: Annotated[int | None, typer.Option(help="length of random ids when no input is given")] = None,
    html: Annotated[Path | None, typer.Option(help="with --scan: also write a page")] = None,
    json: Annotated[bool, typer.Option("--json", help="the same as JSON")] = False,
) -> None:
    """Save a model without some of its branches, or measure which ones may go."""
    from layertap.targets import make_inputs, open_target
    from layertap.weights import knockout, save_pruned
    from layertap.weights import prune as cut

    if scan == (plan is not None):
        raise BadArgument("give either --plan and -o, or --scan")
    if plan is not None and out is None:
        raise BadArgument("-o says where the pruned model goes")
    if html is not None and not scan:
        raise BadArgument("--html shows what --scan measures")
    target = open_target(model)
    inputs = make_inputs(target, prompt=prompt, input=input, seq_len=seq_len)
    if plan is not None and out is not None:
        small = cut(target.model, plan, how="physical", inputs=inputs)
        save_pruned(small, out, inputs=inputs)
        before, after = (sum(p.numel() for p in m.parameters()) for m in (target.model, small))
        found = {"output": str(out), "plan": plan, "parameters": after, "share": after / before}
        show_json(found) if json else show_text(
            f"wrote {out}: {after:,} of {before:,} parameters ({after / before:.1%})"
        )
        return
    with progress() as bar:
        task = bar.add_task("leaving out one part at a time", total=None)

        def tell(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        result = knockout(target.model, inputs, heads=heads, progress=tell)
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
