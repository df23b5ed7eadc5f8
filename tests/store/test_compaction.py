"""Many small shards become few, and no reader ever sees a record twice or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open

import layertap.store.writer as writer_module
from layertap.store import Run, RunWriter, compaction
from layertap.store.schema import REPLACES_KEY
from store.making import kept, receipt, record


def fill(writer: RunWriter, steps: range) -> None:
    for step in steps:
        writer.add(*kept(np.full(3 + step % 5, step), "a", step))
        writer.add(record("b", step))
        writer.commit()


def check(folder: Path, steps: int) -> Run:
    run = Run(folder)
    assert [(str(row.site), row.step) for row in run.records()] == [(s, step) for step in range(steps) for s in "ab"]
    for step in range(steps):
        assert run["a"].at(step=step).numpy().tolist() == [step] * (3 + step % 5)
    return run


def names(folder: Path) -> list[str]:
    return sorted(path.name for part in ("records", "tensors") for path in (folder / part).iterdir())


def test_a_run_that_was_flushed_at_each_step_is_few_files(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, info={}, durability="none")
    fill(writer, range(160))
    writer.settle()
    writer.close(receipt())
    assert len(names(tmp_path)) == 2 * 2
    run = check(tmp_path, 160)
    assert run.problems == ()
    assert (writer.records, writer.bytes) == (320, sum(8 * (3 + step % 5) for step in range(160)))
    for row in run["a"]:
        with safe_open(tmp_path / "tensors" / row.file, "np") as file:
            assert file.get_tensor(row.key)[0] == row.step


def test_small_shards_are_merged_while_a_long_run_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MERGED", 10)
    monkeypatch.setattr(compaction, "MERGED", 10)
    monkeypatch.setattr(writer_module, "SETTLED", 0.0)
    writer = RunWriter(tmp_path, info={}, durability="none")
    since = ""
    for step in range(95):
        fill(writer, range(step, step + 1))
        since = since or (writer.shard if step == 89 else "")
        assert len(names(tmp_path)) <= 2 * 25
        if step % 9 == 8:
            check(tmp_path, step + 1)
    steps = {row.step for row in Run(tmp_path, since=since).records()}
    assert {90, 91, 92, 93, 94} <= steps
    assert steps <= set(range(75, 95)), "what was written long before is not opened"


def test_a_few_shards_and_large_ones_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SMALL_ROWS", 3)
    writer = RunWriter(tmp_path / "few", info={}, durability="none")
    fill(writer, range(7))
    writer.settle()
    assert len(names(tmp_path / "few")) == 14
    monkeypatch.setattr(compaction, "SMALL_ROWS", 2)
    writer = RunWriter(tmp_path / "large", info={}, durability="none")
    fill(writer, range(20))
    writer.settle()
    assert len(names(tmp_path / "large")) == 40


@pytest.mark.parametrize("operation", range(24))
def test_a_kill_while_merging_costs_nothing(tmp_path: Path, operation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RunWriter(tmp_path, info={}, durability="none")
    fill(writer, range(10))
    left = operation

    class Killed(BaseException):
        pass

    def counted(function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return function(*arguments, **named)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", counted(os.replace))
        patched.setattr(Path, "unlink", counted(Path.unlink))
        patched.setattr(pq, "write_table", counted(pq.write_table))
        try:
            writer.settle()
        except Killed:
            killed = True
        else:
            killed = False
    assert killed == (operation < 23), "the operations are two names, one table, twenty removals"
    check(tmp_path, 10)
    after = RunWriter(tmp_path, info={}, exists="append")
    after.close()
    check(tmp_path, 10)
    assert len(names(tmp_path)) in (2, 20), names(tmp_path)


def test_a_merge_that_fails_leaves_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    writer = RunWriter(tmp_path, info={})
    fill(writer, range(9))
    before = names(tmp_path)
    monkeypatch.setattr(compaction.TensorFileWriter, "finish", full)
    writer.settle()
    monkeypatch.undo()
    writer.close(receipt())
    assert names(tmp_path) == before
    assert check(tmp_path, 9).problems == ()


def test_a_reader_never_sees_a_record_twice_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MERGED", 8)
    monkeypatch.setattr(compaction, "MERGED", 8)
    monkeypatch.setattr(writer_module, "SETTLED", 0.0)
    writer = RunWriter(tmp_path, info={}, durability="none")
    fill(writer, range(4))
    done = threading.Event()

    def write() -> None:
        fill(writer, range(4, 150))
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    looks = 0
    while not done.is_set():
        run = Run(tmp_path)
        count = run.count
        assert [problem for problem in run.problems if "never closed" not in problem] == []
        shards = [number for shard in run._shards for number in (shard.numbers)]  # type: ignore[union-attr]
        assert shards == sorted(shards)
        assert count % 2 == 0
        looks += 1
    thread.join()
    assert looks > 3
    check(tmp_path, 150)


def test_a_run_that_is_open_while_its_shards_are_merged_stays_readable(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, info={}, durability="none")
    fill(writer, range(10))
    fresh, indexed, read = Run(tmp_path), Run(tmp_path), Run(tmp_path)
    assert len(indexed["a"]) == 10
    rows = list(read["a"])
    writer.settle()
    assert len(names(tmp_path)) == 2
    for run in (fresh, indexed, read):
        assert [row.step for row in run.records()] == [step for step in range(10) for _ in "ab"]
        assert [run["a"].at(step=step).numpy()[0] for step in range(10)] == list(range(10))
        assert run.table(["step"]).num_rows == 20
        assert [text for text in run.problems if "never closed" not in text] == []
    assert [np.frombuffer(read.kept_bytes(row), np.int64)[0] for row in rows] == list(range(10))


@pytest.mark.parametrize("content", [b"{", b"3", b'[["other-run-000001", 0, 1]]', b"[3]", b'[["a", "b", "c"]]'])
def test_a_damaged_list_is_told(tmp_path: Path, content: bytes) -> None:
    writer = RunWriter(tmp_path, info={})
    fill(writer, range(1))
    writer.close()
    (file,) = (tmp_path / "records").iterdir()
    table = pq.read_table(file)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, REPLACES_KEY: content}), file)
    (problem,) = (text for text in Run(tmp_path).problems if "replaces" in text)
    assert problem == f"{file}: the list of shards that it replaces is damaged"
