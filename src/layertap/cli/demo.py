"""`layertap demo`: record, break, compare, and from the first departing layer to the part of it that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layertap.cli.screen import show_json, show_screen, show_text
from layertap.messages import tr
from layertap.report.differences import difference_blocks
from layertap.report.page import write
from layertap.report.receipt import receipt_view
from layertap.report.show import run_rows, run_view
from layertap.store import Run

if TYPE_CHECKING:
    from rich.console import RenderableType
    from torch import nn

LAYERS = ["embed", "blocks.*", "norm", "head"]
INSIDE = ["blocks.*", "blocks.*.*"]


def demo(
    folder: Annotated[Path, typer.Option("--output", "-o", help=tr("cli.demo_folder"))] = Path("runs/demo"),
    json: Annotated[bool, typer.Option("--json", help=tr("cli.demo_json"))] = False,
) -> None:
    """Record a small decoder, break a copy of it, compare, and look inside the layer that departs first."""
    import torch

    from layertap.capture import record
    from layertap.compare import diff
    from layertap.fault import find_fault
    from layertap.report.diff import report_view

    healthy, broken = decoder(), decoder()
    with torch.no_grad():
        broken.get_parameter("blocks.3.down.weight")[7] = 0  # one row of one weight, as a bad checkpoint has it
    ids = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(1))

    def say(*views: RenderableType) -> None:
        if not json:
            for view in views:
                show_screen(view)

    def take(model: nn.Module, name: str, sites: list[str]) -> Run:
        say(f"\n>>> with lt.record(model, {str(folder / name)!r}, sites={sites}, keep='tensor'): model(ids)")
        with record(model, folder / name, sites=sites, keep="tensor", exists="replace") as recording:
            model(ids)
        say(receipt_view(recording.receipt))
        return Run(folder / name)

    reference = take(healthy, "healthy", LAYERS)
    say(run_view(reference, run_rows(reference)))
    # The same weights in other arithmetic: what this run differs by is rounding.
    rounding = take(healthy.bfloat16(), "rounding", LAYERS)
    candidate = take(broken.bfloat16(), "broken", LAYERS)
    say(f"\n>>> lt.diff('{reference.name}', '{candidate.name}', floor='{rounding.name}')")
    say(report_view(diff(reference, candidate, floor=rounding)))
    say(tr("demo.inside"))
    inside = diff(
        take(decoder(), "healthy-inside", INSIDE),
        take(broken, "broken-inside", INSIDE),
        floor=take(healthy, "rounding-inside", INSIDE),
    )
    sides = [str(folder / f"{name}-inside") for name in ("healthy", "broken")]
    say(f"\n>>> lt.diff('{inside.reference}', '{inside.candidate}', floor='{folder / 'rounding-inside'}')")
    if json:
        show_json(inside.to_dict())
        return
    head, *_ = str(inside).partition("\n\n")
    show_text(head)
    show_text(tr("demo.both"))
    show_text("\n>>> print(lt.find_fault(healthy, broken, (ids,)))")
    show_text(find_fault(decoder(), broken, (ids,)))
    page = write(inside, folder / "report.html", difference_blocks(inside, *map(Run, sides)))
    show_text(tr("demo.report", path=page))
    show_text(tr("demo.view", sides=" ".join([*sides, "--floor", str(folder / "rounding-inside")])))
    show_text(tr("demo.show", run=folder / "broken-inside", site="blocks.3.down"))


def decoder(blocks: int = 6, width: int = 48, vocabulary: int = 64) -> nn.Module:
    """A seeded pre-norm decoder in plain torch, so that the demo needs nothing beyond layertap itself."""
    import torch
    from torch import nn
    from torch.nn import functional as F  # noqa: N812

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width)
            self.proj = nn.Linear(width, width)
            self.up = nn.Linear(width, 4 * width)
            self.down = nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
            attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(attention.transpose(1, 2).flatten(2))
            out: torch.Tensor = x + self.down(F.gelu(self.up(x)))
            return out

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(vocabulary, width)
            self.blocks = nn.ModuleList(Block() for _ in range(blocks))
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, vocabulary, bias=False)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x)
            logits: torch.Tensor = self.head(self.norm(x))
            return logits

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Decoder().eval()
