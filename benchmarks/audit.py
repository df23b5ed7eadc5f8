"""Speed and memory of an audit beside a plain read of the same files: `python benchmarks/audit.py [GIB] [--cold]`.

Two checkpoints of bf16 matrices in shards of 1 GiB with the same values, and a third in which one row is changed. The
audit runs in a process that may have 1 GiB of data (RLIMIT_DATA), and prints the most memory that it had. Reading and
auditing take turns, each of them first in turn; `--cold` empties the page cache of the files before
each. Beside the ratio of the wall times stands that of the processor's times, which other processes disturb less.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHARD = 1 << 30
SIDE = 4096
TURNS = 5


def write(folder: Path, gib: int, changed: bool) -> None:
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    placed = {}
    for shard in range(gib):
        tensors = {}
        for number in range(SHARD // (SIDE * SIDE * 2)):
            name = f"model.layers.{shard}.mlp.{number}.weight"
            seed = torch.Generator().manual_seed(1000 * shard + number)
            tensors[name] = torch.randint(0, 2**14, (SIDE, SIDE), generator=seed, dtype=torch.int16).view(
                torch.bfloat16
            )
            placed[name] = f"model-{shard}.safetensors"
        if changed and shard == gib - 1:
            tensors[name][7] = 0
        save_file(tensors, folder / f"model-{shard}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))


def plain(folders: list[Path]) -> None:
    """Reads every byte once, 32 MiB at a time."""
    held = bytearray(1 << 25)
    for folder in folders:
        for file in sorted(folder.glob("*.safetensors")):
            with file.open("rb", buffering=0) as source:
                while source.readinto(held):
                    pass


def forget(folders: list[Path]) -> None:
    for folder in folders:
        for file in folder.glob("*.safetensors"):
            with file.open("rb") as held:
                os.fsync(held.fileno())
                os.posix_fadvise(held.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def child(limit: int, cold: bool, *folders: str) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    from layertap.weights import audit

    paths = [Path(folder) for folder in folders]
    audit({"w": __import__("torch").ones(2)}, {"w": __import__("torch").ones(2)})  # imports are not part of it
    before, turns, busy = _peak(), [], []
    for turn in range(2 if cold else TURNS):
        taken: dict[str, tuple[float, float]] = {}
        for what in ("read", "audit") if turn % 2 else ("audit", "read"):
            if cold:
                forget(paths)
            began, used = time.perf_counter(), time.process_time()
            if what == "read":
                plain(paths)
            else:
                found = audit(*folders)
            taken[what] = time.perf_counter() - began, time.process_time() - used
        turns.append(taken["read"][0] / taken["audit"][0])
        busy.append(taken["audit"][1] / taken["read"][1])
    loud = [(row.name, row.status, row.detail) for row in found.rows if row.status != "exact"]
    told = {"verdict": found.verdict, "loud": loud, "before": before, "peak": _peak(), "busy": statistics.median(busy)}
    print(json.dumps({**told, "ratios": turns, "speed": found.bytes / found.seconds / SHARD}))


def _peak() -> float:
    """MiB; ru_maxrss would be that of the process that started this one, where it had more."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def main() -> None:
    given = [word for word in sys.argv[1:] if not word.startswith("-")]
    cold = "--cold" in sys.argv
    gib = int(given[0]) if given else 1
    room = Path(tempfile.mkdtemp())
    try:
        for name in "abc":
            write(room / name, gib, name == "c")
        plain([room / "a", room / "b"])
        for other, what in (("b", "all equal"), ("c", "one row changed")):
            command = [sys.executable, __file__, "child", str(1 << 30), str(int(cold)), str(room / "a")]
            done = subprocess.run([*command, str(room / other)], capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr)
            found = json.loads(done.stdout)
            ratios = sorted(found["ratios"])
            print(
                f"{what}, 2 x {gib} GiB, {'cold' if cold else 'in the page cache'}: {found['speed']:.2f} GiB/s, ",
                end="",
            )
            print(f"{statistics.median(ratios):.2f} of a plain read ({ratios[0]:.2f} to {ratios[-1]:.2f}), ", end="")
            print(f"{found['busy']:.2f} of its processor time, ", end="")
            print(f"peak {found['peak']:.0f} MiB ({found['before']:.0f} before), {found['verdict']} {found['loud']}")
    finally:
        shutil.rmtree(room)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(int(sys.argv[2]), sys.argv[3] == "1", *sys.argv[4:])
    else:
        main()
