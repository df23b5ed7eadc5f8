"""A run of very many ranks, simulated: one writer a rank, real metadata, small tensors cut over all ranks.

    python benchmarks/ranks.py --ranks 1024 --sites 64 --into /tmp/ranks

Writes two such runs and one of a single process, of which one rank's part of one tensor is wrong in the second, then
prints what it takes to open, list, assemble and compare them: seconds, peak memory, bytes and files.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import layertap as lt
from layertap.measure import measure
from layertap.site import Record, Sharding, Site
from layertap.store import RunWriter


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--sites", type=int, default=64)
    parser.add_argument("--rows", type=int, default=2, help="rows of each rank's part, of 128 float32 numbers")
    parser.add_argument("--into", type=Path, default=Path("/tmp/layertap-ranks"))
    given = parser.parse_args()
    shutil.rmtree(given.into, ignore_errors=True)
    sizes = given.ranks, given.sites, given.rows
    timed("write the ranks", lambda: write(given.into / "a", *sizes))
    timed("write them again, one rank wrong", lambda: write(given.into / "b", *sizes, wrong=given.ranks * 2 // 3))
    timed("write one process", lambda: write_whole(given.into / "one", *sizes))
    files = [path for path in (given.into / "a").rglob("*") if path.is_file()]
    print(f"{len(files)} files, {sum(path.stat().st_size for path in files):,} bytes for {given.ranks} ranks")
    run = timed("open", lambda: lt.Run(given.into / "a"))
    timed("list", lambda: (len(run.sites), run.count))
    timed("assemble one tensor", lambda: run[run.sites[0]].tensor().shape)
    for other in ("b", "one"):
        report = timed(f"diff with {other}", lambda other=other: lt.diff(given.into / "a", given.into / other))
        print(f"    {report.verdict}; {report.first and report.first.site}; {report.notes[0]}")
    report = timed("diff of one with b", lambda: lt.diff(given.into / "one", given.into / "b"))
    print(f"    {report.verdict}; {report.first and report.first.site}; {report.notes[0]}")


def write(folder: Path, ranks: int, sites: int, rows: int, wrong: int = -1) -> None:
    parts = [torch.randn(rows, 128, generator=torch.Generator().manual_seed(site)) for site in range(sites)]
    made = [record(site, part) for site, part in enumerate(parts)]
    for rank in range(ranks):
        writer = RunWriter(folder, info={}, rank=rank, durability="none")
        layout = Sharding(
            placements=("Shard(dim=0)",),
            global_shape=(ranks * rows, 128),
            offset=(rank * rows, 0),
            mesh_shape=(ranks,),
            mesh_coordinate=(rank,),
            mesh_origin=0,
        )
        for site, (one, part) in enumerate(zip(made, parts, strict=True)):
            if (rank, site) == (wrong, sites // 2):
                part = part * 1.5
                one = record(site, part)
            writer.add(replace(one, rank=rank, sharding=layout), raw(part))
        writer.close()


def write_whole(folder: Path, ranks: int, sites: int, rows: int) -> None:
    writer = RunWriter(folder, info={}, durability="none")
    for site in range(sites):
        part = torch.randn(rows, 128, generator=torch.Generator().manual_seed(site))
        whole = part.repeat(ranks, 1)
        writer.add(record(site, whole), raw(whole))
    writer.close()


def record(site: int, tensor: torch.Tensor) -> Record:
    measured = measure(tensor)
    return Record(
        site=Site(path=f"layers.{site}"),
        kind="Block",
        order=site,
        step=0,
        phase="eval",
        shape=tuple(tensor.shape),
        dtype="float32",
        device="cpu",
        statistics=measured.statistics,
        fingerprint=measured.fingerprint,
        sketch=measured.sketch,
        kept="tensor",
        kept_shape=tuple(tensor.shape),
        kept_dtype="float32",
        kept_fingerprint=measured.fingerprint,
    )


def raw(tensor: torch.Tensor) -> Any:
    return tensor.reshape(-1).view(torch.uint8).numpy()


def timed(name: str, work: Callable[[], Any]) -> Any:
    start, cpu = time.perf_counter(), time.process_time()
    found = work()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    spent = f"{time.perf_counter() - start:.2f} s ({time.process_time() - cpu:.2f} s of processor)"
    print(f"{name}: {spent}, peak {peak:.0f} MiB", flush=True)
    return found


if __name__ == "__main__":
    main()
