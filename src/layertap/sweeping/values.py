"""Values of a definition, checked one by one: each error names where, what it got, and what it takes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from layertap.errors import BadArgument
from layertap.messages import tr


def check_keys(data: Mapping[str, Any], known: set[str], where: str) -> None:
    """Refuses a key that is not known, and names the nearest."""
    for key in data:
        if key not in known:
            raise BadArgument(
                tr(
                    "sweeping.no_key",
                    where=where,
                    key=key,
                    value=did_you_mean(str(key), known),
                    value2=", ".join(sorted(known)),
                )
            )


def table(data: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    """A table below a key; empty where there is none."""
    value = data.get(key) or {}
    if not isinstance(value, Mapping):
        raise BadArgument(tr("sweeping.table", where=where, key=key, value=value))
    return value


def of_kind(data: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    """The value of a key, which is of this kind or absent."""
    value = data.get(key)
    if value is not None and not isinstance(value, kind):
        raise BadArgument(tr("sweeping.string", where=where, key=key, value=value))
    return value


def strings(value: Any, where: str) -> tuple[str, ...]:
    """A string or a list of strings, as a tuple."""
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
        raise BadArgument(tr("sweeping.strings", where=where, value=value))
    return tuple(value)


def whole_number(data: Mapping[str, Any], key: str, where: str, default: int, least: int = 1) -> int:
    """A whole number that is not too small."""
    value = data.get(key, default)
    if type(value) is not int or (key in data and value < least):
        raise BadArgument(tr("sweeping.whole", where=where, key=key, value=value, least=least))
    return value


def time_limit(value: Any, where: str, least: float = 1e-3) -> float:
    """A time in seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= least:
        raise BadArgument(tr("sweeping.seconds", where=where, value=value))
    return float(value)


def did_you_mean(name: str, names: Any) -> str:
    """The end of a message that names what is nearest."""
    near = difflib.get_close_matches(name, sorted(names), n=2, cutoff=0.5)
    return tr("sweeping.did_you_mean", value=" or ".join(map(repr, near))) if near else ""
