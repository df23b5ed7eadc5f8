"""What a run knows of one site: a sequence of records that can be narrowed, and the tensor behind the last one left."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from layertap.errors import CorruptRun, NoTensor, RunError, SiteNotFound
from layertap.measure import histogram
from layertap.messages import printable, tr
from layertap.site import Record, Site, Statistics
from layertap.store.assembly import Whole, assembled, whole_of
from layertap.store.dtype import SIZES, Bytes, to_numpy
from layertap.store.index import NONE, Rows
from layertap.store.kept import checksum

if TYPE_CHECKING:
    import torch

    from layertap.store.run import Run

BLOCK = 256
"""Records that are in memory at a time."""
_CHOICES = ("step", "rank", "epoch", "batch", "phase")


class SiteRecords(Sequence[Record]):
    """The records of one site, by step.

        run["model.layers.3"].at(step=100, rank=0).tensor()
        run["model.layers.3"].at(step=100).tensor()         # of a distributed tensor the whole, from all ranks

    They are read from disk as they are asked for.
    """

    def __init__(self, run: Run, site: Site, rows: Rows) -> None:
        self.site = site
        self._run = run
        self._rows = rows

    def at(
        self,
        *,
        step: int | None = None,
        rank: int | Collection[int] | None = None,
        epoch: int | None = None,
        batch: int | None = None,
        phase: str | None = None,
    ) -> SiteRecords:
        """Those records that fit all that is given; of ranks several may be named."""
        given = {"step": step, "rank": rank, "epoch": epoch, "batch": batch, "phase": phase}
        wanted: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        rows = self._rows
        for name, value in wanted.items():
            found = self._run.index.values(name, rows)
            several = name == "rank" and isinstance(value, Collection)
            rows = rows[np.isin(found, [*value]) if several else found == value]
        if not len(rows):
            asked = ", ".join(f"{name}={value!r}" for name, value in wanted.items())
            raise SiteNotFound(tr("store.no_record", site=self.site, asked=asked, value=self._choices()))
        return SiteRecords(self._run, self.site, rows)

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps at which the site was recorded."""
        return tuple(int(step) for step in np.unique(self._run.index.values("step", self._rows)))

    @property
    def record(self) -> Record:
        """The only record; with more than one, an error states what to choose from."""
        if len(self) != 1:
            raise RunError(tr("store.choose_record", site=self.site, count=len(self), value=self._choices()))
        return self[0]

    @property
    def statistics(self) -> Statistics:
        """Of the only record, or of the whole that all ranks together recorded; then merged from those of the parts."""
        if (whole := self.whole()) is None:
            return self.record.statistics
        if (merged := whole.statistics) is None:
            raise NoTensor(tr("assembly.summands", site=self.site, step=whole.record.step))
        return merged

    def whole(self) -> Whole | None:
        """How the records of all ranks make one distributed tensor; None where there is one record, or several moments.

        A RunError where parts are missing, or where replicas do not have the same bits.
        """
        values = [self._run.index.values(name, self._rows) for name in ("step", "epoch", "batch", "phase")]
        if len(self) < 2 or any(len(np.unique(column)) > 1 for column in values):
            return None
        records = self.listed()
        return whole_of(records) if all(record.sharding is not None for record in records) else None

    @property
    def fingerprint(self) -> int:
        """Of the only record, or of the whole that all ranks together recorded."""
        if (whole := self.whole()) is None:
            return self.record.fingerprint
        if (merged := whole.fingerprint) is None:
            raise NoTensor(tr("assembly.no_fingerprint", site=self.site, step=whole.record.step))
        return merged

    def tensor(self, *, verify: bool | None = None) -> torch.Tensor:
        """The kept tensor in its own dtype, its bytes checked (see `Run`). Changing it changes no file.

        Where the ranks of a job recorded parts of a distributed tensor, the whole: slices are put together, summands
        added up, and replicas must have the same bits. `.at(rank=0)` gives the part of one rank.
        """
        import torch

        name, shape, raw = self._kept(verify)
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            raise RunError(tr("store.no_dtype", site=self.site, version=torch.__version__, name=name))
        try:
            if not len(raw):
                return torch.empty(shape, dtype=dtype)
            return torch.from_numpy(raw).view(dtype).reshape(shape)
        except (RuntimeError, TypeError) as error:
            raise RunError(
                tr(
                    "store.bytes_shape",
                    site=self.site,
                    count=len(raw),
                    name=name,
                    shape=list(shape),
                    value=str(error).splitlines()[0],
                )
            ) from None

    def numpy(self, *, verify: bool | None = None) -> npt.NDArray[Any]:
        """The kept tensor without torch, its bytes checked (see `Run`); bfloat16 and fp8 are widened to float32."""
        name, shape, raw = self._kept(verify)
        return to_numpy(raw, name, shape)

    def histogram(self, *, verify: bool | None = None) -> histogram.Histogram:
        """The edges of the bins and the counts of a site that was recorded with `keep="histogram"`, without torch."""
        record = self.record
        if record.kept != histogram.NAME:
            name = f"{str(self.site)!r}"
            instead = tr("store.or_histogram", name=name) if record.kept == "tensor" else ""
            raise NoTensor(
                tr("store.no_histogram", site=self.site, step=record.step, kept=record.kept, name=name, instead=instead)
            )
        if (record.kept_dtype, record.kept_shape) != ("int64", (histogram.BINS,)):
            raise CorruptRun(
                tr(
                    "store.histogram_shape",
                    site=self.site,
                    step=record.step,
                    kept_dtype=record.kept_dtype,
                    kept_shape=list(record.kept_shape),
                    bins=histogram.BINS,
                )
            )
        return histogram.Histogram(histogram.edges(), np.array(self.numpy(verify=verify)))

    def verify(self) -> bool:
        """Whether the bytes on disk are still those that were recorded; if not, a CorruptRun says so."""
        record = self.record
        if checksum(record) is None and record.kept != "stats":
            raise NoTensor(tr("store.no_checksum", site=self.site, kept=record.kept))
        self._run.kept_bytes(record, verify=True)
        return True

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> SiteRecords: ...
    def __getitem__(self, index: int | slice) -> Record | SiteRecords:
        if isinstance(index, slice):
            return SiteRecords(self._run, self.site, self._rows[index])
        return self._run.record_at(int(self._rows[index]))

    def __iter__(self) -> Iterator[Record]:
        for begin in range(0, len(self._rows), BLOCK):
            yield from self._run.records_at(self._rows[begin : begin + BLOCK])

    def listed(self) -> list[Record]:
        """All of them without their sketches, which are most of what is on disk."""
        return self._run.records_at(self._rows, sketches=False)

    def __repr__(self) -> str:
        return printable(tr("store.records_repr", site=self.site, count=len(self), value=self._choices()))

    def _kept(self, verify: bool | None) -> tuple[str, tuple[int, ...], Bytes]:
        """Dtype, shape and bytes of what was kept."""
        if (whole := self.whole()) is not None:
            return whole.dtype, whole.shape, assembled(whole, partial(self._run.kept_bytes, verify=verify))
        record = self.record
        raw = self._run.kept_bytes(record, verify=verify)
        if len(raw) and raw.ctypes.data % SIZES.get(record.kept_dtype, 1):
            raw = raw.copy()  # torch wants its elements aligned
        return record.kept_dtype, record.kept_shape, raw

    def _choices(self) -> str:
        parts = []
        for name in _CHOICES:
            values = [value.item() for value in np.unique(self._run.index.values(name, self._rows))]
            shown = [repr(value) for value in values if value != NONE]
            if shown and (name == "step" or len(values) > 1):
                parts.append(f"{name} {', '.join(shown if len(shown) <= 8 else [*shown[:4], '...', *shown[-2:]])}")
        return "; ".join(parts) or "nothing"
