"""`kill -9` at any moment: what was committed is there and right, and the run says that it is partial."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import layertap.store
from layertap.store import Run, RunWriter
from layertap.store.schema import SCHEMA
from store.endless_writer import content

KILLS = 80


@pytest.fixture
def helper() -> Iterator[subprocess.Popen[str]]:
    script = Path(__file__).with_name("endless_writer.py")
    environment = {**os.environ, "PYTHONPATH": str(Path(layertap.store.__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def kill_one(helper: subprocess.Popen[str], folder: Path, delay: float, *, committed: bool = False) -> None:
    assert helper.stdin is not None
    assert helper.stdout is not None
    print(folder, file=helper.stdin, flush=True)
    pid = int(helper.stdout.readline())
    while committed and not list(folder.glob("records/[0-9]*.parquet")):
        time.sleep(0.01)  # a machine with much to do may take its time
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    assert helper.stdout.readline() == "dead\n"


def test_a_killed_writer_loses_nothing_that_was_committed(helper: subprocess.Popen[str], tmp_path: Path) -> None:
    chance = random.Random(1)
    total = interrupted = 0
    for number in range(KILLS):
        folder = tmp_path / str(number) / "run"
        folder.parent.mkdir()
        # From before the first file exists to many shards later.
        kill_one(helper, folder, chance.choice([0.02, 0.2, 0.2]) * chance.random())
        if not (folder / "run.json").exists():
            continue
        run = Run(folder)
        assert run.partial
        assert len(run.problems) == 1, run.problems
        assert "was never closed" in run.problems[0]
        promised = int.from_bytes((folder.parent / "acknowledged").read_bytes(), "little")
        table = run.table(["site", "step", "fingerprint", "mean"]).to_pylist()
        steps = len(table) // 2
        # What is there is what was written first, without gaps, and nothing that was promised is lost.
        written = [(site, step) for step in range(steps + 1) for site in "ab"]
        assert [(row["site"], row["step"]) for row in table] == written[: len(table)]
        assert [row["fingerprint"] for row in table] == [row["step"] for row in table]
        assert steps >= promised
        if not steps:
            continue
        for step in {0, steps - 1, *(chance.randrange(steps) for _ in range(5))}:
            assert (run["a"].at(step=step).numpy() == content(step)).all()
            assert run["b"].at(step=step).statistics.mean == step
        assert run.table().column_names == SCHEMA.names
        total += steps
        interrupted += any(path.name.startswith(".") for path in folder.glob("*/*"))
    # The kills must have hit writers at work, or the test tests nothing.
    assert total > 2 * KILLS
    assert interrupted > KILLS // 5


def test_a_killed_run_can_be_continued(helper: subprocess.Popen[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    kill_one(helper, folder, 0.1, committed=True)
    before = Run(folder)
    assert before.count
    from store.making import record

    writer = RunWriter(folder, info={}, exists="append")
    writer.add(record("resumed", 10**6))
    writer.close()
    after = Run(folder)
    assert after.count == before.count + 1
    assert (after["a"].at(step=0).numpy() == content(0)).all()
    assert after.sites[-1] == "resumed"
    assert after.partial
    assert [session["status"] for session in after.sessions] == ["recording", "complete"]
