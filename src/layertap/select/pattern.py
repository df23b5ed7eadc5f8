"""One pattern: read once, then asked which modules of a tree it matches."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.select.tree import Tree, class_names, kind_of
from layertap.site import ROLES

_LEAF = r"(?::(?P<role>{role})(?:\.(?P<leaf>{leaf}))?)?"
_SUFFIX = re.compile(r"(?P<body>[^:]*)" + _LEAF.format(role=r"[^:.]*", leaf=r"[^:]*"))
# In a regular expression a colon is ordinary, as in `(?:q|k)_proj`: only a role that exists ends it.
_REGEX_SUFFIX = re.compile(r"(?P<body>.*?)" + _LEAF.format(role="|".join(ROLES), leaf=r"[\w.*?]+"))
_NUMBER = re.compile(r"(?P<one>-?\d+|first|last)|(?P<start>-?\d+)-(?P<stop>-?\d+)")
_ENDS = {"first": 0, "last": -1}
_LIST = re.compile(r"(?<![^.])\[([^\[\].:]*,[^\[\].:]*)\](?![^.:])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """What was asked for, and how to find it."""

    text: str
    """As the user wrote it."""
    role: str | None = None
    """The role it is restricted to; None means those of `what`."""
    leaf: str | None = None
    """A glob on leaves; None means all of them."""
    find: Callable[[Tree], Iterator[str]]
    """The paths in a tree that match, aliases included; a path may come twice."""


def read(item: Any, tree: Tree) -> list[Pattern]:
    """Reads one pattern; the tree is asked only whether the text is a path as it stands.

    A list of numbers is read as one pattern for each, so that none of them can go missing unnoticed.
    """
    if isinstance(item, str):
        return [_read_text(text, tree) for text in ([item] if item in tree.children else _unlisted(item))]
    return [_read_test(item)]


def _read_test(item: Any) -> Pattern:
    if isinstance(item, type):
        return _tested(item.__name__, lambda path, module: isinstance(module, item))
    if hasattr(item, "named_modules"):
        return _tested(tr("select.this", item=kind_of(item)), lambda path, module: module is item)
    if callable(item):
        return _tested(getattr(item, "__name__", repr(item)), item)
    raise BadArgument(tr("select.expected_pattern", item=item))


def glob_regex(glob: str) -> str:
    """A regular expression for one component: `*` is any run of characters, `?` is one.

    >>> glob_regex("h?ad_*")
    'h[^.]ad_[^.]*'
    """
    return "".join({"*": "[^.]*", "?": "[^.]"}.get(char, re.escape(char)) for char in glob)


@functools.cache
def leaf_regex(glob: str) -> re.Pattern[str]:
    """Matches the leaf and whatever is nested in it: `1` is also `1.key`.

    >>> [bool(leaf_regex("past.*").fullmatch(leaf)) for leaf in ("past.0", "past.0.key", "past", "")]
    [True, True, False, False]
    """
    if glob == "**":
        return re.compile(".*")
    parts = [r"[^.]+(?:\.[^.]+)*" if part == "**" else glob_regex(part) for part in glob.split(".")]
    return re.compile(r"\.".join(parts) + r"(?:\..*)?")


def _read_text(text: str, tree: Tree) -> Pattern:
    # A name may hold any of our special characters, and an exact path always means itself.
    if text in tree.children:
        return Pattern(text=text, find=lambda tree: iter([text] if text in tree.children else []))
    is_regex = text.startswith("re:")
    prefix = "re:" if is_regex else "type:" if text.startswith("type:") else ""
    match = (_REGEX_SUFFIX if is_regex else _SUFFIX).fullmatch(text[len(prefix) :])
    if match is None or match["leaf"] == "":
        raise BadArgument(tr("select.expected_site", text=text))
    role, leaf = match["role"], match["leaf"]
    if role is not None and role not in ROLES:
        near = get_close_matches(role, ROLES, n=1)
        hint = tr("select.did_you_mean_role", near=near[0]) if near else ""
        raise BadArgument(tr("select.text_no_role", text=text, role=role, ROLES=", ".join(ROLES), hint=hint))
    if not is_regex and re.search(r"@\d+$", text):
        raise BadArgument(tr("select.no_calls", text=text, text2=text[text.rindex("@") :]))
    finders = {"re:": _regex, "type:": _type, "": _glob}
    return Pattern(text=text, role=role, leaf=leaf, find=finders[prefix](match["body"], text))


def _unlisted(text: str) -> list[str]:
    """One text for each number of the lists in it.

    >>> _unlisted("layers.[0,2-5].experts.[1]")
    ['layers.[0].experts.[1]', 'layers.[2-5].experts.[1]']
    """
    match = None if text.startswith(("re:", "type:")) else _LIST.search(text)
    if match is None:
        return [text]
    heads = [f"{text[: match.start()]}[{item.strip()}]" for item in match[1].split(",")]
    return [head + tail for head in heads for tail in _unlisted(text[match.end() :])]


def _tested(name: str, test: Callable[[str, Any], object]) -> Pattern:
    return Pattern(
        text=name, find=lambda tree: (path for path, module in tree.modules.items() if bool(test(path, module)))
    )


def _regex(body: str, text: str) -> Callable[[Tree], Iterator[str]]:
    try:
        compiled = re.compile(body)
    except re.error as error:
        raise BadArgument(tr("select.regex", text=text, error=error)) from error
    return lambda tree: (path for path in tree.children if compiled.fullmatch(path))


def _type(body: str, text: str) -> Callable[[Tree], Iterator[str]]:
    if not body:
        raise BadArgument(tr("select.class_name", text=text))
    names = re.compile(fnmatch.translate(body))

    def find(tree: Tree) -> Iterator[str]:
        for path, module in tree.modules.items():
            if any(names.match(name) for name in (kind_of(module), *class_names(module))):
                yield path

    return find


def _glob(body: str, text: str) -> Callable[[Tree], Iterator[str]]:
    """Steps from the root down the tree, one component after the other."""
    components = body.split(".") if body else []
    steps = [_step(component, text) for component in components]

    def find(tree: Tree) -> Iterator[str]:
        here = {"": None}  # a dict for a set that keeps its order
        for step in steps:
            here = dict.fromkeys(path for start in here for path in step(tree, start))
        yield from here

    return find


def _step(component: str, text: str) -> Callable[[Tree, str], Iterator[str]]:
    if component == "**":
        return lambda tree, start: tree.below(start)
    if component.startswith("[") and component.endswith("]"):
        return _numbers(component[1:-1], text)
    if "[" in component or "]" in component:
        raise BadArgument(tr("select.brackets", text=text))
    if not component or "**" in component:
        raise BadArgument(tr("select.component", text=text, component=component))
    names = re.compile(glob_regex(component))

    def step(tree: Tree, start: str) -> Iterator[str]:
        children = tree.children[start]
        found = [path for name, path in children.items() if names.fullmatch(name)]
        if not found and component in _ENDS and (numbers := tree.numbered(start)):
            found = [children[str(numbers[_ENDS[component]])]]
        yield from found

    return step


def _numbers(inside: str, text: str) -> Callable[[Tree, str], Iterator[str]]:
    match = _NUMBER.fullmatch(inside.strip())
    if match is None:
        raise BadArgument(tr("select.range_number", text=text, inside=inside))
    low, high = (match["one"], match["one"]) if match["one"] else (match["start"], match["stop"])
    if match["start"] and int(low) > int(high) and (int(low) < 0) == (int(high) < 0):
        raise BadArgument(tr("select.range_order", text=text, inside=inside, high=high, low=low))

    def step(tree: Tree, start: str) -> Iterator[str]:
        numbers = tree.numbered(start)
        ends = _resolved(low, numbers), _resolved(high, numbers)
        yield from (tree.children[start][str(n)] for n in numbers if ends[0] <= n <= ends[1])

    return step


def _resolved(end: str, numbers: list[int]) -> int:
    # A number is a child's name, not its place: [30] is the child called 30. Only negative ones count places.
    place = 0 if end == "first" else -1 if end == "last" else int(end)
    if end != "first" and place >= 0:
        return place
    return numbers[place] if -len(numbers) <= place < len(numbers) else -1
