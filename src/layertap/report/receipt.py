"""The receipt in words: what came, what did not, why, and what it cost."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable

from rich.console import Console, Group
from rich.text import Text

from layertap.report.values import natural, size
from layertap.site import Receipt, Site, SiteReceipt

NAMED = 4
"""Sites named for each reason; the rest is counted."""


def receipt_text(receipt: Receipt) -> str:
    """As plain text, for `print`."""
    out = io.StringIO()
    Console(file=out, width=160, color_system=None).print(receipt_view(receipt))
    return out.getvalue().rstrip("\n")


def receipt_view(receipt: Receipt) -> Group:
    """For a terminal."""
    lines: list[Text] = [Text(_summary(receipt))]
    if receipt.error:
        lines.append(Text(f"stopped early: {receipt.error}", style="bold red"))
    if receipt.lost:
        lines.append(Text(f"lost: {receipt.lost} records could not be written", style="bold red"))
    dropped = sum(site.dropped for site in receipt.sites)
    if dropped:
        lines.append(Text(f"dropped for the budget: {dropped} tensors", style="yellow"))
    for word, count in (
        ("direct", "called as module.forward(…)"),
        ("recomputed", "recomputed by checkpointing, not recorded twice"),
    ):
        total = sum(getattr(site, word) for site in receipt.sites)
        if total:
            lines.append(Text(f"{count}: {total} calls", style="dim"))
    lines += _skipped(receipt.fired)
    if receipt.silent:
        lines.append(Text(f"silent: {len(receipt.silent)} of {len(receipt.sites)} sites", style="yellow"))
        lines += _grouped(receipt.silent)
    return Group(*lines)


def _summary(receipt: Receipt) -> str:
    steps = "1 step" if receipt.steps == 1 else f"{receipt.steps} steps"
    share = receipt.overhead / receipt.seconds if receipt.seconds else 0.0
    kept = f"{size(receipt.bytes)} of tensors kept" if receipt.bytes else "statistics only"
    return (
        f"recorded {receipt.records} tensors from {len(receipt.fired)} of {len(receipt.sites)} sites in {steps}, "
        f"{kept}; {receipt.seconds:.2f} s, of which {receipt.overhead:.3f} s ({share:.0%}) inside layertap"
    )


def _skipped(sites: Iterable[SiteReceipt]) -> list[Text]:
    counts: defaultdict[str, int] = defaultdict(int)
    for site in sites:
        for reason, count in site.skipped.items():
            counts[reason] += count
    if not counts:
        return []
    listed = ", ".join(f"{reason} × {count}" for reason, count in sorted(counts.items()))
    return [Text(f"leaves without a tensor: {listed}", style="dim")]


def _grouped(sites: Iterable[SiteReceipt]) -> list[Text]:
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for site in sites:
        groups[site.why].append(str(Site(path=site.path, role=site.role)))
    lines = []
    for why, names in groups.items():
        names.sort(key=natural)
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        lines.append(Text(f"  {', '.join(names[:NAMED])}{more}: {why}"))
    return lines
