"""A golden baseline: one run as one small file of text, fit for git.

JSON lines. The first says what was recorded and carries a checksum of the rest; then one line a record, in order of
execution: what people read first, the sketch (base64) last. Values that are the usual ones are left out. NaN and
infinities are the words `"NaN"`, `"Infinity"`, `"-Infinity"`. The same run gives the same bytes: no times, no paths.

Sketches are stored as they are, in float32. Half of that would do for a bfloat16 model, but the rounding of a float16
sketch is 2,000 times the rounding of a float32 model: every golden of one would fail.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from layertap.durable import replacing
from layertap.errors import BadArgument, CorruptRun, NewerFormat, NotARun, RunError
from layertap.files import parse_json, read_bytes
from layertap.formats import open_run
from layertap.measure.definition import BUCKETS
from layertap.messages import tr
from layertap.result import jsonable
from layertap.site import Record, Sharding, Site, Statistics
from layertap.store import MemoryWriter, Run

GOLDEN_FORMAT = 1
"""The version of the file that this layertap writes, and the newest that it reads."""
SUFFIX = ".layertap"
MAX_BYTES = 64 << 20
"""A larger file is refused: such a golden does not belong in git."""

_USUAL: dict[str, Any] = {
    **dict.fromkeys(("step", "rank", "nan", "pos_inf", "neg_inf", "zero"), 0),
    **dict.fromkeys(("epoch", "batch")),
    "placements": "",
    "asked": True,
}
_TEXTS = ("kind", "phase", "dtype", "device")
_REALS = ("mean", "std", "min", "max", "abs_mean", "l2")
_COUNTS = ("count", "nan", "pos_inf", "neg_inf", "zero")
_INFO = ("model", "parameter_dtypes", "torch")


def save_golden(run: Any, path: str | os.PathLike[str]) -> None:
    """Writes the golden of a run (a `Run`, a recorder, a path): whole or not at all."""
    write_golden(golden_bytes(as_run(run)), Path(path))


def load_golden(path: str | os.PathLike[str]) -> Run:
    """Reads a golden as a run in memory. It holds statistics, fingerprints and sketches, no tensors."""
    path = Path(path)
    if not path.exists():
        raise NotARun(tr("golden.absent", path=path))
    head, lines = _read(path)
    info = {**{name: head[name] for name in _INFO if name in head}, "source": str(path)}
    # Not the time of reading: two loads of one file are one run.
    writer = MemoryWriter(info=info, name=str(path), clock=lambda: 0.0)
    for number, line in enumerate(lines, start=2):
        try:
            writer.add(_record(_parse(line)))
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            what = tr("golden.missing_key", args=error.args[0]) if isinstance(error, KeyError) else str(error)
            raise CorruptRun(
                tr("golden.line", path=path, number=number, what=what[:200], again=tr("golden.again"))
            ) from None
    writer.close()
    return Run(writer)


def as_run(source: Any) -> Run:
    """A run, whatever represents it: a `Run`, a recorder, a golden's path, or what `layertap diff` opens."""
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        return load_golden(path) if path.suffix == SUFFIX and path.is_file() else open_run(path)
    found = source if isinstance(source, (Run, MemoryWriter)) else getattr(source, "run", None)
    if not isinstance(found, (Run, MemoryWriter)):
        raise BadArgument(tr("golden.expected_run", name=type(source).__name__))
    return open_run(found)


def golden_bytes(run: Run) -> bytes:
    """The file's contents. A run that is empty, incomplete or unmeasured makes no baseline."""
    _fit(run)
    records = sorted(run.records(), key=lambda record: (record.step, record.rank, record.order, str(record.site)))
    body = "".join(f"{json.dumps(jsonable(_row(record)), allow_nan=False)}\n" for record in records).encode()
    head = {
        "layertap_golden": GOLDEN_FORMAT,
        **{name: run.info[name] for name in _INFO if name in run.info},
        "records": len(records),
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    return f"{json.dumps(jsonable(head), allow_nan=False)}\n".encode() + body


def write_golden(contents: bytes, path: Path) -> None:
    """Puts the file in place by a rename, so that processes that write one golden at a time leave a whole one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(contents)
    except OSError as error:
        raise RunError(tr("golden.not_writable", path=path, strerror=error.strerror or error)) from error


def _fit(run: Run) -> None:
    receipt = run.receipt
    if run.partial:
        raise BadArgument(tr("golden.partial", name=run.name, problems=run.problems[0]))
    if not run.sites:
        raise BadArgument(tr("golden.empty", name=run.name))
    if receipt is not None and (receipt.error or receipt.lost):
        raise BadArgument(
            tr("golden.failed", name=run.name, error=receipt.error or tr("golden.lost", lost=receipt.lost))
        )
    for record in run.records():
        if not record.sketch and record.statistics.count:
            raise BadArgument(tr("golden.no_sketch", name=run.name, site=record.site))


def _row(record: Record) -> dict[str, Any]:
    statistics = record.statistics
    row: dict[str, Any] = {"site": str(record.site), "kind": record.kind, "order": record.order}
    row |= {name: getattr(record, name) for name in ("step", "rank", "epoch", "batch", "asked")}
    row |= {"phase": record.phase, "shape": record.shape, "dtype": record.dtype}
    row |= {"device": record.device, "placements": ", ".join(record.sharding.placements) if record.sharding else ""}
    row |= {name: getattr(statistics, name) for name in (*_COUNTS, *_REALS)}
    row |= {"first": statistics.first, "fingerprint": f"{record.fingerprint:016x}"}
    row["sketch"] = base64.b64encode(record.sketch).decode("ascii")
    return {name: value for name, value in row.items() if name not in _USUAL or value != _USUAL[name]}


# The way back, without trust.


def _read(path: Path) -> tuple[dict[str, Any], Iterator[bytes]]:
    """The first line and the others, once their number and checksum are found to be right."""
    try:
        contents = read_bytes(path, MAX_BYTES)
    except OSError as error:
        raise CorruptRun(tr("golden.unreadable", path=path, strerror=error.strerror or error)) from None
    top, _, body = contents.replace(b"\r\n", b"\n").partition(b"\n")  # git may have changed the ends of lines
    try:
        head = _parse(top)
    except (ValueError, RecursionError):
        head = {}
    version = head.get("layertap_golden")
    if type(version) is not int:
        raise CorruptRun(tr("golden.not_golden", path=path, capitalize=tr("golden.again")))
    if version > GOLDEN_FORMAT:
        raise NewerFormat(tr("golden.newer", path=path, version=version, GOLDEN_FORMAT=GOLDEN_FORMAT))
    lines = body.splitlines()
    if head.get("records") != len(lines):
        raise CorruptRun(
            tr("golden.count", path=path, get=head.get("records"), count=len(lines), AGAIN=tr("golden.again"))
        )
    if head.get("sha256") != hashlib.sha256(body).hexdigest():
        raise CorruptRun(tr("golden.checksum", path=path, AGAIN=tr("golden.again")))
    dtypes = head.get("parameter_dtypes", [])
    if not isinstance(dtypes, list) or not all(isinstance(dtype, str) for dtype in dtypes):
        raise CorruptRun(tr("golden.dtypes", path=path, AGAIN=tr("golden.again")))
    return head, iter(lines)


def _parse(line: bytes) -> dict[str, Any]:
    def refuse(word: str) -> float:
        raise ValueError(tr("golden.no_json", word=word))

    value = parse_json(line, parse_constant=refuse)
    if not isinstance(value, dict):
        raise ValueError(tr("golden.no_object"))
    return value


def _record(row: Mapping[str, Any]) -> Record:
    row = {**_USUAL, **row}
    try:
        sketch = base64.b64decode(_text(row, "sketch"), validate=True)
    except ValueError:
        raise ValueError(tr("golden.no_base64")) from None
    if len(sketch) not in (0, 4 * BUCKETS):
        raise ValueError(tr("golden.sketch_size", count=len(sketch), value=4 * BUCKETS))
    fingerprint = _text(row, "fingerprint")
    if len(fingerprint) != 16 or not set(fingerprint) <= set("0123456789abcdef"):
        raise ValueError(tr("golden.fingerprint", fingerprint=fingerprint))
    if type(row["asked"]) is not bool:
        raise ValueError(tr("golden.asked"))
    site = Site.parse(_text(row, "site"))
    _whole("call", site.call, 0, 1 << 31)
    statistics: dict[str, Any] = {name: _whole(name, row[name], 0) for name in _COUNTS}
    statistics |= {name: _real(name, row[name]) for name in _REALS}
    values: dict[str, Any] = {name: _text(row, name) for name in _TEXTS}
    placements = _text(row, "placements")
    values |= {name: _whole(name, row[name]) for name in ("order", "step")}
    values |= {name: None if row[name] is None else _whole(name, row[name]) for name in ("epoch", "batch")}
    return Record(
        site=site,
        rank=_whole("rank", row["rank"], 0, 1 << 31),
        shape=tuple(_whole("shape", size, 0) for size in _list(row, "shape")),
        asked=row["asked"],
        sharding=Sharding(placements=(placements,)) if placements else None,
        fingerprint=int(fingerprint, 16),
        sketch=sketch,
        statistics=Statistics(first=tuple(_real("first", value) for value in _list(row, "first")), **statistics),
        **values,
    )


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row[name]
    if not isinstance(value, str):
        raise ValueError(tr("golden.string", name=name))
    value.encode()  # half of a surrogate pair is a ValueError here, and later in arrow, where no line is known
    return value


def _list(row: Mapping[str, Any], name: str) -> list[Any]:
    if not isinstance(row[name], list):
        raise ValueError(tr("golden.list", name=name))
    return list(row[name])


def _whole(name: str, value: Any, least: int = -(1 << 63), end: int = 1 << 63) -> int:
    if type(value) is not int or not least <= value < end:
        raise ValueError(tr("golden.whole", name=name, least=least, end=end - 1))
    return value


def _real(name: str, value: Any) -> float:
    words = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    if isinstance(value, str) and value in words:
        return words[value]
    if type(value) not in (int, float) or math.isinf(value):
        raise ValueError(tr("golden.number", name=name))
    return float(value)
