"""The ranks of one job over gloo, each a process: what tests and benchmarks of several ranks start."""

import subprocess
import sys
import traceback
from datetime import timedelta
from pathlib import Path


def run(program, folder, world, *more, timeout=280):
    """Starts `python PROGRAM RANK WORLD FOLDER …` for each rank; returns what each saved, in the order of the ranks."""
    import torch

    command = [sys.executable, "-W", "ignore", str(program)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(world), str(folder), *more],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(world)
    ]
    try:
        said = [rank.communicate(timeout=timeout)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, text in zip(ranks, said, strict=True):
        assert rank.returncode == 0, text
    return [torch.load(Path(folder, f"{number}.pt"), weights_only=False) for number in range(world)]


def join(rank, world, folder, seconds=100):
    """Makes this process one of them."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world, timeout=timedelta(seconds=seconds)
    )


def leave(rank, folder, found):
    """Saves what this process found, and ends the job."""
    import torch
    import torch.distributed as dist

    torch.save(found, Path(folder, f"{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


def each(scenarios, *given):
    """What functions give, by name; of one that raised, the text of the error: its own test tells, and others go on."""
    import torch
    import torch.distributed as dist

    found = {}
    for name, work in scenarios.items():
        dist.barrier()
        torch.manual_seed(0)
        try:
            found[name] = work(*given)
        except Exception:  # noqa: BLE001 - see above
            found[name] = traceback.format_exc()
    return found
