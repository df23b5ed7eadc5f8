"""Parts of one tensor put together: any mesh, any placements, without reading more than a part at a time."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Replicate, Shard

from layertap.capture.sharding import region
from layertap.errors import NoTensor, RunError
from layertap.measure import measure
from layertap.measure.fingerprint import fingerprint
from layertap.measure.part import PartPlace
from layertap.site import Record, Sharding, Site
from layertap.store import MemoryWriter, Run, RunWriter
from layertap.store import assembly as module
from layertap.store.assembly import NotWhole, ReplicasDiffer
from layertap.store.dims import spans_of
from layertap.store.merged import merged


def spread(whole: torch.Tensor, mesh: tuple[int, ...], placements: tuple[Any, ...], origin: int = 0) -> list[Any]:
    """What each rank of a mesh holds of a tensor: (rank, part, sharding)."""
    found = []
    generator = torch.Generator().manual_seed(0)
    summands: dict[tuple[tuple[int, ...], tuple[int, ...]], list[torch.Tensor]] = {}
    for rank, here in enumerate(itertools.product(*map(range, mesh))):
        begin, size = region(whole.shape, mesh, here, placements)
        part = whole[tuple(slice(a, a + n) for a, n in zip(begin, size, strict=True))].clone()
        count = int(np.prod([n for n, p in zip(mesh, placements, strict=True) if p.is_partial()]))
        if count > 1:
            split = summands.setdefault((begin, size), [])  # an empty part may begin where another one does
            if not split:  # whole numbers, so that the sum is exact
                split += [
                    torch.randint(-8, 8, part.shape, generator=generator).to(part.dtype) for _ in range(count - 1)
                ]
                split.append(part - sum(split))
            which = [at for at, p in zip(here, placements, strict=True) if p.is_partial()]
            sizes = [n for n, p in zip(mesh, placements, strict=True) if p.is_partial()]
            part = split[int(np.ravel_multi_index(which, sizes))]
        layout = Sharding(
            placements=tuple(map(repr, placements)),
            global_shape=tuple(whole.shape),
            offset=begin,
            mesh_shape=mesh,
            mesh_coordinate=here,
            mesh_origin=origin,
        )
        found.append((origin + rank, part.contiguous(), layout))
    return found


def record_of(rank: int, part: torch.Tensor, layout: Sharding | None, step: int = 0, keep: bool = True) -> Any:
    spans = spans_of(layout, tuple(part.shape)) if layout is not None and not layout.partial else None
    place = None if spans is None else PartPlace(spans=spans, shape=layout.global_shape)
    measured, dtype = measure(part, place=place), str(part.dtype).removeprefix("torch.")
    raw = part.reshape(-1).view(torch.uint8).numpy().copy()
    record = Record(
        site=Site(path="x"),
        kind="Linear",
        order=0,
        step=step,
        phase="train",
        rank=rank,
        shape=tuple(part.shape),
        dtype=dtype,
        device="cpu",
        sharding=layout,
        statistics=measured.statistics,
        fingerprint=measured.fingerprint,
        sketch=measured.sketch,
        fingerprint_in_whole=getattr(measured.in_whole, "fingerprint", None),
        sketch_in_whole=getattr(measured.in_whole, "sketch", None),
        kept="tensor" if keep else "stats",
        kept_shape=tuple(part.shape) if keep else (),
        kept_dtype=dtype if keep else "",
        kept_fingerprint=fingerprint(raw, dtype) if keep else None,
    )
    return record, raw if keep else None


def run_of(parts: list[Any], **options: Any) -> Run:
    writer = MemoryWriter(info={})
    for part in parts:
        writer.add(*record_of(*part, **options))
    writer.close()
    return Run(writer)


placement = st.sampled_from([Replicate(), Shard(0), Shard(1), Shard(2), Partial()])


@settings(max_examples=120, deadline=None)
@example(mesh=(2, 2, 2), placements=[Shard(1), Shard(1), Partial()], shape=(1, 2, 1), dtype=torch.float32)
@given(
    mesh=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
    placements=st.lists(placement, min_size=3, max_size=3),
    shape=st.tuples(st.integers(1, 9), st.integers(1, 7), st.integers(1, 5)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.float16]),
)
def test_any_partition_gives_the_whole(mesh: Any, placements: Any, shape: Any, dtype: torch.dtype) -> None:
    placements = tuple(placements[: len(mesh)])
    whole = torch.randint(-64, 64, shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    run = run_of(spread(whole, mesh, placements))
    assert torch.equal(run["x"].tensor(), whole)
    if any(p.is_partial() and n > 1 for p, n in zip(placements, mesh, strict=True)):
        with pytest.raises(NoTensor, match="summands"):
            _ = run["x"].statistics
        if len(run["x"]) > 1:
            with pytest.raises(NoTensor, match="the fingerprint of the whole at step 0 is not known"):
                _ = run["x"].fingerprint
        return
    one = merged(run_of(spread(whole, mesh, placements), keep=False)).run["x"].record
    assert run["x"].fingerprint == one.fingerprint == measure(whole).fingerprint
    sketches = (np.frombuffer(sketch, "<f4") for sketch in (one.sketch, measure(whole).sketch))
    np.testing.assert_allclose(*sketches, rtol=0, atol=1e-3)
    found, right = run["x"].statistics, measure(whole).statistics
    for name in ("count", "min", "max", "nan", "zero"):
        assert getattr(found, name) == getattr(right, name)
    assert found.first == right.first[: len(found.first)]
    assert found.first or not right.first
    for name in ("mean", "std", "abs_mean", "l2"):
        assert getattr(found, name) == pytest.approx(getattr(right, name), rel=1e-9, abs=1e-9)


def test_on_disk_one_writer_a_rank(tmp_path: Path) -> None:
    whole = torch.randn(8, 12, generator=torch.Generator().manual_seed(0)).bfloat16()
    for rank, part, layout in spread(whole, (2, 2), (Shard(0), Shard(1))):
        writer = RunWriter(tmp_path, info={}, rank=rank, durability="none")
        writer.add(*record_of(rank, part, layout))
        writer.close()
    run = Run(tmp_path)
    assert torch.equal(run["x"].tensor(), whole)
    assert run["x"].numpy().shape == (8, 12)
    assert run["x"].at(rank=3).tensor().shape == (4, 6)
    with pytest.raises(NotWhole, match=r"x: 3 of 4 ranks of the mesh recorded step 0; the parts at \[1, 1\]"):
        run["x"].at(rank=(0, 1, 2)).tensor()


def test_replicas_that_differ_are_named() -> None:
    parts = spread(torch.arange(12.0).reshape(3, 4), (4,), (Replicate(),))
    parts[2] = (2, parts[2][1] + 1, parts[2][2])
    with pytest.raises(
        ReplicasDiffer, match=r"x: replicas differ at step 0: the ranks 0-1, 3 \| 2 have different bits"
    ) as caught:
        run_of(parts)["x"].tensor()
    assert caught.value.groups == ((0, 1, 3), (2,))
    assert run_of(parts)["x"].at(rank=2).tensor()[0, 0] == 1


def test_meshes_beside_each_other() -> None:
    one, other = torch.arange(8.0), torch.arange(8.0) + 1
    both = [*spread(one, (2,), (Shard(0),)), *spread(other, (2,), (Shard(0),), origin=2)]
    with pytest.raises(NotWhole, match=r"the ranks 0-1 \| 2-3 have different tensors"):
        run_of(both)["x"].tensor()
    assert torch.equal(run_of(both)["x"].at(rank=(2, 3)).tensor(), other)
    equal = [*spread(one, (2,), (Shard(0),)), *spread(one, (2,), (Shard(0),), origin=2)]
    assert torch.equal(run_of(equal)["x"].tensor(), one)


def test_runs_of_before_ranks_said_where_they_stand() -> None:
    whole = torch.arange(8.0)
    old = [
        (rank, part, replace(s, mesh_coordinate=(), mesh_origin=-1))
        for rank, part, s in spread(whole, (2,), (Shard(0),))
    ]
    assert torch.equal(run_of(old)["x"].tensor(), whole)
    with pytest.raises(NotWhole, match=r"does not record which of the ranks 0-3 form a mesh of \[2\]"):
        run_of([*old, *((rank + 2, part, layout) for rank, part, layout in old)])["x"].tensor()


def test_what_is_no_whole_is_refused() -> None:
    parts = spread(torch.arange(8.0), (2,), (Shard(0),))
    moved = [parts[0], (1, parts[1][1], replace(parts[1][2], offset=(2,)))]
    with pytest.raises(NotWhole, match="do not fill"):
        run_of(moved)["x"].tensor()
    with pytest.raises(RunError, match="choose one with"):
        run_of([(rank, part, None) for rank, part, _ in parts])["x"].tensor()
    with pytest.raises(NotWhole, match="only statistics of the parts were kept"):
        run_of(parts, keep=False)["x"].tensor()
    assert run_of(parts, keep=False)["x"].statistics.max == 7


def test_one_part_is_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IN_MEMORY", 1 << 16)
    whole = torch.arange(float(1 << 18)).reshape(512, 512)
    run = run_of(spread(whole, (4, 2), (Shard(1), Shard(0))))
    found = run["x"].tensor()
    assert torch.equal(found, whole)
    found.zero_()  # a file of its own is behind it
    assert torch.equal(run["x"].tensor(), whole)
