"""What the store costs, as ratios to the plain way in the same process: `python benchmarks/store.py [FOLDER]`.

Prints a table and exits with 1 if a line misses its limit. FOLDER is where to write (about 2 GiB; a temporary folder by
default): the disk's own speed cancels out in the first line, and does not matter in the others.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import safetensors.numpy
import safetensors.torch
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
sys.path[:1] = [str(ROOT / "src"), str(ROOT / "tests")]  # in place of this folder, whose store.py hides tests/store

from layertap.store import RunWriter  # noqa: E402
from store.making import kept, record  # noqa: E402

MIB = 1 << 20
BUDGET = 64 * MIB


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--child", choices=["tensors", "nothing"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.folder, arguments.child)
        return
    table = Table("what", "measured", "limit", "")
    missed = False
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for work in (speed, small_tensors, memory, opening):
            for what, value, unit, limit, at_least in work(Path(folder)):
                good = limit is None or (value >= limit if at_least else value <= limit)
                missed |= not good
                bound = "" if limit is None else f"{'>=' if at_least else '<='} {limit:g} {unit}"
                table.add_row(what, f"{value:.4g} {unit}", bound, "" if limit is None else "ok" if good else "MISSED")
    Console(width=110).print(table)
    sys.exit(missed)


Line = tuple[str, float, str, float | None, bool]


def speed(folder: Path) -> list[Line]:
    """512 MiB in tensors of 4 MiB: layertap against one save_file of the same bytes, in turns."""
    tensors = {f"layers.{i}": np.random.default_rng(i).random(MIB // 2) for i in range(128)}
    import torch

    as_torch = {name: torch.from_numpy(array) for name, array in tensors.items()}
    rows = [(kept(array, name)[0], array) for name, array in tensors.items()]

    def ours(path: Path, durability: Literal["fsync", "none"]) -> None:
        writer = RunWriter(path, info={}, durability=durability)
        for row, array in rows:
            writer.add(row, array)
        writer.close()

    def synced(path: Path) -> None:
        safetensors.numpy.save_file(tensors, path)
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    ways: dict[str, Callable[[Path], None]] = {
        "numpy": lambda path: safetensors.numpy.save_file(tensors, path),
        "torch": lambda path: safetensors.torch.save_file(as_torch, path),
        "ours": lambda path: ours(path, "none"),
        "ours synced": lambda path: ours(path, "fsync"),
        "numpy synced": synced,
    }
    seconds = take_turns(ways, folder, rounds=8)
    ratio = min(seconds["numpy"], seconds["torch"]) / seconds["ours"]
    size = 512 / 1024
    return [
        ("writing 512 MiB: layertap", size / seconds["ours"], "GiB/s", None, True),
        ("writing 512 MiB: safetensors.numpy.save_file", size / seconds["numpy"], "GiB/s", None, True),
        ("writing 512 MiB: safetensors.torch.save_file", size / seconds["torch"], "GiB/s", None, True),
        ("speed, layertap / the faster save_file, neither synced", ratio, "", 0.8, True),
        ("writing 512 MiB: layertap, synced", size / seconds["ours synced"], "GiB/s", None, True),
        ("speed, layertap / save_file, both synced", seconds["numpy synced"] / seconds["ours synced"], "", 0.5, True),
        ("cost of durability: synced / not synced", seconds["ours synced"] / seconds["ours"], "x time", None, True),
    ]


def small_tensors(folder: Path) -> list[Line]:
    """Many small tensors, where the rows cost more than the bytes."""
    array = np.ones(1024, np.float32)
    rows = [kept(array, f"layers.{i % 300}", i // 300, order=i % 300) for i in range(20_000)]

    def write(path: Path, durability: Literal["fsync", "none"]) -> None:
        writer = RunWriter(path, info={}, durability=durability)
        for row, data in rows:
            writer.add(row, data)
        writer.close()

    ways: dict[str, Callable[[Path], None]] = {
        "fsync": lambda path: write(path, "fsync"),
        "none": lambda path: write(path, "none"),
    }
    seconds = take_turns(ways, folder, rounds=4)
    return [
        ("records with a tensor of 4 KiB", 20_000 / seconds["fsync"], "/s", None, True),
        ("cost of durability: synced / not synced", seconds["fsync"] / seconds["none"], "x time", 1.5, False),
        ("milliseconds of one commit, synced", 1000 * commit_seconds(folder, "fsync"), "ms", None, False),
        ("milliseconds of one commit, not synced", 1000 * commit_seconds(folder, "none"), "ms", None, False),
    ]


def commit_seconds(folder: Path, durability: Literal["fsync", "none"]) -> float:
    """One record with a small tensor, again and again: what a commit costs besides its bytes."""
    writer = RunWriter(folder / f"commits-{durability}", info={}, durability=durability)
    array, seconds = np.ones(1024, np.float32), []
    for step in range(40):
        writer.add(*kept(array, "a", step))
        start = time.perf_counter()
        writer.commit()
        seconds.append(time.perf_counter() - start)
    writer.close()
    return statistics.median(seconds)


def memory(folder: Path) -> list[Line]:
    """Peak memory of a process that writes ten times the budget, over one that writes nothing."""
    peaks = {}
    for what in ("nothing", "tensors"):
        command = [sys.executable, __file__, str(folder / "memory"), "--child", what]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[what] = int(done.stdout)
    extra = (peaks["tensors"] - peaks["nothing"]) / MIB
    return [(f"peak memory of writing {10 * BUDGET // MIB} MiB", extra, "MiB", BUDGET / MIB, False)]


def child(folder: Path, what: str) -> None:
    array = np.ones(MIB, np.float64)
    writer = RunWriter(folder, info={}, exists="replace")
    writer.add(*kept(array[:1], "first", 0))
    writer.commit()  # arrow's own memory is not the store's
    for step in range(10 * BUDGET // array.nbytes if what == "tensors" else 0):
        row, _ = kept(array[:1], "a", step)
        writer.add(kept_whole(row, array), array)
    writer.close()
    print(peak())


def kept_whole(row: object, array: np.ndarray) -> object:
    from dataclasses import replace

    return replace(row, shape=array.shape, kept_shape=array.shape)  # type: ignore[type-var]


def peak() -> int:
    # ru_maxrss of a child may be its parent's; the kernel's own high-water mark begins anew with the program.
    try:
        (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        scale = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def opening(folder: Path) -> list[Line]:
    """A run of a million records: 500 sites, 2,000 steps, sketches that do not compress."""
    sketches = [np.random.default_rng(i).random(251).astype("<f4").tobytes() for i in range(500)]
    writer = RunWriter(folder / "million", info={})
    sites = [record(f"model.layers.{i}", sketch=sketches[i]).site for i in range(500)]
    start = time.perf_counter()
    base = record()
    for step in range(2000):
        for order, site in enumerate(sites):
            writer.add(fast_replace(base, site=site, step=step, order=order, sketch=sketches[(order + step) % 500]))
    writer.close()
    written = time.perf_counter() - start
    code = (
        "import sys, time; start = time.perf_counter(); from layertap.store import Run; imported = time.perf_counter();"
        "run = Run(sys.argv[1]); count = len(run.sites); end = time.perf_counter(); assert count == 500;"
        "run['model.layers.7'].at(step=1000).record; print(imported - start, end - imported, time.perf_counter() - end)"
    )
    times = [
        [
            float(text)
            for text in subprocess.run(
                [sys.executable, "-c", code, str(folder / "million")],
                env={"PYTHONPATH": str(ROOT / "src")},
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split()
        ]
        for _ in range(3)
    ]
    imported, opened, one = (statistics.median(column) for column in zip(*times, strict=True))
    return [
        ("records of statistics written", 1e6 / written, "/s", None, True),
        ("importing layertap.store", imported, "s", None, False),
        ("opening 1,000,000 records and listing 500 sites", opened, "s", 2.0, False),
        ("then one record of them", one, "s", None, False),
    ]


def fast_replace(base: object, **changed: object) -> object:
    """dataclasses.replace without its checks, so that the loop measures the store and not this file."""
    new = object.__new__(type(base))
    for name in type(base).__slots__:  # type: ignore[attr-defined]
        object.__setattr__(new, name, changed[name] if name in changed else getattr(base, name))
    return new


def take_turns(ways: dict[str, Callable[[Path], None]], folder: Path, rounds: int) -> dict[str, float]:
    """The least seconds of each, since other work only ever adds: in turns, each turn beginning with another, and with
    nothing left to write for the disk, so that none pays for the one before it."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in sorted(ways.items(), key=lambda item: (list(ways).index(item[0]) + number) % len(ways)):
            path = folder / f"{name}{number}"
            os.sync()
            start = time.perf_counter()
            way(path)
            seconds[name].append(time.perf_counter() - start)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return {name: min(values) for name, values in seconds.items()}


if __name__ == "__main__":
    main()
