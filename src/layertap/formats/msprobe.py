"""A folder that msprobe (Ascend's accuracy tools) dumped: dump.json with the tensors beside it, or statistics alone.

    step0/rank0/dump.json                                      what was dumped, in order; statistics of each tensor
    step0/rank0/dump_tensor_data/Module.conv1.Conv2d.forward.0.output.0.pt

    Module.conv1.Conv2d.forward.0.output.0     the site conv1 (class Conv2d, call 0)
    Module.conv1.Conv2d.forward.0.input.0      conv1:input
    Module.conv1.Conv2d.backward.0.input.0     conv1:grad_output: what msprobe calls a gradient's input
    Functional.relu.2.forward.output.0         Functional.relu@2

The folder of a rank, of a step, or the whole dump may be given.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layertap.errors import CorruptRun
from layertap.files import parse_json, read_bytes, reading
from layertap.formats import numbers
from layertap.formats.files import take_file
from layertap.formats.safe_load import TEXTS, ForeignFiles, listed
from layertap.messages import tr
from layertap.result import Note
from layertap.site import Record, Site, natural_key
from layertap.store.run import Run

DUMP = "dump.json"
TENSORS = "dump_tensor_data"
LARGEST = 1 << 30
_STEP = re.compile(r"step(\d+)")
_RANK = re.compile(r"(?:rank|proc)(\d*)")
_MODULE = re.compile(
    r"(?:Module|Cell)\.(?P<path>.+)\.(?P<kind>[^.]+)\.(?:(?P<pass>forward|backward)\.(?P<call>\d+)|parameters_grad)"
)
_API = re.compile(r"(?P<path>[^.]+\..+)\.(?P<call>\d+)\.(?P<pass>forward|backward)")
_ROLES = {
    ("forward", "input_args"): "input",
    ("forward", "input_kwargs"): "input",
    ("forward", "output"): "output",
    ("forward", "parameters"): "param",
    ("backward", "input"): "grad_output",
    ("backward", "output"): "grad_input",
    ("forward", "input"): "input",
}


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One entry of dump.json."""

    site: Site
    kind: str
    given: Mapping[str, Any]


def is_msprobe(folder: Path) -> bool:
    """Whether a folder, or one of its steps and ranks, was dumped by msprobe."""
    return bool(_ranks(folder))


def read_msprobe(path: str | os.PathLike[str]) -> Run:
    """Reads such a folder; what only has statistics keeps its numbers."""
    folder = Path(path)
    foreign = ForeignFiles(folder, layout="msprobe")
    for step, rank, place in _ranks(folder):
        tensors = place / TENSORS
        files = set(listed(tensors)) if tensors.is_dir() else set()
        for entry in _entries(foreign, place):
            record = _statistics(entry, step, rank)
            file = entry.given.get("data_name")
            before = len(foreign.rows)
            if isinstance(file, str) and file in files:
                files.discard(file)
                take_file(foreign, tensors / file, "", change=_moved(entry, step, rank))
                if wrong := [text for record, _ in foreign.rows[before:] for text in _disagreements(record, entry)]:
                    foreign.problems.append(
                        Note(
                            "formats.stale_site", value=place / DUMP, site=entry.site, file=file, wrong="; ".join(wrong)
                        )
                    )
            if len(foreign.rows) == before and record is not None:
                foreign.put_statistics(record)
        foreign.unread += [str((tensors / file).relative_to(folder)) for file in sorted(files, key=natural_key)]
        foreign.used.add(tensors)
        if place != folder:
            others = [name for name in listed(place) if name != TENSORS and Path(name).suffix.lower() not in TEXTS]
            foreign.unread += [str((place / name).relative_to(folder)) for name in others]
    return foreign.run()


def _ranks(folder: Path) -> list[tuple[int, int, Path]]:
    """(step, rank, folder) of every dump at or below a folder."""
    if (folder / DUMP).is_file():
        names = folder.absolute().parts[-2:]
        step = next((int(match[1]) for name in names if (match := _STEP.fullmatch(name))), 0)
        rank = next((int(match[1] or 0) for name in names if (match := _RANK.fullmatch(name))), 0)
        return [(step, rank, folder)]
    found = []
    for name in sorted(listed(folder), key=natural_key):
        if (folder / name).is_dir() and (_STEP.fullmatch(name) or _RANK.fullmatch(name)):
            found += _ranks(folder / name)
    return found


def _entries(foreign: ForeignFiles, folder: Path) -> Iterator[_Tensor]:
    path = folder / DUMP
    try:
        with reading(str(path), tr("formats.not_msprobe")):
            items = list(parse_json(read_bytes(path, LARGEST))["data"].items())
    except CorruptRun as error:
        foreign.problems.append(str(error))
        return
    for name, value in items:
        yield from _of_name(foreign, str(name), value)


def _of_name(foreign: ForeignFiles, name: str, value: Any) -> Iterator[_Tensor]:
    match = _MODULE.fullmatch(name) or _API.fullmatch(name)
    if match is None or not isinstance(value, Mapping):
        foreign.unread.append(f"{DUMP}: {name}")
        return
    found = match.groupdict()
    for part, held in value.items():
        role = "param_grad" if found["pass"] is None else _ROLES.get((found["pass"], part))
        if role is None:
            continue
        leaves = dict(_leaves("" if found["pass"] else part, held))
        for leaf, given in leaves.items():
            only = role not in ("param", "param_grad") and len(leaves) == 1 and part != "input_kwargs"
            site = Site(path=found["path"], role=role, leaf="" if only else leaf, call=int(found["call"] or 0))
            yield _Tensor(site, found.get("kind") or "", given)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(value, Mapping):
        if "Tensor" in str(value.get("type", "")) and "shape" in value:
            yield path, value
            return
        for key, item in value.items():
            yield from _leaves(f"{path}.{key}" if path else str(key), item)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            # A parameter's gradient is a list of one.
            inner = path if path and len(value) == 1 else f"{path}.{place}" if path else str(place)
            yield from _leaves(inner, item)


def _moved(entry: _Tensor, step: int, rank: int) -> Any:
    return lambda record: replace(record, site=entry.site, kind=entry.kind, step=step, rank=rank)


def _disagreements(record: Record, entry: _Tensor) -> list[str]:
    """Where what dump.json says of a tensor cannot be true of the one in its file."""
    given = {name.lower(): value for name, value in entry.given.items() if value is not None}
    return numbers.disagreements(record, given | {"dtype": numbers.dtype_of(entry.given).lower()}, ddof=0)


def _statistics(entry: _Tensor, step: int, rank: int) -> Record | None:
    """What dump.json alone says of a tensor: Max, Min, Mean and Norm."""
    shape = numbers.shape_of(entry.given)
    given = {name.lower(): value for name, value in entry.given.items()}
    if shape is None or given.get("norm") is None:
        return None
    count = math.prod(shape)
    mean, norm = (numbers.number(given.get(name)) for name in ("mean", "norm"))
    spread = norm * norm / count - mean * mean if count else 0.0
    known: dict[str, Any] = {"mean": mean, "std": math.nan if math.isnan(spread) else math.sqrt(max(spread, 0.0))}
    known |= {name: given.get(name) for name in ("min", "max")}
    return Record(
        site=entry.site,
        kind=entry.kind,
        order=0,
        step=step,
        phase="eval",
        rank=rank,
        shape=shape,
        dtype=numbers.dtype_of(entry.given).lower(),
        device="unknown",
        statistics=numbers.ours(known, count, ddof=0),
        fingerprint=0,
        sketch=b"",
    )
