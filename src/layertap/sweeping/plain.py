"""From the plain values of a dictionary, or of JSON, back to dataclasses, by the types of their fields."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union

from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.result import Note

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def from_plain(kind: Any, data: Any) -> Any:
    """An object of a dataclass from what `to_dict` gave; unknown keys are left out, missing ones are an error."""
    if not isinstance(data, Mapping):
        raise BadArgument(tr("sweeping.dict_expected", name=kind.__name__, name2=type(data).__name__))
    hints = _hints(kind)
    try:
        values = {one.name: _value(hints[one.name], data[one.name]) for one in fields(kind) if one.name in data}
        return kind(**values)
    except (TypeError, KeyError, ValueError) as error:
        raise BadArgument(tr("sweeping.dict_wrong", name=kind.__name__, error=error)) from error


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _value(hint: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _value(next(one for one in arguments if one is not type(None)), value)
    if hint is float:
        return _WORDS.get(value, value) if isinstance(value, str) else float(value)
    if hint is Note:
        return Note.from_dict(value)
    if is_dataclass(hint):
        return from_plain(hint, value)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is ...:
            return tuple(_value(arguments[0], one) for one in value)
        return tuple(_value(one, part) for one, part in zip(arguments, value, strict=True))
    if getattr(hint, "__name__", "") == "Matrix":
        return hint(
            {
                a: {b: {site: _value(float, e) for site, e in errors.items()} for b, errors in row.items()}
                for a, row in value.items()
            }
        )
    if isinstance(value, Mapping) and len(arguments) == 2:
        return {key: _value(arguments[1], one) for key, one in value.items()}
    return value
