"""What a pattern that matches nothing may have meant."""

from __future__ import annotations

from difflib import get_close_matches

from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.select.collapse import collapse
from layertap.select.pattern import Pattern, read
from layertap.select.tree import Tree, class_names, kind_of

SHOWN = 5
"""How many suggestions an error carries."""


def no_match(pattern: Pattern, tree: Tree) -> str:
    """The text of the error: the pattern, how many modules there are, and the nearest names."""
    text = tr("select.no_match", text=pattern.text, count=len(tree.modules), kind_of=kind_of(tree.modules[""]))
    parts = [part.strip() for part in pattern.text.split(",")]
    if len(parts) > 1 and all(_found(part, tree) for part in parts):
        return tr("select.several", text=text, parts=parts, parts2=" --sites ".join(parts))
    near = nearest(pattern.text, tree)
    if near:
        return tr("select.nearest", text=text, near=", ".join(near))
    top = list(collapse(path for path in tree.children[""].values()))
    return tr("select.top", text=text, top=", ".join(top[:SHOWN]) or "nothing")


def nearest(text: str, tree: Tree) -> list[str]:
    """Names that are like the one asked for, best first; each is itself a pattern that matches.

    The same pattern below another prefix comes first (`layers.*` where the model has `model.layers.*`), then numbers
    that are there in place of those that are not, then names that are spelt alike.
    """
    if text.startswith("type:"):
        names = {name for module in tree.modules.values() for name in (kind_of(module), *class_names(module))}
        asked = text.removeprefix("type:").strip("*")
        other_case = [name for name in sorted(names) if asked.lower() in name.lower()][:SHOWN]
        return [f"type:{name}" for name in dict.fromkeys([*other_case, *_like(asked, sorted(names))])]
    if text.startswith("re:"):
        moved = f"re:.*{text.removeprefix('re:')}.*"
        return [moved] if _found(moved, tree) else []
    body, colon, suffix = text.partition(":")
    found = [*_elsewhere(body, tree), *_other_numbers(body, tree)]
    # Numbers are folded before spelling is compared: a model of 48,000 modules has a few dozen different names.
    folded = list(collapse(path for path in tree.modules if path))
    plain = {_unnumbered(name): name for name in folded}
    found += [plain[name] for name in _like(_unnumbered(body), list(plain))]
    ends = {name.rpartition(".")[2]: name for name in reversed(folded)}
    found += [ends[name] for name in _like(body.rpartition(".")[2], list(ends))]
    return [name + colon + suffix for name in dict.fromkeys(found)][:SHOWN]


def _elsewhere(body: str, tree: Tree) -> list[str]:
    """The pattern below a prefix that the model has, or without the prefix that the model lacks."""
    parts = body.split(".")
    shorter = [".".join(parts[start:]) for start in range(1, len(parts))]
    prefixes = [path for path in tree.modules if path and path.count(".") < 2]
    longer = [f"{prefix}.{body}" for prefix in collapse(prefixes)]
    return [moved for moved in (*longer, *shorter) if moved not in ("*", "**") and _found(moved, tree)][:SHOWN]


def _other_numbers(body: str, tree: Tree) -> list[str]:
    opened = _unnumbered(body)
    return list(collapse(_found(opened, tree))) if opened != body else []


def _unnumbered(body: str) -> str:
    return ".".join("*" if part.startswith("[") or part.isdecimal() else part for part in body.split("."))


def _found(text: str, tree: Tree) -> list[str]:
    try:
        return [path for pattern in read(text, tree) for path in pattern.find(tree)]
    except BadArgument:
        return []


def _like(name: str, names: list[str]) -> list[str]:
    # 0.5 and not difflib's 0.6: `atn` should still find `self_attn`.
    return get_close_matches(name, names, n=3, cutoff=0.5)
