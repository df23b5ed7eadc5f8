"""Tensors of one kind, layer after layer, come from the other side in one way: one that does not is wrong.

Each may be proven by itself and still be a fault: the shard of another rank, keys before queries in one layer, one
layer's rows in the layout of another library.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

from layertap.result import Note
from layertap.weights.compose import Composition
from layertap.weights.entries import Weights
from layertap.weights.hints import kind_of, packed, permutes_for_rope
from layertap.weights.sides import Relation

_PLAIN = ("same", "renamed", "cast")
_PARTNERS = (("q_proj", "k_proj"), ("wq", "wk"), ("query", "key"), ("q", "k"), ("attn_q", "attn_k"))
_WAYS = (
    *_PLAIN,
    "transposed",
    "concatenated",
    "stacked",
    "interleaved",
    "shard",
    "rows permuted",
    "reshaped",
    "LoRA merged",
)


def inconsistent(
    model: Weights, other: Weights, found: Mapping[str, Relation], made: Mapping[str, Composition | None]
) -> dict[str, Relation]:
    """Relations that have to be replaced: those of the minority of their kind, and parts in an order that is wrong."""
    used = Counter(other for relation in found.values() for other in relation.others)
    wrong = _of_ranks(found, made, used)
    wrong |= _packed_in_order(model, found)
    wrong |= _rope_layouts(model, other, found)
    groups: defaultdict[tuple[object, ...], dict[str, tuple[object, ...]]] = defaultdict(dict)
    for name, relation in found.items():
        if relation.status in ("exact", "cast", "converted") and relation.rule in _WAYS and relation.others:
            groups[kind_of(name), model.entries[name].shape][name] = _way(relation, made.get(name), used)
    for ways in groups.values():
        counted = Counter(ways.values()).most_common()
        if len(counted) < 2:
            continue
        usual = counted[0][0]
        first = next(name for name, way in ways.items() if way == usual)
        for name, way in ways.items():
            if way != usual and name not in wrong:
                sides = {"own": _relation_text(found[name]), "theirs": _relation_text(found[first])}
                detail = Note("audit.unlike", **sides, count=counted[0][1], first=first)
                wrong[name] = replace(found[name], status="changed", detail=detail)
    return wrong


def _way(relation: Relation, made: Composition | None, used: Counter[str]) -> tuple[object, ...]:
    """How it came to be, in terms that are the same for every layer."""
    if relation.rule in _PLAIN:
        return ("plain",)
    if relation.rule == "LoRA merged" and isinstance(relation.detail, Note):
        return (relation.rule, f"{relation.detail.values['by']:.2g}")
    if made is None:
        return (relation.rule, *_form(relation))
    if relation.rule == "shard" and used[relation.others[0]] > 1:
        return ("split",)
    if relation.rule == "shard":
        return ("shard", made.runs[0].across, made.runs[0].start)
    order = tuple(dict.fromkeys(kind_of(owner) for owner in made.owners))
    return (relation.rule, made.transposed, order, *_form(relation))


def _form(relation: Relation) -> tuple[object, ...]:
    """In which order rows lie that are permuted."""
    permuted = relation.rule == "rows permuted" and isinstance(relation.detail, Note)
    return (relation.detail.code, *relation.detail.values.values()) if permuted else ()  # type: ignore[attr-defined]


def _relation_text(relation: Relation) -> Note:
    if relation.rule in _PLAIN:
        return Note("audit.as_there")
    if relation.rule in ("concatenated", "interleaved", "stacked"):
        parts = dict.fromkeys(_part(kind_of(name)) for name in relation.others)
        return Note("audit.made_from", rule=relation.rule, parts=", ".join(parts))
    if not relation.detail:
        return Note("audit.rule_alone", rule=relation.rule)
    return Note("audit.rule_detail", rule=relation.rule, detail=relation.detail)


def _rope_layouts(model: Weights, other: Weights, found: Mapping[str, Relation]) -> dict[str, Relation]:
    """Rows in the other rope layout: wrong where keys and queries part, or where both sides are of one class."""
    own, theirs = model.config.get("model_type"), other.config.get("model_type")
    one_class = own is not None and own == theirs
    wrong = {}
    for name, relation in found.items():
        if relation.rule != "rows permuted" or relation.status != "converted":
            continue
        partner = found.get(_partner(name))
        sound = partner is not None and partner.status in ("exact", "cast", "converted")
        if partner is not None and sound and _form(partner) != _form(relation):
            note = Note(
                "audit.rope_apart", own=_relation_text(relation), theirs=_relation_text(partner), name=_partner(name)
            )
        elif one_class and relation.others == (name,) and not permutes_for_rope(model.model):
            note = Note("audit.rope_one_class", first=relation.detail, model_type=str(own))
        else:
            continue
        wrong[name] = replace(relation, status="changed", detail=note)
    return wrong


def _partner(name: str) -> str:
    """The keys that belong to these queries, or the queries that belong to these keys; empty where there are none."""
    words = name.split(".")
    for one, two in _PARTNERS:
        for word, own in ((one, two), (two, one)):
            if word in words:
                return ".".join(own if part == word else part for part in words)
    return ""


def _of_ranks(
    found: Mapping[str, Relation], made: Mapping[str, Composition | None], used: Counter[str]
) -> dict[str, Relation]:
    """Of a model that is one of several shards: tensors that are the shard of another rank."""
    ranks: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for name, relation in found.items():
        composed = made.get(name)
        alone = relation.rule == "shard" and used[relation.others[0]] == 1  # one of several is split, not sharded
        if alone and relation.status == "converted" and composed is not None:
            run = composed.runs[0]
            if not run.total % run.length and not run.start % run.length:
                ranks[run.total // run.length][name] = run.start // run.length
    wrong = {}
    for world, held in ranks.items():
        (rank, count), *others = Counter(held.values()).most_common()
        for name, own in held.items() if others else ():
            if own != rank:
                detail = Note("audit.rank", own=own, world=world, count=count, rank=rank)
                wrong[name] = replace(found[name], status="changed", detail=detail)
    return wrong


def _packed_in_order(model: Weights, found: Mapping[str, Relation]) -> dict[str, Relation]:
    """Fused tensors whose name says in which order their parts are read: queries, keys, values; gate, up."""
    orders = packed(model.model)
    wrong = {}
    for name, relation in found.items():
        if relation.rule not in ("concatenated", "stacked") or relation.status != "converted":
            continue
        parts = list(dict.fromkeys(_part(other) for other in relation.others))
        for fused in name.split("."):
            for order in orders.get(fused, ()):
                if sorted(parts) == sorted(order) and parts != list(order):
                    read = {"parts": ", ".join(parts), "order": ", ".join(order)}
                    detail = Note("audit.read_order", **read, fused=fused)
                    wrong[name] = replace(relation, status="changed", detail=detail)
    return wrong


def _part(name: str) -> str:
    """`q_proj` of `layers.0.attn.q_proj.weight`."""
    words = [word for word in name.split(".") if word != "#" and not word.isdigit()]
    return words[-2] if len(words) > 1 and words[-1] in ("weight", "bias") else words[-1]
