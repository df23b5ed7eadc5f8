"""The receipt in words: what came, what did not, why, and what it cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from rich.console import Group
from rich.text import Text

from layertap.report.screen import plain_text
from layertap.report.values import natural, size
from layertap.site import Receipt, Site, SiteReceipt
from layertap.words import say

NAMED = 4
"""Sites named for each reason; the rest is counted."""


def receipt_text(receipt: Receipt) -> str:
    """As plain text, for `print`."""
    return plain_text(receipt_view(receipt), width=160).rstrip("\n")


def receipt_view(receipt: Receipt) -> Group:
    """For a terminal."""
    lines: list[Text] = [Text(_summary(receipt))]
    if receipt.error:
        lines.append(Text(say("stopped early: {error}", error=receipt.error), style="bold red"))
    if receipt.lost:
        lines.append(Text(say("lost: {count} records could not be written", count=receipt.lost), style="bold red"))
    dropped = sum(site.dropped for site in receipt.sites)
    if dropped:
        lines.append(Text(say("dropped for the budget: {count} tensors", count=dropped), style="yellow"))
    lines += [Text(f"note: {note}", style="yellow") for note in receipt.notes]
    for name, words in (("direct", "called as module.forward(…)"), ("recomputed", "recomputed by checkpointing")):
        calls = sum(getattr(site, name) for site in receipt.sites)
        if calls:
            lines.append(Text(f"{words}: {calls} calls", style="dim"))
    lines += _skipped(receipt.fired)
    if receipt.silent:
        count, total = len(receipt.silent), len(receipt.sites)
        lines.append(Text(say("silent: {count} of {total} sites", count=count, total=total), style="yellow"))
        lines += _grouped(receipt.silent)
    return Group(*lines)


def _summary(receipt: Receipt) -> str:
    share = receipt.overhead / receipt.seconds if receipt.seconds else 0.0
    kept = say("statistics only")
    if receipt.bytes:
        kept = say("{size} of tensors kept", size=size(receipt.bytes))
    return say(
        "recorded {records} tensors from {fired} of {sites} sites in {steps} step(s), {kept}; {seconds} s, of which "
        "{overhead} s ({share}) inside layertap",
        records=receipt.records,
        fired=len(receipt.fired),
        sites=len(receipt.sites),
        steps=receipt.steps,
        kept=kept,
        seconds=f"{receipt.seconds:.2f}",
        overhead=f"{receipt.overhead:.3f}",
        share=f"{share:.0%}",
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
