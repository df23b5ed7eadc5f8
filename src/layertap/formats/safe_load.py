"""Files that layertap did not write: loaded one at a time, trusted in nothing, and never run."""

from __future__ import annotations

import os
import re
import stat
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from layertap.errors import CorruptRun, NotARun
from layertap.files import check_archive, check_crcs, too_large
from layertap.messages import tr
from layertap.result import Note
from layertap.site import Record, Site
from layertap.store.dtype import Bytes
from layertap.store.memory import MemoryWriter
from layertap.store.run import Run

if TYPE_CHECKING:
    import torch

DEPTH = 8
"""How deep a nested value is searched for tensors."""
PLACES = 10_000
"""How many values one file may hold."""

TEXTS = frozenset(
    f".{suffix}"
    for suffix in "txt md rst log json yaml yml toml html csv py ipynb png jpg svg pdf".split()  # noqa: SIM905
)
"""Suffixes of what may lie beside tensors and holds none."""

T = TypeVar("T")
Read = Callable[[], "torch.Tensor"]
Stamp = tuple[int, int, int]


class ForeignFiles:
    """Collects what a foreign folder or file holds, and what is wrong with it, and makes a run of it.

    foreign = ForeignFiles("gpu_reference", layout="layers")
    before = regular(path)
    for site, tensor in ...:
        foreign.put(record_of(site, tensor), path, before, read)      # `read` loads that tensor again
    run = foreign.run(prompt="Hello")
    """

    def __init__(self, path: Path, *, layout: str, name: str = "") -> None:
        self.path = path
        self.layout = layout
        self.name = name or str(path)
        self.problems: list[str] = []
        self.unread: list[str] = []
        """What may hold tensors and was not read; files of the folder from which nothing came are added at the end."""
        self.numbers: dict[str, int | float] = {}
        """Single numbers beside the tensors, by their names."""
        self.used: set[Path] = set()
        """Files that were read for what they say of others."""
        self.loaded: Any = None
        """What the reader keeps of the file that it loaded last."""
        self._sources: set[Path] = set()
        self.rows: list[tuple[Record, Callable[[], Bytes] | None]] = []

    def put(self, record: Record, path: Path, before: Stamp, read: Read) -> None:
        """Takes a record; `read` gives its tensor again, from the file at `path`, which was `before` when measured."""
        kept = replace(record, kept="tensor", kept_shape=record.shape, kept_dtype=record.dtype)
        self.rows.append((kept, _lazily(kept, path, before, read)))
        self._sources.add(path)

    def put_statistics(self, record: Record) -> None:
        """Takes a record that has no tensor."""
        self.rows.append((record, None))

    def attempt(self, work: Callable[[Path], T], path: Path) -> T | None:
        """What `work(path)` gives; when the file cannot be read, None, and the problem is reported."""
        try:
            return work(path)
        except CorruptRun as error:
            self.problems.append(str(error))
            return None

    def run(self, order: Callable[[Record], Any] | None = None, **info: Any) -> Run:
        """The run. With `order`, a key to sort by, records are put in that order of execution, step by step."""
        if not self.rows:
            problems = "; ".join(self.problems[:3]) or tr("formats.no_tensors_or_stats")
            raise CorruptRun(tr("formats.nothing_read", name=self.name, problems=problems))
        unread = [*self.unread, *self._ignored()]
        problems = "\n".join(self.problems)
        silent = [name for name in unread if f"/{name}" not in problems]
        if silent:
            some = ", ".join(silent[:8]) + (tr("formats.more", value=len(silent) - 8) if len(silent) > 8 else "")
            self.problems.append(Note("formats.not_read", path=self.path, some=some))
        about = {**info, "layout": self.layout, "source": str(self.path), "unread": unread, "numbers": self.numbers}
        writer = MemoryWriter(info=about, name=self.name)
        writer.problems += self.problems
        rows = self.rows if order is None else sorted(self.rows, key=lambda row: (row[0].step, order(row[0])))
        for place, (record, data) in enumerate(rows):
            writer.add(replace(record, order=place), data)
        writer.close()
        return Run(writer)

    def _ignored(self) -> list[str]:
        """What is in the folder and gave nothing, but for texts and pictures."""
        if not self.path.is_dir():
            return []
        seen = {path.relative_to(self.path).parts[0] for path in (*self._sources, *self.used)}
        seen |= {name for name in listed(self.path) if (self.path / name / "run.json").exists()}  # a run of its own
        names = [name for name in listed(self.path) if not name.startswith(".") and name not in seen]
        return [name for name in names if (self.path / name).is_dir() or Path(name).suffix.lower() not in TEXTS]


def load_pt(path: Path) -> Any:
    """The tensors and plain values in a `.pt` file. A pickle that asks for more is refused; no code of it is run."""
    import torch

    regular(path)
    try:
        if zipfile.is_zipfile(path):
            check_archive(path, str(path))
            check_crcs(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's advice on a file that it cannot read speaks of other ways to load
            return torch.load(path, map_location="cpu", weights_only=True)
    except CorruptRun:
        raise
    except Exception as error:  # noqa: BLE001 - a damaged file raises a dozen kinds
        text = str(error)
        if needs := re.search(r"GLOBAL ([\w.]+)", text):
            raise CorruptRun(tr("formats.refused", path=path, needs=needs[1])) from None
        # torch's own text may advise weights_only=False, which is how such a file gets to run its code.
        reason = "" if "weights" in text.lower() else text.strip().partition("\n")[0][:160]
        raise CorruptRun(tr("formats.not_torch", path=path, reason=reason or type(error).__name__)) from None


def listed(folder: Path) -> list[str]:
    """The names in a folder, sorted."""
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise NotARun(tr("formats.folder", folder=folder, strerror=error.strerror or error)) from None


def regular(path: Path) -> Stamp:
    """Refuses what is not a file (a pipe would be waited on forever); gives that by which a changed file is known."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise CorruptRun(tr("formats.unreadable", path=path, strerror=error.strerror or error)) from None
    if not stat.S_ISREG(found.st_mode):
        raise CorruptRun(tr("formats.not_regular", path=path))
    return found.st_ino, found.st_size, found.st_mtime_ns


def leaves(value: Any) -> dict[str, torch.Tensor]:
    """The tensors in a nested value by their key path; the value itself has the empty one. None may stand anywhere.

    >>> import torch
    >>> sorted(leaves((torch.ones(1), None, {"mask": torch.ones(1)})))
    ['0', '2.mask']
    >>> leaves("text")
    Traceback (most recent call last):
    ValueError: a str, expected a tensor
    """
    found: dict[str, torch.Tensor] = {}
    for count, (path, tensor) in enumerate(_walk("", value, 0)):
        if count > PLACES:  # a list that contains one list many times multiplies at every depth
            raise ValueError(tr("formats.too_nested", places=PLACES))
        if tensor is not None:
            found.setdefault(path, tensor)
    return found


def record_of(site: Site, tensor: torch.Tensor, **moment: Any) -> Record:
    """A record of a tensor from a file: measured, with nothing assumed of where it was made."""
    from layertap.measure import measure, supported

    if reason := supported(tensor):
        raise ValueError(reason)
    # A view that repeats its elements (stride 0) may have any size: it is laid out when it is read.
    if why := too_large(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()):
        raise ValueError(tr("formats.expanded", shape=list(tensor.shape), why=why))
    measured = measure(tensor)
    given = {"kind": "", "order": 0, "step": 0, "phase": "eval", "device": "unknown", **moment}
    return Record(
        site=site,
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        statistics=measured.statistics,
        fingerprint=measured.fingerprint,
        sketch=measured.sketch,
        **given,
    )


def _lazily(record: Record, path: Path, before: Stamp, read: Read) -> Callable[[], Bytes]:
    def tensor_bytes() -> Bytes:
        import torch

        if regular(path) != before:
            raise CorruptRun(tr("formats.changed", path=path, site=record.site))
        tensor = read().detach().resolve_conj().resolve_neg().contiguous()
        raw: Bytes = tensor.reshape(-1).view(torch.uint8).numpy()
        return raw

    return tensor_bytes


def _walk(path: str, value: Any, depth: int) -> Iterator[tuple[str, torch.Tensor | None]]:
    import torch

    if value is None or isinstance(value, torch.Tensor):
        yield path, value
        return
    if not isinstance(value, (tuple, list, Mapping)) or depth == DEPTH:
        where = f" at {path!r}" if path else ""
        raise ValueError(tr("formats.where_expected_tensor", name=type(value).__name__, where=where))
    yield path, None
    for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from _walk(f"{path}.{key}" if path else str(key), item, depth + 1)
