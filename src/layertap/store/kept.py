"""The bytes of kept tensors: found in their files, and checked against what their records say of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from layertap.errors import CorruptRun, NoTensor
from layertap.measure.fingerprint import fingerprint, word_size
from layertap.measure.pair.plain import WINDOW
from layertap.messages import tr
from layertap.site import Record
from layertap.store.dtype import Bytes, size_of, stored_as
from layertap.store.mapped import release
from layertap.store.mirror import Mirror
from layertap.store.schema import SCHEMA
from layertap.store.shards import Shard, decode, tensor_path
from layertap.store.tensorfile import TensorEntry, read_bytes, read_header

_CACHED_HEADERS = 16
_CACHED_ENTRIES = 1 << 17
"""Headers are kept beyond their least number as long as they name no more tensors than this, about 64 MB: one tensor of
a thousand ranks is in a thousand files, and so is the next one."""


class KeptTensors:
    """The tensors of a run's folder."""

    def __init__(self, folder: Path, shards: Sequence[Shard], mirror: Mirror | None = None) -> None:
        self._folder, self._shards, self._mirror = folder, shards, mirror
        self._name = str(folder) if mirror is None else mirror.url
        self._headers: OrderedDict[str, dict[str, TensorEntry]] = OrderedDict()
        self._entries = 0
        """How many tensors the cached headers name."""

    def bytes_of(self, record: Record, *, verify: bool, mapped: bool) -> Bytes:
        raw = self._read(record, mapped)
        if verify and checksum(record) is not None:
            check(self._name, record, _fingerprint(raw, record.kept_dtype))
        return raw

    def _read(self, record: Record, mapped: bool) -> Bytes:
        keyed(record)
        name = f"{self._name}/tensors/{record.file}"
        if self._mirror is not None:
            self._mirror.tensor_file(record.file)
        try:
            path = tensor_path(self._folder, record.file)
        except CorruptRun:
            if (moved := self._moved(record)) is None:
                raise
            return self._read(moved, mapped)
        header = self._headers.get(record.file)
        if header is None:
            header = self._headers[record.file] = read_header(path, name)
            self._entries += len(header)
            while len(self._headers) > _CACHED_HEADERS and self._entries > _CACHED_ENTRIES:
                self._entries -= len(self._headers.popitem(last=False)[1])
        entry = header.get(record.key)
        if entry is None:
            raise CorruptRun(tr("store.no_tensor", name=name, key=record.key, site=record.site, step=record.step))
        nbytes = entry.end - entry.begin
        expected = size_of(record.kept_dtype, record.kept_shape)
        stored = stored_as(record.kept_dtype, record.kept_shape, nbytes)
        if (
            stored != (entry.dtype, entry.shape)
            or expected not in (None, nbytes)
            or min(record.kept_shape, default=0) < 0
        ):
            raise CorruptRun(
                tr(
                    "store.tensor_differs",
                    name=name,
                    key=record.key,
                    dtype=entry.dtype,
                    shape=list(entry.shape),
                    site=record.site,
                    step=record.step,
                    kept_dtype=record.kept_dtype,
                    kept_shape=list(record.kept_shape),
                )
            )
        if self._mirror is not None:
            return self._mirror.read(record.file, entry.begin, entry.end)
        return read_bytes(path, name, entry.begin, entry.end, mapped=mapped)

    def _moved(self, record: Record) -> Record | None:
        """The record after its shard was merged with others, which may happen while a run is open."""
        stem = record.file.removesuffix(".safetensors")
        for shard in self._shards:
            if shard.stem == stem and shard.merged_into() is not None:
                rows, same = decode(shard, 0, shard.read(SCHEMA.names)), (record.site, record.step, record.order)
                return next((row for row in rows if (row.site, row.step, row.order) == same), None)
        return None


def _fingerprint(raw: Bytes, dtype: str) -> int:
    """Window by window, each let go of when it is read: a map may be larger than memory."""
    found = 0
    for begin in range(0, len(raw), WINDOW):
        part = raw[begin : begin + WINDOW]
        found += fingerprint(part, dtype, offset=begin // word_size(dtype))
        if len(raw) > WINDOW:
            release(raw, begin, begin + len(part))
    return found % 2**64


def keyed(record: Record) -> str:
    """The key of what was kept of a record; a NoTensor where only statistics were."""
    if record.kept == "stats" or not record.file:
        raise NoTensor(tr("store.stats_only", site=record.site, step=record.step, site2=str(record.site)))
    return record.key


def checksum(record: Record) -> int | None:
    """The fingerprint that the kept bytes of a record must have; None where none is known."""
    if record.kept == "stats":
        return None
    if record.kept_fingerprint is None and record.kept == "tensor" and (record.sketch or record.fingerprint):
        return record.fingerprint  # format 1
    return record.kept_fingerprint


def check(name: str, record: Record, found: int) -> None:
    """Raises a CorruptRun unless `found` is the fingerprint that the kept bytes must have."""
    expected = checksum(record)
    if expected is not None and found != expected:
        raise CorruptRun(
            tr(
                "store.tensor_damaged",
                name=name,
                file=record.file,
                site=record.site,
                step=record.step,
                found=found,
                expected=expected,
            )
        )
