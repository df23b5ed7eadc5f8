"""Speed and memory of an audit beside a plain read of the same files: `python benchmarks/audit.py [GIB]`.

Two checkpoints of bf16 matrices in shards of 1 GiB, with the same values; in one of them a row is changed.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHARD = 1 << 30
SIDE = 4096


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


def plain(folders: list[Path]) -> float:
    began = time.perf_counter()
    held = bytearray(1 << 25)
    for folder in folders:
        for file in sorted(folder.glob("*.safetensors")):
            with file.open("rb", buffering=0) as source:
                while source.readinto(held):
                    pass
    return time.perf_counter() - began


def child(limit: int, *folders: str) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    from layertap.weights import audit

    found = audit(*folders)
    loud = [(row.name, row.status, row.detail) for row in found.rows if row.status != "exact"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"verdict": found.verdict, "loud": loud, "seconds": found.seconds, "peak_mib": peak}))


def main() -> None:
    gib = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    room = Path(tempfile.mkdtemp())
    try:
        folders = [room / "a", room / "b"]
        for changed, folder in enumerate(folders):
            write(folder, gib, bool(changed))
        plain(folders)  # both are in the page cache from here on, for either
        for _ in range(2):
            reading = plain(folders)
            command = [sys.executable, __file__, "child", str(1 << 30), *map(str, folders)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout)
            speed = 2 * gib / found["seconds"]
            print(f"{2 * gib} GiB: plain read {2 * gib / reading:.2f} GiB/s, audit {speed:.2f} GiB/s")
            print(f"ratio {reading / found['seconds']:.2f}, peak {found['peak_mib']:.0f} MiB under 1 GiB of data")
            print(found["verdict"], found["loud"])
    finally:
        shutil.rmtree(room)


if __name__ == "__main__":
    child(int(sys.argv[2]), *sys.argv[3:]) if sys.argv[1:2] == ["child"] else main()
