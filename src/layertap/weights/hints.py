"""What names suggest: which tensors of the other side a tensor should come from. Only values prove it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from layertap.weights.entries import Weights

_PREFIXES = ("module.", "_orig_mod.", "model.", "transformer.", "base_model.model.", "language_model.", "state_dict.")
_LAYER = re.compile(r"(?:^|(?<=\.))\d+(?=\.|$)")


def suggested(model: Weights, other: Weights) -> dict[str, tuple[str, ...]]:
    """Model tensor → the tensors of the other side that its name suggests, in the order of their numbers."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    rename = _transformers(model.model)
    for name in sorted(other.entries, key=natural):
        for guess in _guesses(name, rename):
            if guess in model.entries:
                found[guess].append(name)
                break
        else:
            ends = [own for own in model.entries if own.endswith(f".{name}") or name.endswith(f".{own}")]
            if len(ends) == 1:
                found[ends[0]].append(name)
    # A name that is the same is the best suggestion; others that lead there too are parts only where it is absent.
    return {own: (own,) if own in names else tuple(names) for own, names in found.items()}


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


def natural(name: str) -> list[tuple[int, int | str]]:
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name)]
