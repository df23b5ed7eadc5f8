"""From the plain values of a dictionary, or of JSON, back to dataclasses, by the types of their fields."""

from __future__ import annotations

import math
import sys
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
    """An object of a dataclass from what `to_dict` gave; unknown keys are left out, missing ones are an error.

    So is a value of another type than its field's: the file may be damaged, or written by anyone.
    """
    if not isinstance(data, Mapping):
        raise BadArgument(tr("result.not_mapping", name=kind.__name__, given=type(data).__name__))
    hints = _hints(kind)
    try:
        values = {one.name: _value(hints[one.name], data[one.name]) for one in fields(kind) if one.name in data}
        return kind(**values)
    except (TypeError, KeyError, ValueError, AttributeError, ImportError) as error:
        raise BadArgument(tr("result.not_a", name=kind.__name__, error=error)) from error


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _value(hint: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return None if value is None else _value(next(one for one in arguments if one is not type(None)), value)
    if origin is typing.Literal:
        return _checked(value, value in arguments if isinstance(value, str) else False, arguments)
    if hint is float:
        if isinstance(value, str):
            return _WORDS[value]
        return float(_checked(value, _is_number(value), float))
    if hint in (int, str, bool):
        return _checked(value, type(value) is hint or (hint is str and isinstance(value, str)), hint)
    if hint is Note:
        return Note.from_dict(value)
    if is_dataclass(hint):
        return from_plain(hint, value)
    if origin is tuple:
        _checked(value, isinstance(value, (list, tuple)), tuple)
        if len(arguments) == 2 and arguments[1] is ...:
            return tuple(_value(arguments[0], one) for one in value)
        return tuple(_value(one, part) for one, part in zip(arguments, value, strict=True))
    if getattr(hint, "__name__", "") == "Matrix":
        return hint(_value(Mapping[str, Mapping[str, Mapping[str, float]]], value))
    if len(arguments) == 2:
        return {
            _value(arguments[0], key): _value(arguments[1], one)
            for key, one in _checked(value, isinstance(value, Mapping), Mapping).items()
        }
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _checked(value: Any, right: bool, expected: Any) -> Any:
    if not right:
        raise ValueError(f"{str(value)[:60]!r}, expected {getattr(expected, '__name__', expected)}")
    return value
