"""The index holds its columns in little memory, and gives back what was recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from layertap.store import Run, RunWriter, index
from layertap.store.index import NONE
from store.making import receipt, record

SHAPES = [(2, 3), (2, 3), (), (1, 2, 3, 4, 5, 6), (1,) * 7, (1 << 40,), (2, 3, 1)]
STEPS = [0, 1, 1 << 40, 3, 4, 5, 6]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """In two shards, the second of which does not fit where the first does."""
    for begin, end in ((0, 2), (2, len(STEPS))):
        writer = RunWriter(tmp_path / "run", info={}, exists="append")
        for place in range(begin, end):
            writer.add(record(f"layers.{place}", STEPS[place], shape=SHAPES[place], rank=0, fingerprint=place + 1))
        writer.close(receipt())
    return Run(tmp_path / "run")


def test_what_is_narrow_in_memory_is_read_as_it_was_written(run: Run) -> None:
    rows = np.arange(len(run.index))
    steps = run.index.values("step", rows)
    assert sorted(steps.tolist()) == sorted(STEPS)
    assert steps.dtype == np.int64
    assert run.index.steps().tolist() == sorted(STEPS)
    assert run.index.values("batch", rows).tolist() == [NONE] * len(rows)
    assert [run.record_at(row).step for row in rows.tolist()] == steps.tolist()


def test_shapes_that_are_alike_are_the_same_and_no_others(run: Run) -> None:
    rows = np.arange(len(run.index))
    shapes = [run.record_at(row).shape for row in rows.tolist()]
    # Two that do not fit into the index are left to their records.
    expected = [len(shape) <= 6 and max(shape, default=0) < 1 << 31 for shape in shapes]
    assert run.index.same(rows, run.index, rows).tolist() == expected
    assert expected.count(False) == 2
    assert not run.index.same(rows[1:], run.index, rows[:-1]).any()


def test_a_column_that_is_the_same_everywhere_takes_no_room(run: Run) -> None:
    assert run.index._columns["rank"].strides == (0,)
    assert run.index._columns["epoch"].strides == (0,)
    assert run.index._columns["row"].strides != (0,)


def test_shapes_that_share_a_key_are_told_apart(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run.index.same(rows := np.arange(len(run.index)), run.index, rows).tolist()
    monkeypatch.setattr(index, "_WEIGHTS", np.zeros_like(index._WEIGHTS))
    again = Run(run.source).index
    assert again.same(rows, again, rows).tolist() == expected
    assert not again.same_shapes(rows[2:], again, rows[:-2]).any()
