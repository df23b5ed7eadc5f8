"""A model's own paths as the numbered names of the `layers` layout."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from layertap.errors import BadArgument
from layertap.messages import tr

_OWN = re.compile(r"embedding|layer_[0-9]+|final_norm|logits|lm_head")
_NUMBERED = re.compile(r"((?:.*\.)?)([0-9]+)", re.DOTALL)
_NOT_THE_EMBEDDING = re.compile(r"pos|rot|rope|type", re.IGNORECASE)
_HEADS = ("lm_head", "logits", "embed_out", "output", "head")


def layer_names(paths: Sequence[str]) -> dict[str, str]:
    """Names for the paths of a model, given in order of execution; paths without a place in the layout are left out.

    >>> layer_names(["embed_tokens", "layers.0", "layers.1", "norm", "lm_head"])
    {'embed_tokens': 'embedding', 'layers.0': 'layer_1', 'layers.1': 'layer_2', 'norm': 'final_norm',
     'lm_head': 'logits'}

    Blocks count from 1, and keep their true number when only some were recorded:

    >>> layer_names(["h.0", "h.30", "h.61"])
    {'h.0': 'layer_1', 'h.30': 'layer_31', 'h.61': 'layer_62'}
    """
    own = {path: path for path in paths if _OWN.fullmatch(path)}
    # Many a model calls its head lm_head. Numbered layers, or nothing but such names: the run came from such a folder,
    # and its numbers are not ours to change.
    if len(own) == len(paths) or any(path.startswith("layer_") for path in own):
        return own
    family = block_family(paths)
    if family is None:
        return {}
    blocks = [path for path in paths if (match := _NUMBERED.fullmatch(path)) and match[1] == family]
    numbers = [int(path[len(family) :]) for path in blocks]
    # Blocks that run in another order than their numbers say are counted as they come.
    rising = all(one < two for one, two in pairwise(numbers))
    named = {
        path: f"layer_{(number if rising else place) + 1}"
        for place, (path, number) in enumerate(zip(blocks, numbers, strict=True))
    }
    places = {path: place for place, path in enumerate(paths)}
    first, last = places[blocks[0]], places[blocks[-1]]
    outside = [path for path in paths if path and not path.startswith(family or "\0") and path not in named]
    before = [path for path in outside if places[path] < first and "embed" in path.lower()]
    before = [path for path in before if not _NOT_THE_EMBEDDING.search(path.rpartition(".")[2])]
    after = [(path, path.rpartition(".")[2].lower()) for path in outside if places[path] > last]
    norms = [path for path, end in after if "norm" in end or end == "ln_f"]
    heads = [path for path, end in after if end in _HEADS]
    # The outermost is the whole of it; of several as far out, the last one is what the blocks are fed.
    embedding = {min(reversed(before), key=_depth): "embedding"} if before else {}
    norm = {min(norms, key=_depth): "final_norm"} if norms else {}
    head = {min(heads, key=_depth): "logits"} if heads else {}
    return {**embedding, **named, **norm, **head}


def block_family(paths: Sequence[str]) -> str | None:
    """What the repeated blocks' paths have before their number: `model.layers.`.

    The largest family that is in no other: experts, and layers inside of layers, are no blocks.
    """
    families: dict[str, int] = {}
    for path in paths:
        if match := _NUMBERED.fullmatch(path):
            families[match[1]] = families.get(match[1], 0) + 1
    outer = [
        family
        for family in families
        if not any(other != family and re.match(re.escape(other) + r"[0-9]+\.", family) for other in families)
    ]
    return max(outer, key=lambda family: families[family], default=None)


def with_given(named: Mapping[str, str], given: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """The names with those that the user gave, which win; an unknown path, or a name given twice, is an error."""
    for path, name in given.items():
        if path not in known:
            near = difflib.get_close_matches(path, list(known), n=5, cutoff=0.5)
            raise BadArgument(
                tr("formats.names_unknown", path=path) + (tr("formats.nearest", near=", ".join(near)) if near else "")
            )
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise BadArgument(tr("formats.names_letters", path=path, name=name))
    names = list(given.values())
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadArgument(tr("formats.names_twice", value=", ".join(map(repr, twice))))
    return {**{path: name for path, name in named.items() if path not in given and name not in names}, **given}


def _depth(path: str) -> int:
    return path.count(".")
