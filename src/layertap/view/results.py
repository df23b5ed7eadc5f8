"""Results beside runs: a sweep's folder, or the JSON of an audit, a knock-out, a fault search or a comparison."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from layertap.errors import BadArgument, MissingExtra
from layertap.files import parse_json, read_bytes
from layertap.messages import printable, tr
from layertap.report.document import Document
from layertap.report.documents import document_of

SWEEP = "sweep.json"
KINDS: Mapping[str, tuple[frozenset[str], str]] = {
    "sweep": (frozenset(("modes", "groups", "matrix", "reference")), "layertap.sweeping.result:Sweep"),
    "audit": (frozenset(("model", "other", "rows", "by_status")), "layertap.weights.result:Audit"),
    "doctor": (frozenset(("answer", "sentence", "evidence", "audit")), ""),
    "knockout": (frozenset(("tokens", "perplexity", "rows")), ""),
    "fault": (frozenset(("site", "cause", "explained", "table")), "layertap.fault.result:Finding"),
    "diff": (frozenset(("reference", "candidate", "rows", "unmatched")), "layertap.compare.result:Report"),
}
"""A kind of result: the keys by which its JSON is known, and its class."""


class ResultFile:
    """One result, read again when its file changes."""

    def __init__(self, source: str, number: int) -> None:
        self.source, self.number = source, number
        path = Path(source)
        self.path = path / SWEEP if path.is_dir() else path
        self._stamp: tuple[int, int] | None = None
        self.version = 0
        self.problem = ""
        self.kind = ""
        self.data: dict[str, Any] = {}
        self.document = Document(title="", verdict="", headline="")
        self.refresh(first=True)

    @property
    def name(self) -> str:
        return printable(os.path.basename(os.path.normpath(self.source)) or self.source)

    def refresh(self, *, first: bool = False) -> None:
        try:
            stat = self.path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if stamp == self._stamp:
                return
            self.kind, self.data = read_result(self.path)
            self.document, self.problem, self._stamp = _document(self.kind, self.data), "", stamp
        except (OSError, BadArgument) as error:
            if first:
                raise
            problem = tr("view.gone", path=self.source, error=printable(str(error)))
            if problem == self.problem:
                return
            self.problem = problem
        self.version += 1

    def runs(self) -> list[str]:
        """The runs of a sweep's modes, the reference's first."""
        if self.kind != "sweep":
            return []
        modes = self.data["modes"]
        first = self.data["reference"]
        named = [first, *(name for name in modes if name != first)]
        return [modes[name]["path"] for name in named if name in modes and modes[name].get("path")]


def is_result(source: str) -> bool:
    """Whether a path is a result and no run: a sweep's folder, or a JSON file that contains one."""
    path = Path(source)
    if path.is_dir():
        return (path / SWEEP).is_file()
    if path.suffix.lower() != ".json" or not path.is_file():
        return False
    try:
        return bool(read_result(path))
    except (OSError, BadArgument):
        return False


def read_result(path: Path) -> tuple[str, dict[str, Any]]:
    """The kind of a result and its data."""
    try:
        data = parse_json(read_bytes(path))
    except (ValueError, OSError) as error:
        raise BadArgument(tr("view.no_result", path=path, error=error)) from None
    if isinstance(data, dict):
        for kind, (wanted, _) in KINDS.items():
            if wanted <= data.keys():
                return kind, data
    raise BadArgument(tr("view.no_result", path=path, error=tr("view.unknown_result", known=", ".join(KINDS))))


def _document(kind: str, data: dict[str, Any]) -> Document:
    makers: Mapping[str, Callable[[dict[str, Any]], Document]] = {"knockout": _knockout, "doctor": _doctor}
    try:
        if kind in makers:
            return makers[kind](data)
        module, _, name = KINDS[kind][1].partition(":")
        return document_of(getattr(import_module(module), name).from_dict(data))
    except ImportError as error:
        raise MissingExtra(tr("view.result_needs", kind=kind, package=error.name)) from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BadArgument(tr("view.bad_result", kind=kind, error=f"{type(error).__name__}: {error}")) from error


def _knockout(data: dict[str, Any]) -> Document:
    from layertap.report.documents.weights import knockout_document

    found: Any = SimpleNamespace(**{**data, "rows": [_row(row) for row in data["rows"]]})
    return knockout_document(found)


def _doctor(data: dict[str, Any]) -> Document:
    from layertap.report.documents.weights import diagnosis_document
    from layertap.weights.doctor import Diagnosis
    from layertap.weights.result import Audit

    known: dict[str, Any] = {name: data[name] for name in ("answer", "sentence", "site") if name in data}
    known |= {name: tuple(data.get(name, ())) for name in ("evidence", "cuts")}
    known["harm"] = tuple(_row(row) for row in data.get("harm", ()))
    return diagnosis_document(Diagnosis(**known, audit=Audit.from_dict(data["audit"])))


def _row(row: Mapping[str, Any]) -> SimpleNamespace:
    """A row with its numbers as numbers: NaN and the infinities are texts in JSON."""
    words = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
    return SimpleNamespace(**{k: words.get(v, v) if isinstance(v, str) else v for k, v in row.items()})
