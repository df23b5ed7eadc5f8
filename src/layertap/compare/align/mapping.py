"""What the user says about names: `{regex: replacement}`, as a dict or in a YAML, JSON or TOML file.

The lines `mesh` and `dims` of the same mapping, which say how tensors lie on ranks, are read by layertap.store.stated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layertap.compare.align.layout import AxisLayout
from layertap.compare.align.site_pairing import SitePairing
from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.result import Note
from layertap.site import Site
from layertap.store.stated import is_mesh, read_mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line of a mapping."""

    pattern: re.Pattern[str]
    to: str
    layout: AxisLayout | None = None

    def rename(self, text: str) -> str | None:
        """The reference's name for a candidate's site; None when the rule does not match it.

        >>> Rule(pattern=re.compile(r"layer_(\\d+)"), to=r"model.layers.\\1").rename("layer_30:output.0")
        'model.layers.30:output.0'
        """
        # The whole text first: `sub` with `.*` would also replace the nothing behind the end.
        whole = self.pattern.fullmatch(text)
        if whole is not None:
            return whole.expand(self.to)
        return self.pattern.sub(self.to, text) if self.pattern.search(text) else None


def read_rules(mapping: Mapping[str, Any] | str | os.PathLike[str]) -> tuple[Rule, ...]:
    """The rules of a mapping, in their order.

    >>> [str(rule.layout) for rule in read_rules({"k_proj": {"to": "k_proj", "layout": "transpose(0,1)"}})]
    ['transpose(0,1)']
    """
    where, lines = read_mapping(mapping)
    return tuple(
        _rule(where, pattern, value)
        for pattern, value in lines.items()
        if not is_mesh(pattern, value) and not _only_dims(value)
    )


def pair_by_rules(pairing: SitePairing, rules: Sequence[Rule]) -> list[str]:
    """Pairs what the rules rename; what they say wins over any likeness of names. Returns lines for the plan.

    For each site the last rule that matches it counts, so that an exception may follow the rule that it is from.
    """
    used = [0] * len(rules)
    found = 0
    nowhere: list[str] = []
    targets: dict[str, list[tuple[int, int]]] = {}
    for j, record in enumerate(pairing.candidate):
        text = str(record.site)
        for number in reversed(range(len(rules))):
            renamed = rules[number].rename(text)
            if renamed is not None:
                used[number] += 1
                targets.setdefault(_canonical(renamed), []).append((j, number))
                break
    by_name = {str(record.site): i for i, record in enumerate(pairing.reference)}
    for name, claims in targets.items():
        if len(claims) > 1:
            sites = ", ".join(f"`{pairing.candidate[j].site}`" for j, _ in claims[:4])
            nowhere.append(Note("align.mapping_collides", sites=sites, name=name))
        elif name not in by_name:
            nowhere.append(Note("align.mapping_absent", site=pairing.candidate[claims[0][0]].site, name=name))
        else:
            j, number = claims[0]
            pairing.pair(by_name[name], j, "mapping", rules[number].layout)
            found += 1
    lines = [Note("align.mapping", pairs_text=pairing.pairs_text(found), count=len(rules))]
    lines += [
        Note("align.mapping_unused", pattern=rule.pattern.pattern)
        for rule, count in zip(rules, used, strict=True)
        if not count
    ]
    more = [Note("align.mapping_more", count=len(nowhere) - 5)] if len(nowhere) > 6 else []
    return [*lines, *(nowhere[:5] if more else nowhere), *more]


def _only_dims(value: Any) -> bool:
    """Whether a rule renames nothing, and only says how a tensor lies on the ranks (see layertap.store.stated)."""
    return isinstance(value, Mapping) and set(value) == {"dims"}


def _rule(where: str, pattern: Any, value: Any) -> Rule:
    layout = None
    to = value
    if isinstance(value, Mapping):
        strange = set(value) - {"to", "layout", "dims"}
        if strange or "to" not in value:
            raise BadArgument(tr("align.mapping_keys", where=where, pattern=pattern, map=", ".join(map(str, value))))
        to = value["to"]
        layout = AxisLayout.parse(str(value["layout"])) if value.get("layout") else None
    if not isinstance(to, str):
        raise BadArgument(tr("align.mapping_replacement", where=where, pattern=pattern, to=to))
    try:
        compiled = re.compile(str(pattern))
        # A replacement that names a group that is not there fails on its first use; better here, with its place.
        re.compile(f"{pattern}|").sub(to, "")
    except (re.error, IndexError) as error:
        raise BadArgument(tr("align.mapping_regex", where=where, pattern=pattern, to=to, error=error)) from None
    return Rule(pattern=compiled, to=to, layout=layout)


def _canonical(text: str) -> str:
    try:
        return str(Site.parse(text))
    except ValueError:
        return text
