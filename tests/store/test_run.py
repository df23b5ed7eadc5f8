"""Reading: what a run answers, in which order, and what it says when it has no answer."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

import layertap as lt
import layertap.store
import layertap.store.run
from layertap.errors import BadArgument, NotARun, NoTensor, RunError, SiteNotFound
from layertap.site import Site
from layertap.store import MemoryWriter, Run, RunWriter, shards
from layertap.store.shards import Shard
from store.making import kept, receipt, record

SRC = Path(layertap.store.__file__).parents[2]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Two steps of a model whose layers run in another order than their names sort, with unrequested inputs."""
    writer = RunWriter(tmp_path / "run", info={"model": "Toy"})
    for step in (0, 1):
        phase = "train" if step else "eval"
        writer.add(record(":input.x", step, order=0, asked=False, phase=phase))
        for order, name in enumerate(["layers.2", "layers.10", "head"], 1):
            writer.add(
                *kept(np.full((2, 2), 10.0 * step + order), name, step, order=order, phase=phase, batch=step + 7)
            )
        writer.commit()
    writer.add(record("late", 1, order=9))
    writer.close(receipt())
    return Run(tmp_path / "run")


def test_the_room_has_these_names() -> None:
    assert layertap.store.__all__ == ["FORMAT", "Layout", "MemoryWriter", "Run", "RunWriter", "SiteRecords"]


def test_sites_come_in_order_of_execution(run: Run) -> None:
    assert run.sites == ("layers.2", "layers.10", "head", "late")
    assert list(run) == list(run.sites)
    assert len(run) == 4
    assert run.count == 9


def test_order_decides_not_the_order_of_writing(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, info={})
    for site, step, order, rank in [("c", 1, 0, 0), ("b", 0, 5, 0), ("d", 0, 1, 1), ("a", 0, 2, 0), ("b", 0, 0, 1)]:
        writer.add(record(site, step, order=order, rank=rank))
    writer.close()
    # Rank 0's step 0, then rank 1's (a pipeline's second half), then step 1.
    assert [str(site) for site in Run(tmp_path).sites] == ["a", "b", "d", "c"]


def test_inputs_are_records_nobody_asked_for(run: Run) -> None:
    assert [(str(row.site), row.step) for row in run.inputs] == [(":input.x", 0), (":input.x", 1)]
    assert ":input.x" not in run.sites
    assert ":input.x" in run
    assert len(run[":input.x"]) == 2


def test_a_site_is_found_however_it_is_written(run: Run) -> None:
    for name in ("head", "head:output", Site(path="head")):
        assert name in run
        assert run[name].site == "head"
    assert "hea" not in run
    assert 3 not in run


def test_narrowing(run: Run) -> None:
    head = run["head"]
    assert head.steps == (0, 1)
    assert [row.step for row in head] == [0, 1]
    assert head[-1].step == 1
    assert head[1:].record.step == 1
    assert head.at(phase="train").record.batch == 8
    assert head.at(batch=7).numpy()[0, 0] == 3
    assert head.at(step=1, rank=0).fingerprint == 2**64 - 1
    assert head.at(step=1).statistics.std == 1.25


def test_an_ambiguous_record_says_what_to_choose_from(run: Run) -> None:
    with pytest.raises(RunError) as caught:
        _ = run["head"].record
    assert str(caught.value) == (
        "head: 2 records; choose one with .at(...) or [i]: step 0, 1; batch 7, 8; phase 'eval', 'train'"
    )


def test_nothing_at_a_step_says_what_there_is(run: Run) -> None:
    with pytest.raises(SiteNotFound) as caught:
        run["head"].at(step=5, phase="eval")
    assert str(caught.value).startswith("head: no record at step=5, phase='eval'; there is step 0, 1;")


def test_an_unknown_site_names_the_nearest(run: Run) -> None:
    with pytest.raises(SiteNotFound) as caught:
        run["layer.2"]
    assert "no site 'layer.2'; nearest: layers.2" in str(caught.value)
    assert str(caught.value).endswith("It has 4 sites")


def test_a_tensor_that_was_not_kept_says_how_to_keep_it(run: Run) -> None:
    with pytest.raises(NoTensor) as caught:
        run["late"].tensor()
    assert str(caught.value) == (
        "late: only statistics were kept at step 1; record again with keep='tensor', or with keep={'late': 'tensor'}"
    )


def test_table(run: Run) -> None:
    assert run.table().num_rows == 9
    assert run.table(["step", "site"]).column_names == ["step", "site"]
    assert list(run.table(["step"]).to_pandas()["step"]) == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    with pytest.raises(BadArgument, match="no column 'l_2'; nearest: l2; all: site, path"):
        run.table(["l_2"])


def test_records(run: Run) -> None:
    assert [row.step for row in run.records("head")] == [0, 1]
    assert [str(row.site) for row in run.records()][3:5] == ["head", ":input.x"]
    assert list(run.records("head")) == [row for row in run.records() if row.site == "head"]


def test_a_summary_line(run: Run, tmp_path: Path) -> None:
    assert str(run) == f"{tmp_path / 'run'}: 4 sites, 9 records, steps 0-1, complete"
    assert repr(run) == f"<Run {tmp_path / 'run'}: 9 records>"
    open_writer = RunWriter(tmp_path / "open", info={})
    open_writer.add(record(step=3))
    open_writer.commit()
    assert str(Run(tmp_path / "open")).endswith("1 records, step 3, partial (1 problem(s), see .problems)")


def test_a_run_of_nothing(tmp_path: Path) -> None:
    RunWriter(tmp_path, info={}).close()
    run = Run(tmp_path)
    assert run
    assert (run.sites, run.inputs, run.count, run.table().num_rows, list(run.records())) == ((), (), 0, 0, [])
    assert "no steps" in str(run)
    with pytest.raises(SiteNotFound, match="It has 0 sites"):
        run["x"]


def test_no_run_here(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name, what in [("", "has no run.json"), ("nowhere", "does not exist"), ("file", "is not a folder")]:
        with pytest.raises(NotARun, match=f"{what}; a run is the folder that was given to layertap.record"):
            Run(tmp_path / name)


def test_a_run_in_memory_answers_alike(run: Run) -> None:
    writer = MemoryWriter(info={"model": "Toy"})
    for row in run.records():
        writer.add(row, run[row.site].at(step=row.step).numpy() if row.kept == "tensor" else None)
    assert Run(writer).partial
    writer.close(receipt())
    copy = Run(writer)
    assert (copy.path, copy.partial, copy.sites, copy.receipt) == (None, False, run.sites, run.receipt)
    assert str(copy) == "run in memory: 4 sites, 9 records, steps 0-1, complete"
    assert copy["layers.10"].at(step=1).tensor().tolist() == [[12, 12], [12, 12]]
    with pytest.raises(RunError, match="came after close"):
        writer.add(record())


def test_opening_reads_no_rows_and_sites_only_small_columns(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[str]] = []
    original = Shard.read

    def spy(shard: Shard, columns: list[str], *rest: object, **more: object) -> object:
        read.append(list(columns))
        return original(shard, columns, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Shard, "read", spy)
    opened = Run(run.path)
    assert opened.count == 9
    assert read == []
    assert len(opened.sites) == 4
    assert len(read) == 3
    assert not {"sketch", "first", "key"} & {name for columns in read for name in columns}


def test_one_record_decodes_one_row_group_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layertap.store.parquetfile.ROW_GROUP", 4)
    writer = RunWriter(tmp_path, info={})
    for step in range(10):
        writer.add(record(f"s{step}", step))
    writer.close()
    opened = Run(tmp_path)
    assert [row.step for row in (opened["s5"][0], opened["s9"][0], opened["s0"][0])] == [5, 9, 0]
    monkeypatch.setattr(Shard, "read", None)
    assert opened["s6"].record.step == 6  # its row group has been read already


def test_reading_needs_no_torch(run: Run) -> None:
    code = """if True:
        import sys
        from layertap.store import Run
        run = Run(sys.argv[1])
        run.sites, run.inputs, run.table(), str(run), list(run.records()), run["head"].at(step=1).numpy()
        assert "torch" not in sys.modules, "torch was imported"
        assert "pandas" not in sys.modules, "pandas was imported"
        run["head"].at(step=1).tensor()
        assert "torch" in sys.modules
    """
    command = [sys.executable, "-c", code, str(run.path)]
    done = subprocess.run(command, env={"PYTHONPATH": str(SRC)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_records_that_are_gone_are_missed(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    with lt.record(model, tmp_path / "run", sites="") as rec:
        model(torch.ones(1, 2))
    assert not rec.run.partial
    for file in (tmp_path / "run" / "records").iterdir():
        file.unlink()
    (problem,) = Run(tmp_path / "run").problems
    assert problem.endswith("2 records were written, 0 are here: files of records/ are missing")


def test_a_record_is_printed_without_its_sketch(run: Run) -> None:
    assert "sketch" not in repr(next(run.records()))


class _Watched(io.FileIO):
    """A file that notes which threads read it."""

    threads: ClassVar[set[int]] = set()

    def read(self, size: int = -1) -> bytes:
        self.threads.add(threading.get_ident())
        return super().read(size)


def test_a_shard_is_read_in_the_calling_thread_alone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of arrow's that still holds a Python object when the interpreter ends aborts the program."""
    monkeypatch.setattr(shards, "open_regular", _Watched)
    assert len(run.table()) == run.count
    assert _Watched.threads == {threading.get_ident()}
