"""Rows of several batches become the columns that each batch alone would give, in the same order."""

from dataclasses import replace

import pyarrow as pa
import pytest

from layertap.measure.result import Measurement
from layertap.site import Statistics
from layertap.store import open_shard
from layertap.store.columns import HEAD, LOST, ROW_BYTES, RecordBatch
from layertap.store.open_shard import OpenShard
from layertap.store.plans import Moment, Plans, RecordPlan
from layertap.store.row_columns import Rows, joined

COMMON = {"role": "output", "leaf": "", "kind": "Linear", "rank": 0, "dtype": "float32", "device": "cpu"}


def batch_of(plans: Plans, first: int, count: int) -> RecordBatch:
    """Rows of a few sites in two steps; one is lost, one was measured elsewhere."""
    batch = RecordBatch(plans)
    batch.buffer[: count * ROW_BYTES] = bytes(count * ROW_BYTES)
    batch.moments = [Moment(first + step, None, step, "eval") for step in range(2)]
    for row in range(count):
        site = (first + row) % 5
        shape = (site + 1, 2)
        plan = RecordPlan(path=f"layers.{site}", shape=shape, sharding=None, asked=True, count=2 * site + 2, **COMMON)
        source = LOST if row == 1 else -1
        HEAD.pack_into(batch.buffer, row * ROW_BYTES, plans.number(plan), row // 5, first + row, row % 2, source, -1)
    batch.rows["fingerprint"][:count] = range(first, first + count)
    batch.count = count
    told = Statistics.of(count=1, mean=7.0, m2=0.0, abs_sum=7.0, min=7.0, max=7.0, zero=0, first=(7.0,))
    batch.measured(2, Measurement(statistics=told, fingerprint=77, sketch=b""))
    batch.kept_fingerprint(3, 33 + first)
    return batch


@pytest.fixture
def parts() -> list[Rows]:
    plans, others = Plans(), Plans()
    batches = [batch_of(plans, 0, 7), batch_of(plans, 100, 5), batch_of(others, 200, 6), batch_of(plans, 300, 4)]
    keys = [[f"{number}/{row}" if row % 3 else "" for row in range(9)] for number in range(len(batches))]
    return [batch.taken(0, len(batch), key) for batch, key in zip(batches, keys, strict=True)]


def test_together_they_are_what_each_is_alone(parts: list[Rows]) -> None:
    alone = pa.concat_tables([rows.table("file") for rows in parts])
    together = [rows.table("file") for rows in joined(parts)]
    assert len(together) == 3, "plans of another table are numbered anew"
    assert pa.concat_tables(together).equals(alone)
    assert alone.num_rows == 7 + 5 + 6 + 4 - len(parts)
    assert set(alone.column("step").to_pylist()) == {0, 1, 100, 101, 200, 201, 300, 301}


def test_a_batch_that_is_used_again_does_not_change_what_was_taken(parts: list[Rows]) -> None:
    batch = batch_of(Plans(), 0, 7)
    taken = batch.taken(0, 7)
    before = taken.table()
    batch.clear(Plans())
    batch.buffer[:] = bytes(len(batch.buffer))
    assert taken.table().equals(before)


def test_batches_become_columns_together(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    table = Rows.table
    monkeypatch.setattr(Rows, "table", lambda rows, file="": made.append(len(rows)) or table(rows, file))
    (tmp_path / "records").mkdir()
    shard = OpenShard(tmp_path, "0-x-000000", header_bytes=1000, durable=False)
    plans, batches = Plans(), open_shard.TOGETHER // 1023 + 3
    for number in range(batches):
        batch = batch_of(plans, number, 1024)
        shard.reserve_rows(batch, 0, 1024)
        shard.add_rows(batch, 0, 1024, [""] * 1024)
    shard.write()
    assert len(made) == 2, "and not one for each batch"
    assert sum(made) == 1023 * batches == shard.records


def test_a_plan_of_another_shape_is_made_columns_from_the_first_one() -> None:
    first = RecordPlan(
        path="model", shape=(1, 1), sharding=None, asked=True, count=1, kept="tensor", kept_dtype="float32",
        kept_shape=(1, 1), nbytes=4, **COMMON,
    )  # fmt: skip
    resized, plain = [first], [first]
    for size in range(2, 40):
        resized.append(resized[-1].resized((1, size), size, 4 * size))
        plain.append(replace(first, shape=(1, size), count=size, kept_shape=(1, size), nbytes=4 * size))
    resized.append(resized[7].changed(kept="stats", kept_shape=(), kept_dtype="", nbytes=0))
    plain.append(replace(plain[7], kept="stats", kept_shape=(), kept_dtype="", nbytes=0))
    plans, others = Plans(), Plans()
    for some, numbered in ((resized, plans), (plain, others)):
        for begin in range(0, len(some), 9):  # the table grows
            for plan in some[begin : begin + 9]:
                numbered.append(plan)
            numbered.table()
    assert plans.table().equals(others.table())
    assert plans.table().num_rows == 40
    assert plans._common.num_rows == 2, "the first one, and the one of which nothing is kept"
