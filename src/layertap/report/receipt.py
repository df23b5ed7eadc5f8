"""The receipt in words: what came, what did not, why, and what it cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from rich.console import Group
from rich.text import Text

from layertap.files import format_bytes
from layertap.messages import tr
from layertap.report.screen import plain_text
from layertap.site import Receipt, Site, SiteReceipt, natural_key

NAMED = 4
"""Sites named for each reason; the rest is counted."""


def receipt_text(receipt: Receipt) -> str:
    """As plain text, for `print`."""
    return plain_text(receipt_view(receipt), width=160).rstrip("\n")


def receipt_view(receipt: Receipt) -> Group:
    """For a terminal."""
    lines: list[Text] = [Text(_summary(receipt))]
    if receipt.error:
        lines.append(Text(tr("receipt.stopped", error=receipt.error), style="bold red"))
    if receipt.lost:
        lines.append(Text(tr("receipt.lost", count=receipt.lost), style="bold red"))
    dropped = sum(site.dropped for site in receipt.sites)
    if dropped:
        lines.append(Text(tr("receipt.dropped", count=dropped), style="yellow"))
    lines += [Text(tr("report.note", text=note), style="yellow") for note in receipt.notes]
    for name, how in (("direct", tr("receipt.direct")), ("recomputed", tr("receipt.recomputed"))):
        calls = sum(getattr(site, name) for site in receipt.sites)
        if calls:
            lines.append(Text(tr("receipt.calls", how=how, calls=calls), style="dim"))
    lines += _skipped(receipt.fired)
    if receipt.silent:
        count, total = len(receipt.silent), len(receipt.sites)
        lines.append(Text(tr("receipt.silent", count=count, total=total), style="yellow"))
        lines += _grouped(receipt.silent)
    return Group(*lines)


def _summary(receipt: Receipt) -> str:
    share = receipt.overhead / receipt.seconds if receipt.seconds else 0.0
    kept = tr("receipt.statistics_only")
    if receipt.bytes:
        kept = tr("receipt.kept", size=format_bytes(receipt.bytes))
    return tr(
        "receipt.recorded",
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
    return [Text(tr("receipt.skipped", listed=listed), style="dim")]


def _grouped(sites: Iterable[SiteReceipt]) -> list[Text]:
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for site in sites:
        groups[site.why].append(str(Site(path=site.path, role=site.role)))
    lines = []
    for why, names in groups.items():
        names.sort(key=natural_key)
        more = tr("receipt.and_more", count=len(names) - NAMED) if len(names) > NAMED else ""
        lines.append(Text(tr("receipt.reason", names=", ".join(names[:NAMED]), more=more, why=why)))
    return lines
