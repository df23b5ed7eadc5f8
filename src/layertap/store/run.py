"""Reading a run: lazily, without torch, and without trusting a byte of it."""

from __future__ import annotations

import difflib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from layertap.errors import BadArgument, CorruptRun, NewerFormat, SiteNotFound
from layertap.messages import printable, tr
from layertap.result import Note, render
from layertap.site import Receipt, Record, Site
from layertap.store.dtype import Bytes
from layertap.store.index import Index, Rows, as_arrow
from layertap.store.kept import KeptTensors, check, checksum, keyed
from layertap.store.memory import MemoryWriter
from layertap.store.mirror import Mirror, mirror_of
from layertap.store.opening import open_folder, problems_of
from layertap.store.records import SiteRecords
from layertap.store.schema import RECORD, SCHEMA, SKETCHES, TEXTS
from layertap.store.shards import MemoryShard, Shard, decode, tensor_path
from layertap.store.storage import is_url
from layertap.store.tensorfile import is_empty

T = TypeVar("T")

BLOCK = 2048
"""Records that are read at a time."""
_CACHED_GROUPS = 8


class Run:
    """A recorded run, from its folder or from a `MemoryWriter`.

        run = Run("runs/a")
        run.sites                               # in order of execution
        run["model.layers.3"].statistics
        run["model.layers.3"].at(step=2).tensor()
        run.table(["site", "step", "l2"]).to_pandas()

    Opening reads run.json and the footers of the parquet files. It is a snapshot: of a run that is still being written,
    it shows what was committed at that moment. Damaged parquet files are left out and named in `problems`. `since`, the
    name of a shard, opens only that one and what its writer wrote after it: the newest part of a long run.

    A tensor's bytes are checked against their fingerprint whenever they are handed out, and `diff` checks what it
    reads; a CorruptRun names file, site and step. `verify=False` hands out damaged tensors too.
    """

    def __init__(self, source: str | os.PathLike[str] | MemoryWriter, *, since: str = "", verify: bool = True) -> None:
        self.path: Path | None = None
        """The folder; None for a run in memory."""
        self.source = "" if isinstance(source, MemoryWriter) else str(source)
        """What opens it again in another process: a folder, a file of another tool, a URL; empty where nothing does."""
        self.verify = verify
        """Whether the bytes of tensors are checked when they are handed out."""
        self._memory: MemoryWriter | None = None
        self._mirror: Mirror | None = None
        """What has been read of a run in object storage."""
        self._whole = not since
        self._problems: list[str] = []
        self._shards: list[Shard | MemoryShard] = []
        self._groups: OrderedDict[tuple[int, int, tuple[str, ...]], Any] = OrderedDict()
        if isinstance(source, MemoryWriter):
            self._memory = source
            self._files = {source.rank: {**source.info}}
            self._shards += [MemoryShard(table, number) for number, table in enumerate(source.tables)]
        else:
            if isinstance(source, str) and is_url(source):
                self._mirror = mirror_of(source)
            self.path = Path(source) if self._mirror is None else self._mirror.folder
            opened = open_folder(self.path, since, url="" if self._mirror is None else self._mirror.url)
            self._files, self._problems = opened.files, opened.problems
            self._shards += opened.shards
            self._kept = KeptTensors(self.path, opened.shards, self._mirror)
        self.info: dict[str, Any] = next(iter(self._files.values()), {})
        """run.json, or the lowest rank's."""

    @property
    def sessions(self) -> tuple[dict[str, Any], ...]:
        """Every time that a process wrote to this run: by rank, then by time."""
        return tuple(session for file in self._files.values() for session in (*file["sessions"], file))

    @property
    def partial(self) -> bool:
        """Whether something may be missing: a writer that is at work or died, records lost, files damaged."""
        return bool(self.problems)

    @property
    def problems(self) -> tuple[str, ...]:
        """What is known to be missing, in words."""
        told = []
        for session in self.sessions:
            told += problems_of(session)
        if self._memory is None and self._whole and not self._problems and (wrote := self._receipted()) > self.count:
            told.append(Note("store.records_gone", name=self.name, wrote=wrote, count=self.count))
        return (*told, *self._problems, *self._without_tensors)

    @cached_property
    def _without_tensors(self) -> tuple[str, ...]:
        # By the footers alone: their statistics say which shards kept something; a tensor file has its shard's name.
        told = []
        for shard in self._shards:
            if isinstance(shard, Shard) and self.path is not None and shard.keeps_tensors:
                name = f"{shard.stem}.safetensors"
                try:
                    if self._is_empty(self.path, name):
                        told.append(Note("store.tensors_empty", path=self.path, name=name, rows=shard.rows))
                except CorruptRun as error:
                    if shard.merged_into() is not None:
                        continue
                    told.append(Note("store.tensors_lost", error=error, rows=shard.rows))
        return tuple(told)

    def _is_empty(self, folder: Path, name: str) -> bool:
        empty = None if self._mirror is None else self._mirror.is_empty(name)
        return is_empty(tensor_path(folder, name)) if empty is None else empty

    def _receipted(self) -> int:
        receipts = (session.get("receipt") for session in self.sessions)
        counts = [receipt.get("records") for receipt in receipts if isinstance(receipt, dict)]
        thinned = [session.get("thinned") for session in self.sessions]  # out of the shards of earlier sessions
        wrote, gone = (sum(count for count in some if isinstance(count, int)) for some in (counts, thinned))
        return wrote - gone

    @cached_property
    def receipt(self) -> Receipt | None:
        """What the capture really did; None when it never ended."""
        data = self.info.get("receipt")
        if data is None:
            return None
        try:
            return Receipt.from_dict(data)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise CorruptRun(tr("store.receipt_damaged", name=self.name)) from None

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """The sites that were asked for, in order of execution."""
        return self.index.sites_asked()

    @cached_property
    def inputs(self) -> tuple[Record, ...]:
        """The model's own inputs, which are recorded unasked."""
        return tuple(self.records_at(self.index.unasked()))

    @cached_property
    def index(self) -> Index:
        """Where each record lies."""
        return Index(self._shards, self._attempt)

    @property
    def count(self) -> int:
        """How many records there are."""
        return sum(shard.rows for shard in self._shards)

    def table(self, columns: Sequence[str] | None = None) -> Any:
        """All records as a pyarrow table, or some columns of it; shards that cannot be read are named in `problems`."""
        names = list(SCHEMA.names if columns is None else columns)
        for name in names:
            if name not in SCHEMA.names:
                raise BadArgument(
                    tr("store.no_column", name=name, name2=_nearest(name, SCHEMA.names), names=", ".join(SCHEMA.names))
                )
        schema = pa.schema([SCHEMA.field(name) for name in names], metadata=SCHEMA.metadata)
        tables = [table.cast(schema) for table in self.tables(names)]
        return pa.concat_tables(tables) if tables else schema.empty_table()

    def tables(self, columns: Sequence[str], encoded: Sequence[str] = ()) -> Iterator[Any]:
        """The same shard by shard, so that one of them is in memory at a time; those in `encoded` as dictionaries."""
        for shard in self._shards:
            table = self._attempt(shard.read, columns, None, encoded)
            if table is not None:
                yield table

    def records(
        self, site: Site | str | None = None, *, step: int | None = None, rank: int | None = None
    ) -> Iterator[Record]:
        """The records of one site, or all of them as they were written, holding one block of them in memory.

        Of one step or rank, the others are not read. Those that cannot be read are named in `problems`.
        """
        if site is not None:
            yield from self[site]
            return
        if step is not None or rank is not None:
            rows = np.arange(len(self.index))
            for name, value in (("step", step), ("rank", rank)):
                rows = rows if value is None else rows[self.index.values(name, rows) == value]
            yield from self.readable(rows)
            return
        for shard in self._shards:
            for group in range(len(shard.groups)):
                yield from self._attempt(decode, shard, group) or ()

    def readable(self, rows: Rows) -> Iterator[Record]:
        """Those of the records at these rows of `index` that can be read, block by block."""
        for begin in range(0, len(rows), BLOCK):
            block = rows[begin : begin + BLOCK]
            while len(block := self.index.left(block)):
                with suppress(CorruptRun):  # which is reported, and leaves fewer rows
                    yield from self.records_at(block)
                    break

    def __getitem__(self, site: Site | str) -> SiteRecords:
        rows = self.index.find(_canonical(site))
        if not len(rows):
            names = [str(known) for known in (*self.sites, *self.index.sites)]
            raise SiteNotFound(
                tr(
                    "store.no_site",
                    name=self.name,
                    site=str(site),
                    value=_nearest(str(site), names),
                    count=len(self.sites),
                )
            )
        return SiteRecords(self, Site.parse(_canonical(site)), rows)

    def __contains__(self, site: object) -> bool:
        return isinstance(site, (Site, str)) and len(self.index.find(_canonical(site))) > 0

    def __iter__(self) -> Iterator[Site]:
        return iter(self.sites)

    def __len__(self) -> int:
        """How many sites there are; see `count` for the records."""
        return len(self.sites)

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        steps = self.index.steps()
        span = (
            tr("store.no_steps")
            if not len(steps)
            else tr("store.one_step", steps=steps[0])
            if len(steps) == 1
            else tr("store.steps", steps=steps[0], steps2=steps[-1])
        )
        state = tr("store.partial", count=len(self.problems)) if self.partial else tr("store.complete")
        return printable(
            tr("store.run_text", name=self.name, count=len(self.sites), count2=self.count, span=span, state=state)
        )

    def _repr_html_(self) -> str:
        html: str = render(self, "notebook")
        return html

    def __repr__(self) -> str:
        return printable(tr("store.run_repr", name=self.name, count=self.count))

    def record_at(self, row: int) -> Record:
        """One record by its row in `index`."""
        return self.records_at(np.array([row]))[0]

    def records_at(self, rows: Rows, *, sketches: bool = True) -> list[Record]:
        """Records by their rows in `index`; without their sketches, which are most of what is on disk, if so asked.

        A CorruptRun where one cannot be read: its row group is then named in `problems` and left out of the index.
        """
        found: list[Any] = [None] * len(rows)
        names = tuple(name for name in RECORD if sketches or name not in SKETCHES)
        for mine, records in self._by_group(rows, names, decode):
            for place, record in zip(mine.tolist(), records, strict=True):
                found[place] = record
        return found

    def columns_at(self, rows: Rows, columns: Sequence[str]) -> Any:
        """Some columns of the records at these rows of `index`, as an arrow table in the same order.

        A CorruptRun where one cannot be read, as `records_at` has it.
        """
        order, tables = np.empty(len(rows), np.int64), []
        begin = 0
        for mine, table in self._by_group(rows, tuple(columns), lambda _, __, table: table):
            order[mine] = np.arange(begin, begin + len(mine))
            begin += len(mine)
            tables.append(table)
        if not tables:
            return pa.schema([SCHEMA.field(name) for name in columns]).empty_table()
        found = pa.concat_tables(tables)
        return found if np.array_equal(order, np.arange(len(order))) else found.take(as_arrow(order))

    def _by_group(
        self, rows: Rows, names: tuple[str, ...], work: Callable[[Shard | MemoryShard, int, Any], T]
    ) -> Iterator[tuple[Rows, T]]:
        """What `work` makes of the rows that lie in one row group, and their places in `rows`, group by group."""
        if not len(rows):
            return
        shards, places = self.index.values("shard", rows), self.index.values("row", rows)
        for number in dict.fromkeys(shards.tolist()):
            here = np.flatnonzero(shards == number)
            ends = np.cumsum(self._shards[number].groups)
            groups = np.searchsorted(ends, places[here], "right")
            for group in dict.fromkeys(groups.tolist()):
                mine = here[groups == group]
                begin = int(ends[group]) - self._shards[number].groups[group]
                yield mine, self._of_group(number, group, places[mine] - begin, names, work)

    def _of_group(
        self,
        number: int,
        group: int,
        places: Rows,
        names: tuple[str, ...],
        work: Callable[[Shard | MemoryShard, int, Any], T],
    ) -> T:
        shard = self._shards[number]
        table = self._groups.get((number, group, names))
        try:
            if table is None:
                table = self._groups[number, group, names] = shard.read(
                    names, group, [name for name in TEXTS if name in names]
                )
                if len(self._groups) > _CACHED_GROUPS:
                    self._groups.popitem(last=False)
            first = int(places[0])
            if np.array_equal(places, np.arange(first, first + len(places))):
                return work(shard, group, table.slice(first, len(places)))
            return work(shard, group, table.take(as_arrow(places)))
        except CorruptRun as error:
            every = np.arange(len(self.index))
            shards, rows = self.index.values("shard", every), self.index.values("row", every)
            begin, end = sum(shard.groups[:group]), sum(shard.groups[: group + 1])
            self.index.leave_out(every[(shards == number) & (rows >= begin) & (rows < end)])
            if str(error) not in self._problems:
                self._problems.append(str(error))
            raise

    def _attempt(self, work: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return work(*arguments)
        except (CorruptRun, NewerFormat) as error:
            if (text := str(error)) not in self._problems:
                self._problems.append(text)
            return None

    def kept_bytes(self, record: Record, *, verify: bool | None = None, mapped: bool = False) -> Bytes:
        """The bytes of what was kept of a record, checked against what the record says of them.

        With `verify=False` (by default: as the run was opened) only shape and dtype are checked, not the bytes.
        `mapped` is for one pass over bytes that are then let go.
        """
        if self._memory is None:
            return self._kept.bytes_of(record, verify=self.verify if verify is None else verify, mapped=mapped)
        return self._memory.tensor_bytes(keyed(record))

    def checks(self, record: Record) -> bool:
        """Whether the kept bytes of a record are to be checked when they are read; what is in memory is not."""
        return self.verify and self._memory is None and checksum(record) is not None

    def check(self, record: Record, found: int) -> None:
        """Raises a CorruptRun unless `found` is the fingerprint that the kept bytes must have."""
        check(self.name, record, found)

    @property
    def name(self) -> str:
        """What the run is called in texts: its folder, or what it was read from."""
        if self._mirror is not None:
            return self._mirror.url
        return self._memory.name if self._memory is not None else str(self.path)


def _canonical(site: Site | str) -> str:
    # `head:output` and `head` are one site; `str` of a parsed site is the one way to write it.
    if isinstance(site, Site):
        return str(site)
    try:
        return str(Site.parse(site))
    except ValueError:
        return site


def _nearest(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, list(dict.fromkeys(names)), n=5, cutoff=0.5)
    return tr("store.nearest", near=", ".join(near)) if near else ""
