"""A million records, recorded: how fast they are written, how much memory that takes, how soon they are listed.

    python benchmarks/million.py [records, 1000000]

Twenty linear layers of 64 × 64, the statistics of every output, in as many steps as it takes. The seconds of a pass
without taps are measured in the same process and subtracted. The run is then opened in a process of its own: its sites
and steps, and the table that `layertap show` prints. Exits 1 if a target is missed.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

import torch  # noqa: E402
from torch import nn  # noqa: E402

import layertap as lt  # noqa: E402

LAYERS, WIDTH = 20, 64
A_SECOND, LISTED, GROWTH = 50_000, 2.0, 64.0
"""At least so many records a second; at most so many seconds to list them; at most so many MiB from a tenth on."""

LIST = """
import json, sys, time
sys.path[:0] = [{src!r}]
started = time.perf_counter()
from layertap import Run
from layertap.report.show import run_rows, telling_step
run = Run({path!r})
opened = [len(run.sites), run.table(["step"]).column("step").to_numpy()[-1].item() + 1, time.perf_counter() - started]
rows = len(run_rows(run, step=telling_step(run)))
print(json.dumps([*opened, rows, time.perf_counter() - started]))
"""


def resident() -> float:
    """MiB of this process now."""
    text = Path("/proc/self/statm").read_text()
    return int(text.split()[1]) * resource.getpagesize() / 2**20


def main() -> int:
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).eval().requires_grad_(False)
    x = torch.randn(4, WIDTH)
    steps = records // LAYERS
    model(x)
    started = time.perf_counter()
    for _ in range(steps // 20):
        model(x)
    bare = 20 * (time.perf_counter() - started)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run")
        memory = []
        started = time.perf_counter()
        with lt.record(model, path, sites="?*", durability="none", budget="4GiB") as recorder:
            for step in range(steps):
                model(x)
                recorder.step()
                if step % (steps // 10) == 0:
                    memory.append(resident())
        seconds = time.perf_counter() - started
        assert recorder.receipt.complete, str(recorder.receipt)
        written = recorder.receipt.records
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        code = LIST.format(src=str(ROOT / "src"), path=str(path))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        sites, seen, opened, rows, listed = json.loads(done.stdout)
    rate, growth = written / (seconds - bare), memory[-1] - memory[1]
    print(f"{written} records of {sites} sites in {seen} steps, {size / written:.0f} bytes each")
    print(f"written: {rate:,.0f} a second ({seconds:.1f} s, of which {bare:.1f} s are the model's)")
    print(f"memory: {memory[1]:.0f} MiB after a tenth, {memory[-1]:.0f} MiB at the end")
    print(
        f"opened, sites and steps: {opened:.2f} s; with the table of {rows} rows: {listed:.2f} s (torch is not needed)"
    )
    return int(rate < A_SECOND or listed > LISTED or growth > GROWTH)


if __name__ == "__main__":
    sys.exit(main())
