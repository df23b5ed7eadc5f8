"""Polygraphy's JSON: the outputs of its runners, or the inputs that it fed them.

    {"lst": [[runner, [{"outputs": {name: array}}, ...]], ...]}   one step for each iteration; `file.json#runner`
    [{name: array}, ...]                                          inputs, or outputs without a runner

An array is {"array": base64 of an .npy file}, by itself or inside {"values": ...}. Nothing is unpickled.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layertap.errors import BadArgument, CorruptRun
from layertap.files import open_regular, parse_json, read_bytes, reading
from layertap.formats.npy import read_npy
from layertap.formats.safe_load import regular
from layertap.messages import tr

LARGEST = 2 << 30
"""A larger file is refused: it would be in memory several times over."""
_MARKS = (b"polygraphy", b'"array"')


def is_polygraphy(path: Path) -> bool:
    """Whether a JSON file looks like Polygraphy's."""
    try:
        with open_regular(path) as file:
            head = file.read(1 << 16)
            file.seek(max(0, regular(path)[1] - (1 << 16)))
            return any(mark in part for part in (head, file.read()) for mark in _MARKS)
    except (OSError, CorruptRun):
        return False


def load(path: Path) -> list[tuple[int, Any]]:
    """(iteration, {name: array}) for the only runner in the file, or {runner: ...} for `only` to choose from."""
    data = _read(path)
    if not isinstance(data, Mapping) or not isinstance(data.get("lst"), list):
        steps = data if isinstance(data, list) else [data]
        return [(step, _arrays(value, path)) for step, value in enumerate(steps)]
    found = _runs(data, path)
    if len(found) == 1:
        return [(step, _arrays(value, path)) for step, value in enumerate(next(iter(found.values())))]
    longest = max((len(values) for values in found.values()), default=0)
    return [
        (step, _Runners({name: _arrays(values[step], path) for name, values in found.items() if step < len(values)}))
        for step in range(longest)
    ]


def runners(path: Path) -> list[str]:
    """The names of the runners in a file of results."""
    data = _read(path)
    return list(_runs(data, path)) if isinstance(data, Mapping) and isinstance(data.get("lst"), list) else []


def only(runner: str, value: Any) -> Any:
    """What one runner gave."""
    return value.get(runner, {}) if isinstance(value, _Runners) else value


class _Runners(dict[str, Any]):
    """What several runners gave at one step."""


def check_runner(path: Path) -> None:
    """An error that lists the runners, if there are several to choose from."""
    names = runners(path)
    if len(names) > 1:
        raise BadArgument(
            tr(
                "formats.which_runner",
                path=path,
                count=len(names),
                value=", ".join(f"{path}#{name}" for name in names),
            )
        )


def _read(path: Path) -> Any:
    with reading(str(path), "not JSON"):
        return parse_json(read_bytes(path, LARGEST))


def _runs(data: Mapping[str, Any], path: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for item in data["lst"]:
        if not (isinstance(item, list) and len(item) == 2 and isinstance(item[1], list)):
            raise CorruptRun(tr("formats.polygraphy", path=path, value=str(item)[:60]))
        found.setdefault(str(item[0]), []).extend(
            one.get("outputs", one) if isinstance(one, Mapping) else one for one in item[1]
        )
    return found


def _arrays(value: Any, path: Path) -> Any:
    if not isinstance(value, Mapping):
        return [_arrays(item, path) for item in value] if isinstance(value, list) else value
    if isinstance(value.get("array"), str):
        with reading(str(path), tr("formats.undecoded")):
            raw = base64.b64decode(value["array"], validate=True)
            return read_npy(io.BytesIO(raw), str(path), len(raw))
    if "values" in value and set(value) <= {"values", "polygraphy_class"}:
        return _arrays(value["values"], path)
    return {key: _arrays(item, path) for key, item in value.items() if key != "polygraphy_class"}
