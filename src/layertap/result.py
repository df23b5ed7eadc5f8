"""What the verbs return: data that can be pickled, compared and rebuilt; sentences are made from codes.

Verdict      one of four words, and the exit code of each
Note         a code and its values; reads as the sentence that they make
Result       what all results share: text, dictionary, JSON, HTML, each made by a registered renderer
register     who renders what; the index card of the package registers `layertap.report`
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from layertap.errors import BadArgument, LayertapError
from layertap.messages import tr

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
Verdict = Literal["identical", "noise", "fault", "inconclusive"]
EXIT_CODES: Mapping[Verdict, int] = {"identical": 0, "noise": 0, "fault": 1, "inconclusive": 3}


class Note(str):
    """One thing to know about a result: a code of the message catalogue and its values.

    It is the sentence itself, in the language of whoever made or unpickled it, so it can be printed and joined;
    decisions are made by `code` and `values`, never by the sentence.

    >>> note = Note("result.identical")
    >>> note, note.code, Note.from_dict(note.to_dict()) == note
    ('IDENTICAL', 'result.identical', True)
    """

    __slots__ = ("code", "values")
    code: str
    values: Mapping[str, Any]

    def __new__(cls, code: str, /, **values: Any) -> Note:
        note = super().__new__(cls, tr(code, **values))
        note.code, note.values = code, {name: _plain(value) for name, value in values.items()}
        return note

    def __reduce__(self) -> tuple[Any, ...]:
        return _note, (self.code, dict(self.values))

    def to_dict(self) -> dict[str, Any]:
        values = {name: one.to_dict() if isinstance(one, Note) else one for name, one in self.values.items()}
        return {"code": self.code, "values": values}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Note:
        values = data["values"]
        return cls(
            data["code"],
            **{name: cls.from_dict(one) if isinstance(one, Mapping) else one for name, one in values.items()},
        )


def _note(code: str, values: Mapping[str, Any]) -> Note:
    return Note(code, **values)


def code_key(field: str) -> str:
    """The key under which a dictionary has the codes of a field's notes: `note_codes` beside `notes`."""
    return f"{field}_code" if field in ("why", "where") else f"{field.removesuffix('s')}_codes"


def with_codes(data: dict[str, Any], result: Any, *names: str) -> dict[str, Any]:
    """A dictionary of a result with the codes of the notes in some of its fields beside them."""
    for name in names:
        notes = getattr(result, name)
        data[code_key(name)] = codes([notes])[0] if isinstance(notes, str) else codes(notes)
    return data


def code_of(text: str) -> str:
    """The code of a note; empty for plain text."""
    return text.code if isinstance(text, Note) else ""


def joined(first: str, second: str) -> Note:
    """Two notes as one, which keeps the codes of both."""
    return Note("result.joined", first=first, second=second)


def note_from(text: str, data: Any) -> str:
    """A note as it was written: rebuilt from its code, or the plain text where it had none."""
    try:
        return Note.from_dict(data) if isinstance(data, Mapping) else text
    except (LookupError, ValueError, TypeError, AttributeError, ImportError):  # of another version, or damaged
        return text


def codes(notes: Iterable[str]) -> list[dict[str, Any] | None]:
    """What is beside a list of notes in a dictionary: the code and the values of each, None for plain text."""
    return [note.to_dict() if isinstance(note, Note) else None for note in notes]


def as_dict(value: Any) -> dict[str, Any]:
    """A dataclass as plain values, from which `rebuild` makes it again; codes of notes are beside them."""
    data: dict[str, Any] = {}
    for field in fields(value):
        if field.compare:
            item = getattr(value, field.name)
            data[field.name] = jsonable(item)
            if any(
                isinstance(note, Note)
                for note in ([item] if isinstance(item, str) else item if isinstance(item, tuple) else ())
            ):
                data[code_key(field.name)] = codes([item])[0] if isinstance(item, str) else codes(item)
    return data


def jsonable(value: Any) -> Any:
    """A value in JSON's types; NaN and the infinities become strings, which JSON lacks; null would lie.

    >>> jsonable({"max": float("nan"), "min": (float("-inf"), 1)})
    {'max': 'NaN', 'min': ['-Infinity', 1]}
    """
    if isinstance(value, Result):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return str(value) if hasattr(value, "parse") else as_dict(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(name): jsonable(item) for name, item in value.items()}
    if isinstance(value, (tuple, list, set, frozenset)):
        return [jsonable(item) for item in value]
    if value is None or isinstance(value, (bool, int, float)) or type(value) is str:
        return value
    return value.hex() if isinstance(value, bytes) else str(value)


def rebuild(kind: type[T], data: Any) -> T:
    """A dataclass from the plain values that represent its fields: sequences become tuples, texts sites and notes.

    Unknown keys are left out. The file may be damaged, or written by anyone: a value of another type than its field's,
    or a missing one, is a BadArgument.
    """
    if not isinstance(data, Mapping):
        raise BadArgument(tr("result.not_mapping", name=kind.__name__, given=type(data).__name__))
    hints, values = _hints(kind), {}  # type: ignore[arg-type]
    try:
        for field in fields(kind):  # type: ignore[arg-type]
            if field.init and field.name in data:
                values[field.name] = _typed(hints[field.name], data[field.name], data.get(code_key(field.name)))
        return kind(**values)
    except BadArgument:
        raise
    except (TypeError, KeyError, ValueError, AttributeError, ImportError) as error:
        raise BadArgument(tr("result.not_a", name=kind.__name__, error=error)) from error


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _typed(hint: Any, value: Any, notes: Any = None) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return None if value is None else _typed(next(one for one in inner if one is not NoneType), value, notes)
    if origin is Literal:
        return _checked(value, isinstance(value, str) and value in inner, inner)
    if origin in (tuple, list, Sequence):
        _checked(value, isinstance(value, (list, tuple)), tuple)
        if origin is tuple and inner[-1:] != (...,):
            return tuple(_typed(one, item) for one, item in zip(inner, value, strict=True))
        return tuple(_typed(inner[0], item, note) for item, note in zip_longest(value, notes or ()))
    if origin in (dict, Mapping):
        items = _checked(value, isinstance(value, Mapping), Mapping).items()
        return {_typed(inner[0], _key(inner[0], name)): _typed(inner[1], item) for name, item in items}
    if is_dataclass(hint):
        if isinstance(value, str) and hasattr(hint, "parse"):
            return hint.parse(value)
        return hint.from_dict(value) if hasattr(hint, "from_dict") else rebuild(hint, value)  # type: ignore[arg-type]
    if isinstance(hint, type) and issubclass(hint, Mapping):
        return hint(_typed(hint.__orig_bases__[0], value))  # type: ignore[attr-defined, call-arg]
    return _plain_value(hint, value, notes)


def _plain_value(hint: Any, value: Any, notes: Any) -> Any:
    if hint is Note:
        return Note.from_dict(value)
    if hint is str:
        return note_from(_checked(value, isinstance(value, str), str), notes)
    if hint is float and isinstance(value, str):
        return _NOT_FINITE[value]
    if hint is float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return float(_checked(value, number and abs(value) <= sys.float_info.max, float))
    return _checked(value, type(value) is hint, hint) if hint in (int, bool) else value


_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _key(hint: Any, name: Any) -> Any:
    """The key of a JSON object is a text."""
    return int(name) if hint is int and isinstance(name, str) else name


def _checked(value: Any, right: bool, expected: Any) -> Any:
    if not right:
        raise ValueError(f"{str(value)[:60]!r}, expected {getattr(expected, '__name__', expected)}")
    return value


def equal(one: Any, other: Any) -> bool:
    """Whether two results, or values in them, are the same; NaN equals NaN."""
    if one is other:
        return True
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, str) or isinstance(other, str):
        return bool(one == other)
    if isinstance(one, Sequence) and isinstance(other, Sequence):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal(value, other[name]) for name, value in one.items())
    if type(one) is type(other) and is_dataclass(one) and not hasattr(one, "parse"):
        return all(
            equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(one) if field.compare
        )
    return bool(one == other)


def _plain(value: Any) -> Any:
    """A value of a note that holds no object: numbers and texts stay, anything else becomes the text that is shown."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    return value.item() if hasattr(value, "item") and not getattr(value, "shape", ()) else str(value)


class Result:
    """What every result can do; how it looks is registered for its class.

    Subclasses are frozen dataclasses with `eq=False`: two results are equal when their fields are, NaN included.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return equal(self, other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self).__name__, str(getattr(self, "verdict", ""))))

    def __str__(self) -> str:
        text: str = render(self, "text")
        return text

    def to_dict(self) -> dict[str, Any]:
        """As plain values; NaN and the infinities as strings."""
        found: dict[str, Any] = render(self, "dict") if renders(self, "dict") else as_dict(self)
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """What `to_dict` gave, or what `json.loads` made of it."""
        return rebuild(cls, data)

    def to_json(self, path: str | os.PathLike[str]) -> None:
        write_text(path, json.dumps(self.to_dict(), indent=2, allow_nan=False, ensure_ascii=False))

    def to_html(self, path: str | os.PathLike[str]) -> None:
        write_text(path, render(self, "html"))

    def _repr_html_(self) -> str:
        html: str = render(self, "notebook")
        return html


_RENDERERS: dict[tuple[str, str], str] = {}


def register(kind: str, **forms: str) -> None:
    """Names the functions that render a class of results: `register("Report", text="layertap.report.diff:text")`."""
    for form, where in forms.items():
        _RENDERERS[kind, form] = where


def renders(result: Any, form: str) -> bool:
    """Whether a form is registered for a result's class."""
    return any((kind.__name__, form) in _RENDERERS for kind in type(result).__mro__)


def render(result: Any, form: str) -> Any:
    """A result in a form: `text`, `dict`, `html`, `notebook`, `markdown`."""
    for kind in type(result).__mro__:
        where = _RENDERERS.get((kind.__name__, form))
        if where is not None:
            module, _, name = where.partition(":")
            return getattr(import_module(module), name)(result)
    raise LayertapError(tr("result.no_form", name=type(result).__name__, form=form))


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a result's file; a BadArgument where that cannot be done."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadArgument(tr("result.unwritable", path=path, strerror=error.strerror or error)) from error
