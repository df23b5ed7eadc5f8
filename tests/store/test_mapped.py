"""A file that another program cuts while it is read through a map is an error, and never the end of the process."""

from __future__ import annotations

import gc
import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import layertap.compare.measuring as measuring
from layertap.compare import diff, tensors
from layertap.measure.fingerprint import fingerprint
from layertap.measure.pair import plain
from layertap.store import Run, RunWriter, mapped
from layertap.store import kept as kept_tensors
from store.making import kept, receipt

pytestmark = pytest.mark.skipif(not mapped.available(), reason="needs a C compiler at build time")

SIZE = 1 << 20


def run(folder: Path, change: float = 0.0) -> Run:
    writer = RunWriter(folder, info={}, durability="none")
    for n in range(3):
        values = np.arange(SIZE, dtype=np.float32) + n
        values[SIZE // 2] += change * (n > 0)
        writer.add(*kept(values, f"layers.{n}", order=n, fingerprint=fingerprint(values.view(np.uint8), "float32")))
    writer.close(receipt())
    return Run(folder)


def cut(folder: Path, size: int) -> None:
    (file,) = (folder / "tensors").glob("*.safetensors")
    os.truncate(file, size)


def test_what_lies_behind_the_cut_is_zeros_and_the_cut_is_told(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(b"\1" * (3 << 20))
    with open(path, "rb") as file:
        raw = mapped.map_bytes(file.fileno(), 5, 3 << 20)
        other = mapped.map_bytes(file.fileno(), 0, 100)
    assert raw is not None
    assert other is not None
    assert (raw == 1).all()
    assert not mapped.was_cut(raw)
    os.truncate(path, 1 << 20)
    assert int(raw.sum()) == (1 << 20) - 5, "zeros where the file has ended"
    assert (mapped.was_cut(raw), mapped.was_cut(other)) == (True, False)
    del raw, other
    gc.collect()
    assert not mapped._guarded


@pytest.mark.parametrize("verify", [True, False])
def test_diff_of_a_file_that_is_cut_under_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: bool) -> None:
    for name, change in (("a", 0.0), ("b", 0.5)):
        run(tmp_path / name, change)
    compare = measuring.compare

    def cutting(*arguments: object, **options: object) -> object:
        cut(tmp_path / "b", 6 << 20)  # in the second tensor, when both are mapped
        return compare(*arguments, **options)

    monkeypatch.setattr(measuring, "compare", cutting)
    report = diff(Run(tmp_path / "a", verify=verify), Run(tmp_path / "b", verify=verify))
    assert report.verdict == "inconclusive"
    text = " ".join(str(report).split())  # long paths make lines fold anywhere
    assert "was cut by another program while layers.1 of step 0 was read" in text
    assert [row.verdict for row in report.rows] == ["identical", "inconclusive", "inconclusive"]


def test_a_fault_elsewhere_still_ends_the_process_and_handlers_are_given_back(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(b"\1" * (1 << 20))
    code = f"""
import gc, mmap, os, sys
from layertap.store import mapped
with open({str(path)!r}, "r+b") as file:
    ours = mapped.map_bytes(file.fileno(), 0, 1 << 20)
    theirs = mmap.mmap(file.fileno(), 1 << 20, access=mmap.ACCESS_READ)
os.truncate({str(path)!r}, 0)
print(int(ours.sum()), mapped.was_cut(ours), flush=True)
if len(sys.argv) > 1:
    del ours
    gc.collect()
print(theirs[5000])
"""
    for arguments in ([], ["given back"]):
        path.write_bytes(b"\1" * (1 << 20))
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
        assert done.stdout == "0 True\n", done.stderr
        assert done.returncode == -signal.SIGBUS


def test_without_the_library_tensors_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, change in (("a", 0.0), ("b", 0.5)):
        run(tmp_path / name, change)
    monkeypatch.setattr(mapped, "_library", lambda: None)
    report = diff(tmp_path / "a", tmp_path / "b")
    assert [row.difference is None for row in report.rows] == [True, False, False]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="pages of files are counted from /proc")
def test_pages_that_were_let_go_of_are_out_of_memory_and_can_be_read_again(tmp_path: Path) -> None:
    def of_files() -> int:
        return int(Path("/proc/self/statm").read_text().split()[2]) * mmap.PAGESIZE

    path, size = tmp_path / "bytes", 64 << 20
    path.write_bytes(b"\1" * size)
    with path.open("rb") as file:
        raw = mapped.map_bytes(file.fileno(), 10, size)
    assert raw is not None
    assert int(raw.sum()) == size - 10
    held = of_files()
    mapped.release(raw[90:].reshape(-1, 2)[:], 0, size)  # of a view, and beyond its end
    assert held - of_files() > 60 << 20
    assert int(raw.sum()) == size - 10
    mapped.release(raw, 5000, 5001)  # no whole page
    mapped.release(np.ones(1 << 20, np.uint8), 0, 1 << 20)  # no map
    assert int(raw.sum()) == size - 10
    assert held - of_files() < 4 << 20


def test_a_diff_lets_go_of_the_pages_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, change in (("a", 0.0), ("b", 0.5)):
        run(tmp_path / name, change)
    whole = diff(tmp_path / "a", tmp_path / "b")
    parts: list[tuple[int, int]] = []
    for module in (tensors, kept_tensors):
        monkeypatch.setattr(module, "release", lambda raw, begin, end: parts.append((begin, end)))
    monkeypatch.setattr(plain, "WINDOW", 1 << 20)
    monkeypatch.setattr(kept_tensors, "WINDOW", 1 << 20)
    report = diff(tmp_path / "a", tmp_path / "b")
    assert repr(tuple(report.rows)) == repr(tuple(whole.rows))
    assert len(parts) == len(report.rows) * 2 * (4 * SIZE >> 20)
    assert sum(end - begin for begin, end in parts) == len(report.rows) * 2 * 4 * SIZE  # every byte of both sides, once
