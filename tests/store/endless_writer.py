"""A process that writes runs until it is killed; a helper of test_killed.py.

It imports once and forks for every run, so that a hundred kills take seconds. For each folder named on standard input
it answers with the pid of a child that writes as fast as it can, and tells in the file `acknowledged` (beside the run)
how many steps it had committed before it went on.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parents[1]))

import layertap.store.writer as writer_module
from layertap.store import RunWriter
from layertap.store.schema import to_table
from store.making import kept, record, statistics


def content(step: int) -> npt.NDArray[np.int64]:
    return np.arange(step % 7 * 500) + step


def write(folder: Path) -> None:
    chance = random.Random(str(folder))
    acknowledged = os.open(folder.parent / "acknowledged", os.O_WRONLY | os.O_CREAT)
    writer = RunWriter(folder, info={})
    # Half of the runs leave the commits to the writer's own limits.
    writer_module.SHARD_BYTES = chance.choice([20_000, 1 << 40])
    step = 0
    while True:
        for _ in range(chance.choice([1, 3, 20])):
            writer.add(*kept(content(step), "a", step, order=0, fingerprint=step))
            writer.add(record("b", step, order=1, statistics=statistics(mean=float(step)), fingerprint=step))
            step += 1
        writer.commit()
        os.pwrite(acknowledged, step.to_bytes(8, "little"), 0)


def main() -> None:
    to_table([(record(), 0)])  # pyarrow imports pandas here, once, and not in every child
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            write(Path(line.strip()))
        print(pid, flush=True)
        os.waitpid(pid, 0)
        print("dead", flush=True)


if __name__ == "__main__":
    main()
