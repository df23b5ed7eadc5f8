"""What the verbs return: data that can be pickled, compared and rebuilt; sentences are made from codes.

Verdict      one of four words, and the exit code of each
Note         a code and its values; reads as the sentence that they make
Result       what all results share: text, dictionary, JSON, HTML, each made by a registered renderer
register     who renders what; the index card of the package registers `layertap.report`
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from layertap.errors import BadArgument, LayertapError
from layertap.messages import tr

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
        note.code, note.values = code, values
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


class Result:
    """What every result can do; how it looks is registered for its class."""

    __slots__ = ()

    def __str__(self) -> str:
        text: str = render(self, "text")
        return text

    def to_dict(self) -> dict[str, Any]:
        """As plain values; NaN and the infinities as strings."""
        found: dict[str, Any] = render(self, "dict")
        return found

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


def render(result: Any, form: str) -> Any:
    """A result in a form: `text`, `dict`, `html`, `notebook`, `markdown`."""
    for kind in type(result).__mro__:
        where = _RENDERERS.get((kind.__name__, form))
        if where is not None:
            module, _, name = where.partition(":")
            return getattr(import_module(module), name)(result)
    raise LayertapError(f"a {type(result).__name__} has no {form} form")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a result's file; a BadArgument where that cannot be done."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadArgument(f"{path}: no report can be written here ({error.strerror or error})") from error
