"""Cuts the power of a real file system under a run that is being written, and counts what is left of it.

    sudo python benchmarks/power_cut.py [--cuts 40] [--seconds 40] [--durability fsync]

An ext4 image is mounted through a loop device; a process records into it as fast as it can and tells over a pipe what
it has committed. Now and then the image is copied while it is mounted: the copy holds what had reached the disk, and
nothing that was in memory. It is mounted, which replays its journal, and each record that had been committed before the
copying began must be readable and right. Prints a table and exits with 1 if one is missing. Needs root, mkfs.ext4 and a
loop device; without them it says so and exits with 2.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:1] = [str(ROOT / "src"), str(ROOT / "tests")]  # in place of this folder, whose store.py hides tests/store

import numpy as np  # noqa: E402

from layertap.errors import RunError  # noqa: E402
from layertap.store import Run, RunWriter  # noqa: E402
from store.making import kept, record  # noqa: E402

IMAGE_BYTES = 512 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cuts", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=40.0, help="over which the cuts are spread")
    parser.add_argument("--durability", choices=["fsync", "none"], default="fsync")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.durability)
    if why := unable():
        print(f"cannot cut the power here: {why}")
        sys.exit(2)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or what is mounted would stay so
    lost = cuts(arguments.cuts, arguments.seconds, arguments.durability)
    sys.exit(lost > 0)


def content(step: int) -> np.ndarray:
    return np.random.default_rng(step).integers(0, 255, 1000 + step % 7 * 3000, np.uint8)


def child(folder: Path, durability: str) -> None:
    """Writes one run after another until it is killed; a line for each commit and each close that has returned."""
    for number in range(10**6):
        path = folder / f"run{number:03d}"
        writer = RunWriter(path, info={}, durability=durability)  # type: ignore[arg-type]
        step = 0
        for _ in range(12):
            for _ in range(random.choice([1, 5, 40])):
                writer.add(*kept(content(step), "a", step))
                writer.add(record("b", step))
                step += 1
            writer.commit()
            print(f"{path.name} {step} open", flush=True)
        writer.close()
        print(f"{path.name} {step} closed", flush=True)
        if number >= 3:
            shutil.rmtree(folder / f"run{number - 3:03d}")


def unable() -> str:
    if os.name != "posix" or os.geteuid() != 0:
        return "it takes root to mount"
    missing = [tool for tool in ("mkfs.ext4", "mount", "umount", "losetup") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} missing"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with mounted(make_image(Path(folder) / "image"), Path(folder) / "there"):
                return ""
        except subprocess.CalledProcessError as error:
            return f"no loop device can be mounted ({error.stderr.decode().strip()})"


def make_image(path: Path) -> Path:
    with open(path, "wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", path], check=True, capture_output=True)
    return path


@contextmanager
def mounted(image: Path, where: Path) -> Iterator[Path]:
    where.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", image, where], check=True, capture_output=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", where], check=True, capture_output=True)


def cuts(count: int, seconds: float, durability: str) -> int:
    chance = random.Random(0)
    told: dict[str, tuple[int, str]] = {}
    promised = readable = lost = damaged = closed = 0
    with tempfile.TemporaryDirectory() as room:
        image = make_image(Path(room) / "image")
        with mounted(image, Path(room) / "live") as live:
            command = [sys.executable, __file__, "--child", live, "--durability", durability]
            writer = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0)
            assert writer.stdout is not None
            os.set_blocking(writer.stdout.fileno(), False)
            try:
                for number in range(count):
                    time.sleep(chance.uniform(0.2, 1.8) * seconds / count)
                    if writer.poll() is not None:
                        sys.exit("the writer died")
                    told = dict(list({**told, **read_lines(writer.stdout)}.items())[-2:])
                    cut = Path(room) / "cut"
                    subprocess.run(["cp", "--sparse=always", image, cut], check=True)
                    with mounted(cut, Path(room) / "after") as after:
                        for name, (steps, state) in told.items():
                            found = examine(after / name, steps)
                            promised, readable = promised + steps, readable + found[0]
                            lost, damaged = lost + steps - found[0], damaged + found[1]
                            closed += state == "closed"
                    cut.unlink()
                    print(f"cut {number + 1}: {', '.join(f'{k} {v[0]} {v[1]}' for k, v in told.items())}; lost {lost}")
            finally:
                writer.kill()
                writer.wait()
    print(f"\n{count} cuts, durability={durability!r}: {promised} steps committed before them, {readable} readable and")
    print(f"right afterwards, {lost} lost, {damaged} wrong without a word; {closed} times a run that was closed")
    return lost + damaged


def read_lines(stream: object) -> dict[str, tuple[int, str]]:
    # Unbuffered bytes: a text stream fails where a pipe that does not block has nothing to say.
    lines = (stream.read() or b"").decode().splitlines()  # type: ignore[attr-defined]
    return {
        name: (int(steps), state) for name, steps, state in (line.split() for line in lines if line.count(" ") == 2)
    }


def examine(folder: Path, steps: int) -> tuple[int, int]:
    """How many of the first `steps` steps are there and right, and how many are wrong although nothing says so."""
    right = wrong = 0
    try:
        run = Run(folder)
    except RunError:
        return 0, 0
    for step in range(steps):
        try:
            good = bool((run["a"].at(step=step).numpy() == content(step)).all()) and run["b"].at(step=step).record
        except RunError:
            continue
        right, wrong = right + bool(good), wrong + (not good)
    return right, wrong


if __name__ == "__main__":
    main()
