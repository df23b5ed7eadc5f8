"""Writing: when shards are committed, what becomes of a run that is there, and of a disk that is full."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import layertap.store.parquetfile as parquetfile_module
import layertap.store.runfile as runfile_module
import layertap.store.writer as writer_module
from layertap.errors import BadArgument, CorruptRun, RunError, RunExists
from layertap.store import Run, RunWriter
from layertap.store.tensorfile import TensorFileWriter
from store.making import kept, receipt, record, statistics


def names(folder: Path) -> list[str]:
    return sorted(path.name for part in ("records", "tensors") for path in (folder / part).iterdir())


def write(folder: Path, steps: range, **options: object) -> None:
    writer = RunWriter(folder, **{"info": {}, **options})  # type: ignore[arg-type]
    for step in steps:
        writer.add(*kept(np.full(3, step), "a", step, rank=writer.rank))
    writer.close(receipt())


def values(folder: Path) -> list[int]:
    run = Run(folder)
    return [int(run["a"][i : i + 1].numpy()[0]) for i in range(len(run["a"]))]


def test_files_are_named_by_rank_session_and_number(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, info={}, rank=3)
    for step in range(2):
        writer.add(*kept(np.ones(1), step=step))
        writer.commit()
    stem = f"3-{writer.session}-00000"
    assert names(tmp_path) == [f"{stem}{n}.{end}" for n in (0, 1) for end in ("parquet", "safetensors")]
    assert (tmp_path / "run.3.json").exists()
    assert not (tmp_path / "run.json").exists()
    assert (writer.records, writer.bytes) == (2, 16)


def test_statistics_alone_make_no_tensor_file(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, info={})
    writer.add(*kept(np.ones(1))[:1])
    writer.close()
    assert [name.split(".")[-1] for name in names(tmp_path)] == ["parquet"]
    assert next(Run(tmp_path).records()).kept == "stats"


@pytest.mark.parametrize("limit", ["SHARD_RECORDS", "SHARD_BYTES", "SHARD_SECONDS"])
def test_a_shard_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    now = [1000.0]
    monkeypatch.setattr(writer_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(writer_module, limit, {"SHARD_RECORDS": 4, "SHARD_BYTES": 32, "SHARD_SECONDS": (4, 9)}[limit])
    writer = RunWriter(tmp_path, info={})
    for step in range(10):
        writer.add(*kept(np.ones(1), step=step))
        now[0] += 4 / 3  # the fourth record finds the shard four seconds old
    assert Run(tmp_path).count == 8


def test_shards_grow_older_in_a_long_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(writer_module.time, "monotonic", lambda: now[0])
    writer = RunWriter(tmp_path, info={})
    for now[0], committed in [(0, 0), (9, 0), (10, 3), (400, 3), (415, 3), (422, 6), (9000, 6), (9059, 6), (9060, 9)]:
        writer.add(record())
        assert writer.records == committed, now[0]


def test_a_full_header_starts_a_new_shard_with_more_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "HEADER_BYTES", (300, 5000))
    writer = RunWriter(tmp_path, info={})
    written = ["a" * 10] * 60 + ["long" * 3000]
    for step, name in enumerate(written):
        writer.add(*kept(np.full(2, step), name, step))
    writer.close()
    run = Run(tmp_path)
    assert run.count == 61
    assert [run[row.site].at(step=row.step).numpy()[0] for row in run.records()] == list(range(61))
    per_shard = [shard.rows for shard in run._shards]
    assert per_shard[0] < per_shard[1] < per_shard[2]


def test_bytes_that_contradict_the_record_are_refused(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, info={})
    row, data = kept(np.ones((2, 3), np.float32))
    with pytest.raises(BadArgument) as caught:
        writer.add(row, data[:-1])
    assert str(caught.value) == (
        "layers.0: 23 bytes given; the record has kept='tensor', float32 [2, 3], which is 24 bytes"
    )
    with pytest.raises(BadArgument, match="not contiguous"):
        writer.add(row, data[::-1])
    with pytest.raises(BadArgument, match="kept='stats', no kept_dtype"):
        writer.add(record(), data)
    with pytest.raises(BadArgument, match="exists='maybe': expected 'error', 'append' or 'replace'"):
        RunWriter(tmp_path / "b", info={}, exists="maybe")  # type: ignore[arg-type]
    writer.close()
    assert Run(tmp_path).count == 0


def test_a_closed_writer_takes_no_more(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, info={})
    writer.close()
    writer.close()
    with pytest.raises(RunError, match=r"a record of layers\.0 came after close"):
        writer.add(record())


def test_a_run_is_never_overwritten_unasked(tmp_path: Path) -> None:
    write(tmp_path, range(2))
    with pytest.raises(RunExists) as caught:
        RunWriter(tmp_path, info={})
    assert str(caught.value) == (
        f"{tmp_path} already contains a run; exists='append' (--append) continues it, "
        f"exists='replace' (--replace) removes it, or give another folder"
    )
    (tmp_path / "run.json").unlink()
    with pytest.raises(RunExists):
        RunWriter(tmp_path, info={})
    assert values(tmp_path) == [0, 1]


def test_replace_removes_the_old_run_and_nothing_else(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path, range(2), rank=rank)
    (tmp_path / "records" / "mine.parquet").write_text("mine")
    (tmp_path / "notes.txt").write_text("mine")
    write(tmp_path, range(7, 8), exists="replace", info={"world_size": 2})
    run = Run(tmp_path)
    assert sorted((row.rank, row.step) for row in run.records()) == [(0, 7), (1, 0), (1, 1)]
    assert run.sessions[0]["sessions"] == []
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["notes.txt", "run.1.json", "run.json"]
    assert (tmp_path / "records" / "mine.parquet").read_text() == "mine"
    assert len(names(tmp_path)) == 5


def test_replace_killed_half_way_is_no_complete_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, range(2))
    unlinked = []

    def unlink(path: Path) -> None:
        if unlinked:
            raise OSError(errno.EIO, "killed here")
        unlinked.append(os.unlink(path))

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(RunError, match="no run can be written here"):
        RunWriter(tmp_path, info={}, exists="replace")
    assert Run(tmp_path).partial


def test_append_continues_a_run_and_keeps_its_sessions(tmp_path: Path) -> None:
    write(tmp_path, range(2))
    dead = RunWriter(tmp_path, info={"why": "preempted"}, exists="append")
    dead.add(*kept(np.full(3, 2), "a", 2))
    dead.commit()
    write(tmp_path, range(3, 5), exists="append")
    run = Run(tmp_path)
    assert values(tmp_path) == [0, 1, 2, 3, 4]
    assert [session["status"] for session in run.sessions] == ["complete", "recording", "complete"]
    assert run.sessions[1]["why"] == "preempted"
    assert run.receipt == receipt()
    assert run.partial
    (problem,) = run.problems
    assert problem == (
        f"session {dead.session} of rank 0 was never closed: it is still recording, or its process died; "
        f"its last records may be missing"
    )


@pytest.mark.parametrize("content", [b"{", b"", bytes(300)], ids=["cut", "empty", "zeros"])
def test_append_to_a_damaged_run_json(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, range(1))
    (tmp_path / "run.json").write_bytes(content)
    write(tmp_path, range(1, 2), exists="append")
    run = Run(tmp_path)
    assert values(tmp_path) == [0, 1]
    (problem,) = run.problems
    assert problem.startswith(f"{tmp_path}/run.json: not JSON; expected the description of a run")
    assert problem.endswith("; it was renamed to run.json.damaged, and its data of earlier sessions is lost")
    assert (tmp_path / "run.json.damaged").read_bytes() == content
    assert run.receipt == receipt()


def test_a_run_json_that_is_damaged_while_it_is_written(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, info={})
    writer.add(*kept(np.full(3, 0), "a", 0))
    (tmp_path / "run.json").write_bytes(b"")
    writer.close(receipt())
    assert Run(tmp_path).receipt == receipt()
    assert "run.json.damaged" in Run(tmp_path).problems[0]


def test_a_damaged_run_json_without_records_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(b"")
    with pytest.raises(CorruptRun, match=r"run\.json: not JSON"):
        Run(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names the files behind descriptors by /proc")
def test_each_file_is_synced_before_it_gets_its_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.replace

    def name(path: Path | str) -> str:
        if "writer" not in known:
            return ""
        return re.sub("[0-9a-f]{8}.tmp$", "S.tmp", os.path.relpath(path, tmp_path).replace(writer.session, "S"))

    def syncing(fd: int) -> None:
        done.append(("sync", name(os.readlink(f"/proc/self/fd/{fd}"))))
        fsync(fd)

    def renaming(source: Path, target: Path) -> None:
        done.append(("rename", name(source)))
        rename(source, target)

    known: set[str] = set()
    writer = RunWriter(tmp_path / "runs" / "a", info={})
    known.add("writer")
    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "replace", renaming)
    writer.add(*kept(np.ones(3)))
    writer.close()
    tensors, records = "runs/a/tensors", "runs/a/records"
    assert done == [
        ("sync", f"{tensors}/.0-S-000000.safetensors.tmp"),
        ("rename", f"{tensors}/.0-S-000000.safetensors.tmp"),
        ("sync", tensors),
        ("sync", f"{records}/.0-S-000000.parquet.tmp"),
        ("rename", f"{records}/.0-S-000000.parquet.tmp"),
        ("sync", records),
        ("sync", "runs/a/.run.json.S.tmp"),
        ("rename", "runs/a/.run.json.S.tmp"),
        ("sync", "runs/a"),
    ]
    done.clear()
    made = RunWriter(tmp_path / "new" / "b", info={})
    assert done == [("sync", "."), ("sync", "new"), *[("sync", "new/b")] * 2, *done[4:]]
    made.close()
    done.clear()
    scratch = RunWriter(tmp_path / "scratch", info={}, durability="none")
    scratch.add(*kept(np.ones(3)))
    scratch.close()
    assert [what for what, _ in done] == ["rename"] * 4
    with pytest.raises(BadArgument, match="durability='disk': expected 'fsync' or 'none'"):
        RunWriter(tmp_path / "c", info={}, durability="disk")  # type: ignore[arg-type]


def test_a_disk_that_cannot_sync_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RunWriter(tmp_path, info={})
    writer.add(*kept(np.full(3, 0), "a", 0))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", broken)
        with pytest.raises(RunError, match="Input/output error"):
            writer.commit()
    writer.add(*kept(np.full(3, 1), "a", 1))
    writer.close()
    assert (values(tmp_path), writer.lost, Run(tmp_path).partial) == ([1], 1, True)


def test_a_file_system_without_sync_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.EINVAL, "Invalid argument")))
    write(tmp_path, range(2))
    assert (values(tmp_path), Run(tmp_path).partial) == ([0, 1], False)


def broken(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_append_clears_leftovers_of_the_dead_only(tmp_path: Path) -> None:
    code = """if True:
        import os, sys
        import numpy as np
        sys.path.insert(0, sys.argv[2])
        from store.making import kept
        from layertap.store import RunWriter
        RunWriter(sys.argv[1], info={}).add(*kept(np.ones(3)))
        os._exit(9)
    """
    here = Path(__file__).parents[1]
    environment = {"PYTHONPATH": f"{Path(writer_module.__file__).parents[2]}"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path), str(here)], env=environment, check=False)
    dead = names(tmp_path)
    assert [name.startswith(".") for name in dead] == [True, True]
    alive = RunWriter(tmp_path, info={}, exists="append")
    assert names(tmp_path) == []
    alive.add(*kept(np.ones(3)))
    living = names(tmp_path)
    assert len(living) == 2
    RunWriter(tmp_path, info={}, exists="append")
    assert names(tmp_path) == living, "a file of a writer that lives was removed"
    alive.close()
    assert Run(tmp_path).count == 1


def test_append_clears_tensors_whose_records_were_never_written(tmp_path: Path) -> None:
    write(tmp_path, range(2))
    (parquet,) = (tmp_path / "records").iterdir()
    stem = f"{parquet.stem[:-6]}000007"
    (tmp_path / "tensors" / f"{stem}.safetensors").write_bytes(b"of a writer that died between two renames")
    other = tmp_path / "tensors" / "mine.safetensors"
    other.write_bytes(b"mine")
    whole = names(tmp_path)
    RunWriter(tmp_path, info={}, exists="append").close()
    assert names(tmp_path) == [name for name in whole if not name.startswith(stem)]
    assert (values(tmp_path), other.exists()) == ([0, 1], True)


def test_ranks_and_sessions_write_side_by_side(tmp_path: Path) -> None:
    first = RunWriter(tmp_path, info={"who": "first"}, rank=0)
    writers = [first, RunWriter(tmp_path, info={}, rank=1), RunWriter(tmp_path, info={"who": "third"}, exists="append")]

    def work(writer: RunWriter) -> None:
        for step in range(40):
            writer.add(*kept(np.full(5, step), "a", step, rank=writer.rank))
            writer.commit()
        writer.close()

    threads = [threading.Thread(target=work, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run = Run(tmp_path)
    assert not run.partial, run.problems
    assert run.count == 120
    assert sorted(str(session.get("who")) for session in run.sessions) == ["None", "first", "third"]
    assert all(run["a"][i : i + 1].numpy()[0] == run["a"][i].step for i in range(120))
    assert len(run["a"].at(rank=1)) == 40


def test_sessions_that_close_together_do_not_forget_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = runfile_module.read_run_file

    def slowly(path: Path) -> dict[str, object]:
        found = original(path)
        time.sleep(0.02)
        return found

    writers = [RunWriter(tmp_path, info={}, exists="append") for _ in range(6)]
    monkeypatch.setattr(runfile_module, "read_run_file", slowly)
    threads = [threading.Thread(target=writer.close) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    run = Run(tmp_path)
    assert len(run.sessions) == 6
    assert not run.partial


def test_a_run_is_read_while_it_is_written(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, info={})
    seen = []
    for step in range(5):
        writer.add(*kept(np.full(3, step), "a", step))
        before = Run(tmp_path)
        writer.commit()
        writer.add(record("uncommitted", step))
        seen.append((before.count, len(values(tmp_path)), Run(tmp_path).partial))
    assert seen == [(0, 1, True), (1, 2, True), (3, 3, True), (5, 4, True), (7, 5, True)]
    writer.close()
    assert not Run(tmp_path).partial


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("mounting a small tmpfs needs root; the injected failures below test the same")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    writer = RunWriter(small_disk / "run", info={})
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    failures = []
    for step in range(40):
        try:
            writer.add(*kept(np.full(12_500, step), "a", step))
            if step % 7 == 6:
                writer.commit()
        except RunError as error:
            failures.append(str(error))
            ballast.unlink(missing_ok=True)
    writer.close()
    run = Run(small_disk / "run")
    assert failures
    assert all("No space left on device" in text for text in failures)
    assert all(text.endswith("what was committed before is untouched") for text in failures)
    assert run.count + writer.lost == 40
    assert run.count == writer.records > 8
    assert all(run["a"].at(step=step).numpy().tolist() == [step] * 12_500 for step in run["a"].steps)
    assert run.partial
    assert set(run.problems) == set(writer.problems)
    assert not [name for name in names(small_disk / "run") if name.startswith(".")]


def no_space(*_: object, **__: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_tensor_that_does_not_fit_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RunWriter(tmp_path, info={})
    writer.add(*kept(np.full(3, 0), "a", 0))
    written = os.write

    def half(fd: int, data: memoryview) -> int:
        monkeypatch.setattr(os, "write", no_space)
        return written(fd, data[: len(data) // 2])

    with monkeypatch.context() as patched:
        patched.setattr(os, "ftruncate", lambda *_: (monkeypatch.setattr(os, "write", written), truncate(*_))[1])
        monkeypatch.setattr(os, "write", half)
        with pytest.raises(
            RunError, match=r"the tensor of a could not be written: .*No space left.*1 record\(s\) lost"
        ):
            writer.add(*kept(np.full(3, 1), "a", 1))
    writer.add(*kept(np.full(3, 2), "a", 2))
    writer.close()
    assert writer.lost == 1
    assert values(tmp_path) == [0, 2]


truncate = os.ftruncate


@pytest.mark.parametrize("where", ["first write", "header", "parquet", "tensor rename", "parquet rename"])
def test_a_failed_shard_is_counted_and_the_next_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    writer = RunWriter(tmp_path, info={})
    writer.add(*kept(np.full(3, 0), "a", 0))
    writer.commit()
    renamed = os.replace

    def rename(source: Path, target: Path) -> None:
        if str(target).endswith("safetensors" if where == "tensor rename" else "parquet"):
            no_space()
        renamed(source, target)

    with monkeypatch.context() as patched:
        if where == "first write":
            patched.setattr(os, "write", no_space)
        elif where == "header":
            patched.setattr(TensorFileWriter, "finish", no_space)
        elif where == "parquet":
            patched.setattr(parquetfile_module.pq, "write_table", no_space)
        else:
            patched.setattr(os, "replace", rename)
        with pytest.raises(RunError, match="No space left on device"):
            writer.add(*kept(np.full(3, 1), "a", 1))
            writer.commit()
    assert writer.lost == 1
    assert len(names(tmp_path)) == 2, "the failed shard left something behind"
    writer.add(*kept(np.full(3, 2), "a", 2))
    writer.close()
    assert values(tmp_path) == [0, 2]
    run = Run(tmp_path)
    assert run.partial
    assert run.problems == tuple(writer.problems)
    assert json.loads((tmp_path / "run.json").read_text())["lost"] == 1


def test_a_failure_in_close_still_closes_and_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RunWriter(tmp_path, info={})
    writer.add(record())
    with monkeypatch.context() as patched:
        patched.setattr(parquetfile_module.pq, "write_table", no_space)
        with pytest.raises(RunError, match="could not be written"):
            writer.close(receipt())
    run = Run(tmp_path)
    assert (run.info["status"], run.info["lost"], run.partial) == ("complete", 1, True)


def test_an_interrupted_commit_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RunWriter(tmp_path, info={})
    writer.add(*kept(np.full(3, 5), "a", 0))

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(parquetfile_module.pq, "write_table", interrupt)
        writer.commit()
    writer.close()
    assert (values(tmp_path), writer.lost) == ([5], 0)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file/run: no run can be written here"):
        RunWriter(tmp_path / "file" / "run", info={})


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="room is taken with posix_fallocate")
@pytest.mark.parametrize("name", ["a", "model.layers.11.self_attn.o_proj" * 4])
def test_the_room_taken_is_enough_for_what_cannot_be_compressed(tmp_path: Path, name: str) -> None:
    chance = np.random.default_rng(0)
    writer = RunWriter(tmp_path, info={})
    for step in range(5000):
        random = statistics(**dict(zip(("mean", "std", "min", "max", "l2"), chance.random(5).tolist(), strict=True)))
        site = f"{name}.{chance.integers(1 << 60)}:output.{step}"
        row = record(site, step, sketch=chance.bytes(1004), statistics=random, fingerprint=step << 40, shape=(step, 3))
        writer.add(row)
    (file,) = (tmp_path / "records").iterdir()
    taken = file.stat().st_size
    writer.commit()
    (file,) = (tmp_path / "records").iterdir()
    assert file.stat().st_size <= taken
    assert Run(tmp_path).count == 5000
