"""Only the sites that were asked for: the others are neither judged nor missed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from layertap.compare.result import Alignment
from layertap.select import matching_sites


def chosen(alignment: Alignment, patterns: str | Iterable[str]) -> Alignment:
    """The alignment without what no pattern matches; patterns may speak of either side's names."""
    records = [
        *(record for pair in alignment.pairs for record in (pair.reference, pair.candidate)),
        *alignment.reference_only,
        *alignment.candidate_only,
    ]
    wanted = matching_sites(patterns, ((record.site, record.kind) for record in records))
    return replace(
        alignment,
        pairs=tuple(
            pair for pair in alignment.pairs if str(pair.reference.site) in wanted or str(pair.candidate.site) in wanted
        ),
        reference_only=tuple(record for record in alignment.reference_only if str(record.site) in wanted),
        candidate_only=tuple(record for record in alignment.candidate_only if str(record.site) in wanted),
    )
