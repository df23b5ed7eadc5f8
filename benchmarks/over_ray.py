"""Two sparse runs of 50 GB each, compared in this process and by two Ray workers, one of which is killed on the way.

    python benchmarks/over_ray.py --gigabytes 50 --into /tmp/layertap-ray

Asserts that both reports are equal and that no worker ever held more than 1 GB, and prints peak memory and times.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import time
from pathlib import Path
from threading import Event, Thread

import layertap as lt
from layertap.engine.over_ray import RayEngine

SHAPE = (32768, 10240)
"""1.34 GB of float32: a tensor alone is more than a worker may hold."""
LIMIT = 10**9


def main() -> None:
    from sparse_runs import write

    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=50)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--into", type=Path, default=Path("/tmp/layertap-ray"))
    given = parser.parse_args()
    shutil.rmtree(given.into, ignore_errors=True)
    tensors = round(given.gigabytes * 1e9 / (4 * SHAPE[0] * SHAPE[1]))
    sides = given.into / "a", given.into / "b"
    for side, changed in zip(sides, ((), range(tensors // 3, tensors, 2)), strict=True):
        write(side, tensors, SHAPE, changed)
        files = [path.stat() for path in side.rglob("*") if path.is_file()]
        size, held = sum(file.st_size for file in files), sum(512 * file.st_blocks for file in files)
        print(f"{side.name}: {tensors} tensors, {size / 1e9:.1f} GB, {held / 1e6:.1f} MB on disk", flush=True)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    here = lt.diff(*sides)
    alone = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"in this process: {alone:.0f} s, peak {peak / 1024:.0f} MiB ({before / 1024:.0f} before)", flush=True)
    began = time.perf_counter()
    with RayEngine(workers=given.workers) as engine, WorkerWatch() as workers:
        started = time.perf_counter() - began
        there = lt.diff(*sides, engine=engine, progress=workers.kill_one_at(tensors // 2))
    together = time.perf_counter() - began
    print(f"by {given.workers} Ray workers: {together:.0f} s, {started:.1f} s of them to start Ray")
    print(f"times: Ray ÷ this process = {together / alone:.2f}")
    assert workers.killed, "no worker was at work when one was to be killed"
    print(f"killed midway: worker {workers.killed}")
    for pid, most in workers.peaks.items():
        print(f"worker {pid}: peak {most / 1e6:.0f} MB")
    assert here.to_dict() == there.to_dict()
    assert here.rows == there.rows
    assert len(here.rows) == tensors
    assert max(workers.peaks.values()) <= LIMIT
    print(f"the same report: {here.verdict}, first {here.first and here.first.site}, {len(here.rows)} rows")
    shutil.rmtree(given.into)


class WorkerWatch:
    """The worker processes of a Ray that this process started: how much memory each had at most (Linux)."""

    def __init__(self) -> None:
        self.peaks: dict[int, int] = {}
        """By process; those that worked."""
        self.killed = 0
        self._ended = Event()
        self._thread = Thread(target=self._look, daemon=True)

    def __enter__(self) -> WorkerWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def kill_one_at(self, place: int):
        """For `progress`: kills a worker that has a task, once so many pairs are done."""

        def tell(done: int, total: int) -> None:
            if done >= place and not self.killed:
                self.killed = next((pid for pid, name in _workers() if name == "ray::_do"), 0)
                if self.killed:
                    os.kill(self.killed, signal.SIGKILL)

        return tell

    def _look(self) -> None:
        while not self._ended.wait(0.1):
            for pid, name in _workers():
                most = _peak(pid)
                if most and (name == "ray::_do" or pid in self.peaks):
                    self.peaks[pid] = most


def _workers() -> list[tuple[int, str]]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            name = (path / "cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace").strip()
            if name.startswith("ray::") and _is_ours(path):
                found.append((int(path.name), name))
        except (OSError, IndexError):
            continue  # it has ended
    return found


def _is_ours(path: Path) -> bool:
    """Whether it is a child of a child of this process: Ray's node starts the workers."""
    parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
    above = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
    return above == os.getpid()


def _peak(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)


if __name__ == "__main__":
    main()
