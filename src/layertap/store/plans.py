"""What many records have in common, and occurs once: where they come from (`RecordPlan`) and when (`Moment`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layertap.site import Sharding, Site
from layertap.store.schema import SCHEMA, SHARDING, SKETCH_BYTES, WHOLE
from layertap.store.tensorfile import TensorFileWriter

Scalar = TypeVar("Scalar", bound=np.generic)


class Moment(NamedTuple):
    """When records were made: what they share that is not in their plan."""

    step: int
    epoch: int | None
    batch: int | None
    phase: str


_ORIGIN = "_origin"


@dataclass(frozen=True, kw_only=True)
class RecordPlan:
    """What many records have in common; `call` of the site is not part of it."""

    path: str
    role: str
    leaf: str
    kind: str
    rank: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    sharding: Sharding | None
    asked: bool
    count: int
    """Values: a complex number has two."""
    kept: str = "stats"
    kept_shape: tuple[int, ...] = ()
    kept_dtype: str = ""
    nbytes: int = 0
    """Bytes kept of each."""

    @cached_property
    def site(self) -> str:
        """Without the number of a call."""
        return str(Site(path=self.path, role=self.role, leaf=self.leaf))

    def resized(self, shape: tuple[int, ...], count: int, nbytes: int) -> RecordPlan:
        """The same for a tensor of another shape. A cache grows at each step, and `replace` takes longer."""
        made = object.__new__(RecordPlan)
        vars(made).update(vars(self), shape=shape, count=count, **{_ORIGIN: self.origin})
        if self.nbytes:
            vars(made).update(kept_shape=shape, nbytes=nbytes)
        return made

    @property
    def origin(self) -> RecordPlan:
        """The plan that it was resized from in the first place, or itself: they differ in their shape alone."""
        found: RecordPlan = vars(self).get(_ORIGIN, self)
        return found

    def changed(self, **values: Any) -> RecordPlan:
        """What `replace` makes, in a third of the time: it is done for each record of which something is kept."""
        made = object.__new__(RecordPlan)
        vars(made).update(vars(self), **values)
        vars(made).pop(_ORIGIN, None)
        return made

    @property
    def room(self) -> int:
        """Bytes that a record of it takes in a parquet file, at most."""
        key = len(self.site) + 24 if self.nbytes else 0
        texts = 3 * len(self.path) + 3 * len(self.leaf) + len(self.kind) + key
        sketches = SKETCH_BYTES if self.sharding is None else 2 * SKETCH_BYTES
        return 640 + 4 * texts + sketches + 8 * (len(self.shape) + len(self.kept_shape))


class Plans:
    """Plans by number. They only become more; their columns are kept, so that a batch costs what is new in it."""

    def __init__(self) -> None:
        self.all: list[RecordPlan] = []
        self._numbers: dict[RecordPlan, int] = {}
        self._table: Any = None
        self._common: Any = None
        self._origins: dict[int, tuple[int, RecordPlan]] = {}
        """By identity: their rows in that table, and themselves, so that they live."""
        self._counts = np.empty(0, np.int64)
        self._wholes = np.empty(0, np.bool_)
        self._rooms = np.empty(0, np.int64)
        self._sizes = np.empty(0, np.int64)
        self._kinds, self._tables = np.empty(0, np.int64), np.empty(0, np.uint64)
        self._sites: list[str] = []
        self._forms: list[str] = []

    def number(self, plan: RecordPlan) -> int:
        """The plan's number; equal plans have one."""
        found = self._numbers.get(plan)
        if found is None:
            found = self._numbers[plan] = len(self.all)
            self.all.append(plan)
        return found

    def append(self, plan: RecordPlan) -> int:
        """A number for a plan, without a look whether an equal one has one."""
        self.all.append(plan)
        return len(self.all) - 1

    def table(self) -> Any:
        """One row a plan, in columns of `SCHEMA` and `count`, `nbytes`."""
        known = 0 if self._table is None else self._table.num_rows
        new = self.all[known:]
        if new:
            part = self._of_origins([plan.origin for plan in new])
            for name in _OF_SHAPE:
                part = part.append_column(name, pa.array(map(attrgetter(name), new), SCHEMA.field(name).type))
            self._table = part if self._table is None else pa.concat_tables([self._table, part]).combine_chunks()
        return self._table

    def _of_origins(self, origins: Sequence[RecordPlan]) -> Any:
        """What plans have that differ in their shape: made once for all of them. A cache grows at each step."""
        fresh = list({id(plan): plan for plan in origins if id(plan) not in self._origins}.values())
        if fresh:
            part = pa.Table.from_arrays(
                [pa.array([value(plan) for plan in fresh], SCHEMA.field(name).type) for name, value in _COMMON.items()],
                names=list(_COMMON),
            )
            self._common = part if self._common is None else pa.concat_tables([self._common, part])
            for plan in fresh:
                self._origins[id(plan)] = len(self._origins), plan
        return self._common.take(pa.array([self._origins[id(plan)][0] for plan in origins], pa.int64()))

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """How many values the tensors of each plan have."""
        self._counts = self._extended(self._counts, attrgetter("count"))
        return self._counts

    def reading(
        self, kind_of: Callable[[str], tuple[int, int]]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        """Of each plan the count of values, and the two numbers that `kind_of` knows of its dtype."""
        new = self.all[len(self._kinds) :]
        if new:
            found = [kind_of(plan.dtype) for plan in new]
            self._kinds = np.concatenate([self._kinds, np.array([kind for kind, _ in found], np.int64)])
            self._tables = np.concatenate([self._tables, np.array([table for _, table in found], np.uint64)])
        return self.counts, self._kinds, self._tables

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes kept of the tensors of each plan."""
        self._sizes = self._extended(self._sizes, attrgetter("nbytes"))
        return self._sizes

    @property
    def sites(self) -> list[str]:
        """The sites as text, without the numbers of calls."""
        self._sites += [plan.site for plan in self.all[len(self._sites) :]]
        return self._sites

    @property
    def forms(self) -> list[str]:
        """What the tensors of each plan have in common in a tensor file's header (`TensorFileWriter.form`)."""
        self._forms += [
            TensorFileWriter.form(plan.kept_dtype, plan.kept_shape, plan.nbytes)
            for plan in self.all[len(self._forms) :]
        ]
        return self._forms

    @property
    def rooms(self) -> npt.NDArray[np.int64]:
        """The room of each plan (`RecordPlan.room`)."""
        self._rooms = self._extended(self._rooms, attrgetter("room"))
        return self._rooms

    @property
    def wholes(self) -> npt.NDArray[np.bool_]:
        """Of which plans the tensor itself is kept."""
        self._wholes = self._extended(self._wholes, lambda plan: plan.kept == "tensor")
        return self._wholes

    def _extended(self, known: npt.NDArray[Scalar], value: Callable[[RecordPlan], Any]) -> npt.NDArray[Scalar]:
        """A column with the values of the plans that are new."""
        new = self.all[len(known) :]
        return np.concatenate([known, np.array([value(plan) for plan in new], known.dtype)]) if new else known


def _of_sharding(name: str) -> Callable[[RecordPlan], Any]:
    return lambda plan: getattr(plan.sharding or WHOLE, name)


_OF_SHAPE = ("shape", "kept_shape", "nbytes")
_COMMON: dict[str, Callable[[RecordPlan], Any]] = {
    **{
        name: attrgetter(name)
        for name in ("site", "path", "role", "leaf", "kind", "rank", "dtype", "device", "asked", "kept", "kept_dtype")
    },
    **{name: _of_sharding(name) for name in SHARDING},
}
