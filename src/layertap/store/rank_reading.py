"""What is known of a run of several ranks beside its records: stated layouts, stages of a pipeline, microbatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from layertap.messages import tr
from layertap.site import Record, Sharding, Site
from layertap.store.assembly import NotWhole
from layertap.store.stated import StatedLayouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The stages of a pipeline."""

    ranks: tuple[frozenset[int], ...]
    """Of each stage, from the first to the last."""
    shared: Mapping[str, tuple[frozenset[int], frozenset[int]]]
    """Modules that are on several stages because they contain others, as the model itself: the ranks of the first
    stage that has them, and of the last."""
    stand_ins: frozenset[str]
    """Modules in whose place another rank has one that returns what it is given."""

    def wants(self, record: Record) -> bool:
        """Whether a record counts: of what is on several stages the first one's input and the last one's output."""
        site = record.site
        if site.path in self.stand_ins and record.kind == "Identity":
            return False
        if site.path not in self.shared or site.role.startswith("param"):
            return True
        return record.rank in self.shared[site.path][site.role in ("output", "grad_output")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatches:
    """Calls of each module that are parts of one batch."""

    count: int
    """How many parts there are."""
    calls: Mapping[str, int]
    """How often a module is called in one of them, by the name of its value; once if it is not here."""
    skipped: frozenset[int]
    """The steps in which the first call is none of them."""
    constant: frozenset[str]
    """Names of values that have no batch, such as positions: the same in all calls."""

    def number(self, site: Site, step: int) -> int:
        """Of which microbatch a call is; -1 if of none."""
        return site.call // self.calls.get(plain_name(site), 1) - (step in self.skipped)

    def whole(self, site: Site) -> Site:
        """The name of a value of the whole batch."""
        return replace(site, call=site.call % self.calls.get(plain_name(site), 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReading:
    """What is known of a run of several ranks beside what its records say."""

    stated: StatedLayouts | None = None
    """How its plain tensors are cut."""
    stages: Stages | None = None
    batches: Microbatches | None = None

    def __bool__(self) -> bool:
        return bool((self.stated and self.stated.rules) or self.stages or self.batches)

    def group(self, site: Site) -> Site:
        """Records of one name are parts of one tensor."""
        return site if self.batches is None or site.role.startswith("param") else self.batches.whole(site)

    def parts(self, records: Sequence[Record]) -> list[Record]:
        """Those that count, with the layouts that are known of them."""
        found = [self._stated(record) for record in records if self.stages is None or self.stages.wants(record)]
        batches = self.batches
        if batches is None or (found and found[0].site.role.startswith("param")):
            return found
        numbers = [batches.number(record.site, record.step) for record in found]
        sizes = {number: _length(record) for number, record in zip(numbers, found, strict=True) if number >= 0}
        if len(sizes) < 2:
            return [record for number, record in zip(numbers, found, strict=True) if number >= 0]
        constant = plain_name(found[0].site) in batches.constant
        return [
            _microbatch(record, number, sizes, constant)
            for number, record in zip(numbers, found, strict=True)
            if number >= 0
        ]

    def _stated(self, record: Record) -> Record:
        if self.stated is None or self.stated.of(record.site) is None or record.sharding is not None:
            return record
        sharding = self.stated.sharding(record.site, record.shape, record.rank)
        return record if sharding is None else replace(record, sharding=sharding)


def _length(record: Record) -> int:
    """Of the first dimension of a microbatch, on all ranks; -1 where there is none."""
    shape = record.shape if record.sharding is None else record.sharding.global_shape
    return shape[0] if shape else -1


def _microbatch(record: Record, number: int, sizes: Mapping[int, int], constant: bool) -> Record:
    """The calls of a module as one more axis of the mesh, which cuts the batch."""
    own = record.sharding or Sharding(placements=(), global_shape=record.shape, offset=(0,) * len(record.shape))
    whole = own.global_shape
    begin = own.offset or ((0,) * len(whole) if whole == record.shape else ())
    if len(whole) != len(begin) or not (whole or constant) or (own.mesh_shape and not own.mesh_coordinate):
        raise NotWhole(tr("assembly.microbatch", site=record.site, step=record.step))
    if not constant:
        begin = sum(size for other, size in sizes.items() if other < number) + begin[0], *begin[1:]
        whole = sum(sizes.values()), *whole[1:]
    sharding = Sharding(
        placements=("Replicate()" if constant else "Shard(dim=0)", *own.placements),
        global_shape=whole,
        offset=begin,
        mesh_shape=(len(sizes), *own.mesh_shape),
        mesh_coordinate=(sorted(sizes).index(number), *own.mesh_coordinate),
        mesh_origin=own.mesh_origin,
    )
    # A microbatch knows its elements by their index in it, not in the whole batch.
    sums = (record.fingerprint_in_whole, record.sketch_in_whole) if constant else (None, None)
    return replace(record, sharding=sharding, fingerprint_in_whole=sums[0], sketch_in_whole=sums[1])


def plain_name(site: Site) -> str:
    """A site without the number of the call."""
    return str(replace(site, call=0))
