"""What names suggest: which tensors of the other side a tensor should come from. Only values prove it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from layertap.site import natural_key
from layertap.weights.entries import Weights

_PREFIXES = ("module.", "_orig_mod.", "model.", "transformer.", "base_model.model.", "language_model.", "state_dict.")
_LAYER = re.compile(r"(?:^|(?<=\.))\d+(?=\.|$)")


def suggested(model: Weights, other: Weights) -> dict[str, tuple[str, ...]]:
    """Model tensor → the tensors of the other side that its name suggests, in the order of their numbers."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    rename = _transformers(model.model)
    for name in sorted(other.entries, key=natural_key):
        for guess in _guesses(name, rename):
            if guess in model.entries:
                found[guess].append(name)
                break
        else:
            ends = [own for own in model.entries if own.endswith(f".{name}") or name.endswith(f".{own}")]
            if len(ends) == 1:
                found[ends[0]].append(name)
    for own in model.entries if other.called is not None else ():
        called = other.called(own) if other.called is not None else None
        if called in other.entries and own not in found:
            found[own].append(str(called))
    fused = _fused(model, found, other)
    # A name that is the same is the best suggestion; others that lead there too are parts only where it is absent.
    direct = {own: (own,) if own in names else tuple(names) for own, names in found.items()}
    return {**fused, **direct}


_PACKED: dict[str, tuple[tuple[str, ...], ...]] = {
    "qkv_proj": (("q_proj", "k_proj", "v_proj"),),
    "qkv": (("q", "k", "v"), ("q_proj", "k_proj", "v_proj"), ("wq", "wk", "wv")),
    "wqkv": (("wq", "wk", "wv"),),
    "Wqkv": (("q_proj", "k_proj", "v_proj"),),
    "gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3")),
    "in_proj_weight": (("q_proj_weight", "k_proj_weight", "v_proj_weight"),),
}
"""Fused tensors by the names that the field has for them, and the order in which their parts are read."""


def packed(model: Any) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Fused tensor → its parts in order: by custom, and by the `packed_modules_mapping` of vLLM's classes."""
    found = dict(_PACKED)
    for module in model.modules() if hasattr(model, "modules") else ():
        mapping = getattr(type(module), "packed_modules_mapping", None)
        for fused, parts in mapping.items() if isinstance(mapping, Mapping) else ():
            if isinstance(parts, (list, tuple)) and len(parts) > 1:
                found[str(fused)] = (tuple(map(str, parts)),)
    return found


def _fused(model: Weights, found: Mapping[str, list[str]], other: Weights) -> dict[str, tuple[str, ...]]:
    """For a fused tensor of the model, its parts on the other side; and for a part, what it is fused in there."""
    orders = packed(model.model)
    suggestions: dict[str, tuple[str, ...]] = {}
    there = {bare: name for name in other.entries for bare in _guesses(name, None)}
    for name in model.entries:
        if name in found:
            continue
        words = name.split(".")
        for place, word in enumerate(words):
            for order in orders.get(word, ()):
                parts = [".".join((*words[:place], part, *words[place + 1 :])) for part in order]
                if all(part in there for part in parts):
                    suggestions[name] = tuple(there[part] for part in parts)
            for fused, ways in orders.items():
                whole = ".".join((*words[:place], fused, *words[place + 1 :]))
                if any(word in order for order in ways) and whole in there:
                    suggestions[name] = (there[whole],)
    return suggestions


def _guesses(name: str, rename: Any) -> Iterable[str]:
    yield name
    if rename is not None:
        yield rename(name)
    bare = name
    while prefix := next((p for p in _PREFIXES if bare.startswith(p)), ""):
        bare = bare.removeprefix(prefix)
        yield bare
    for prefix in _PREFIXES:
        yield prefix + name
        yield prefix + bare


def _transformers(model: Any) -> Any:
    """What transformers makes of a file's key while loading, by its own tables; None where it has none."""
    if not hasattr(model, "base_model_prefix"):
        return None
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, rename_source_key

        table = get_model_conversion_mapping(model)
        converters = [entry for entry in table if isinstance(entry, WeightConverter)]
        renamings: Any = [entry for entry in table if not isinstance(entry, WeightConverter)]
        held = dict.fromkeys(model.state_dict(), True)

        def rename(name: str) -> str:
            return str(rename_source_key(name, renamings, converters, model.base_model_prefix, held)[0])

        rename("x")
    except Exception:  # noqa: BLE001  a table of another version of transformers: names alone suggest, values decide
        return None
    return rename


def permutes_for_rope(model: Any) -> bool:
    """Whether transformers, while loading this class, brings rows into another rope layout."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping

        table = get_model_conversion_mapping(model)
    except Exception:  # noqa: BLE001  no model of transformers, or another version of its tables
        return False
    steps = [step for entry in table for step in getattr(entry, "operations", ())]
    return any("Rope" in type(step).__name__ for step in steps)


def ignored(model: Any, name: str) -> bool:
    """Whether the model's class says of itself that it does without this tensor of a checkpoint."""
    patterns = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    return any(re.search(pattern, name) for pattern in patterns)


def out_of_order(names: Iterable[str]) -> str:
    """The first part that is not where the others' order says: by number, and alike for every number; empty if none.

    >>> out_of_order(["e.0.w1", "e.0.w3", "e.1.w1", "e.1.w3"]), out_of_order(["q", "k", "v"])
    ('', '')
    >>> out_of_order(["e.1.w", "e.0.w", "e.2.w"]), out_of_order(["e.0.gate", "e.0.up", "e.1.up", "e.1.gate"])
    ('e.0.w', 'e.1.up')
    """
    last: dict[str, list[int]] = {}
    kinds: dict[tuple[int, ...], list[str]] = {}
    first: list[str] = []
    for name in names:
        kind, numbers = kind_of(name), [int(number) for number in _LAYER.findall(name)]
        if kind in last and last[kind] > numbers:
            return name
        last[kind] = numbers
        own = kinds.setdefault(tuple(numbers), [])
        own.append(kind)
        first = first or own
        if own is not first and first[: len(own)] != own and len(first) >= len(own):
            return name
    return ""


def kind_of(name: str) -> str:
    """The name without its numbers: the same for all layers."""
    return _LAYER.sub("#", name)
