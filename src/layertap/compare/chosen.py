"""Only the sites that were asked for: the others are neither judged nor missed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from layertap.compare.result import Alignment
from layertap.select import matching_sites


def chosen(alignment: Alignment, patterns: str | Iterable[str]) -> Alignment:
    """The alignment without what no pattern matches; patterns may match either side's names."""
    alone = ((record.site, record.kind) for record in (*alignment.reference_only, *alignment.candidate_only))
    wanted = matching_sites(patterns, (*alignment.pairs.named(), *alone))
    return replace(
        alignment,
        pairs=alignment.pairs.only(wanted),
        reference_only=tuple(record for record in alignment.reference_only if str(record.site) in wanted),
        candidate_only=tuple(record for record in alignment.candidate_only if str(record.site) in wanted),
    )
