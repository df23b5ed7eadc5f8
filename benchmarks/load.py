"""Runs of a million records: how long `show`, `diff` and `records()` take, and how much memory.

    python benchmarks/load.py [records, 1000000] [--keep FOLDER]

Every record has its statistics, its fingerprint and a sketch that does not compress, as a long training leaves them:
about 1 KB a record. Three pairs are compared: the same bits, bits that differ in the second half of the steps, and bits
that all differ by rounding. Each work runs in a process of its own; CPU seconds are those of that process. Exits 1 if a
target is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[1]
sys.path[:1] = [str(ROOT / "src"), str(ROOT / "tests")]

from layertap.store import RunWriter  # noqa: E402
from layertap.store.parquetfile import ROW_GROUP  # noqa: E402
from layertap.store.schema import REPETITIVE, to_table  # noqa: E402
from layertap.store.writer import SHARD_RECORDS  # noqa: E402
from store.making import receipt, record, statistics  # noqa: E402

SITES = 1000
TARGETS = {"open": (3.0, 500), "show": (3.0, 500), "records()": (8.0, 500), "diff": (30.0, 500)}
"""CPU seconds and MiB for a million records."""

OTHERS = {"copy": 0.0, "half": 0.5, "all": 1.0}
"""What a run is compared with: the part of its records whose bits are others."""

WORK = """
import json, sys, time
sys.path[:0] = [{src!r}]
started, cpu = time.perf_counter(), time.process_time()
{code}
print(json.dumps([time.perf_counter() - started, time.process_time() - cpu,
                  next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))]),
      file=sys.stderr)
"""
CODE = {
    "open": "from layertap import Run\nrun = Run({a!r}); str(run)",
    "show": "from layertap import Run\nfrom layertap.report.show import run_rows, run_view, telling_step\n"
    "run = Run({a!r}); step = telling_step(run); print(len(run_rows(run, step=step)))",
    "show SITE": "from layertap import Run\nfrom layertap.report.show import site_view\n"
    "site_view(Run({a!r})['layers.7'])",
    "table()": "from layertap import Run\nprint(Run({a!r}).table(['site', 'step', 'mean', 'l2']).num_rows)",
    "records()": "from layertap import Run\nprint(sum(1 for _ in Run({a!r}).records()))",
    "diff": "from layertap.compare import diff\nreport = diff({a!r}, {b!r}); print(report.verdict, len(report.rows))",
    "print(diff)": "from layertap.compare import diff\nprint(len(str(diff({a!r}, {b!r}))))",
}


def make(folder: Path, records: int, changed: float) -> None:
    """A run as the writer leaves it; the last `changed` of the steps have other bits."""
    writer = RunWriter(folder, info={"model": "Stack"})
    rng = np.random.default_rng(0)
    noise = np.random.default_rng(1)
    first_changed = int(records * (1 - changed))
    for number, begin in enumerate(range(0, records, SHARD_RECORDS)):
        count = min(SHARD_RECORDS, records - begin)
        rows = [
            (record(f"layers.{i % SITES}", i // SITES, order=i % SITES, statistics=statistics(l2=16.0)), 0)
            for i in range(begin, begin + count)
        ]
        fingerprints = rng.integers(1, 2**63, count, np.uint64)
        sketches = rng.standard_normal((count, 251), np.float32)
        late = np.arange(begin, begin + count) >= first_changed
        fingerprints[late] += np.uint64(1)
        sketches[late] += 1e-7 * noise.standard_normal((int(late.sum()), 251), np.float32)
        table = to_table(rows)
        offsets = pa.py_buffer(np.arange(0, 1004 * (count + 1), 1004, dtype=np.int32))
        for name, array in (
            ("fingerprint", pa.array(fingerprints)),
            ("sketch", pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(sketches.tobytes())])),
        ):
            place = table.column_names.index(name)
            table = table.set_column(place, table.schema.field(name), array)
        path = folder / "records" / f"0-{writer.session}-{number:06d}.parquet"
        pq.write_table(
            table,
            path,
            row_group_size=ROW_GROUP,
            compression="zstd",
            use_dictionary=REPETITIVE,
            write_page_checksum=True,
        )
    writer.close(receipt())


def measured(code: str) -> tuple[float, float, float, str]:
    """Wall seconds, CPU seconds, MiB at the peak, and the last line printed."""
    done = subprocess.run(
        [sys.executable, "-c", WORK.format(src=str(ROOT / "src"), code=code)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    wall, cpu, memory = json.loads(done.stderr.splitlines()[-1])
    return wall, cpu, memory, (done.stdout.splitlines() or [""])[-1][:60]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("records", nargs="?", type=int, default=1_000_000)
    parser.add_argument("--keep", type=Path, help="make the runs here, or use those that are there")
    parser.add_argument("--only", nargs="*", help="parts of the names of the works to run")
    arguments = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        works = [
            (work, code, other)
            for work, code in CODE.items()
            for other in (OTHERS if "{b" in code else ("",))
            if not arguments.only or any(part in f"{work} {other}" for part in arguments.only)
        ]
        for name, changed in {"same": 0.0, **OTHERS}.items():
            if not (folder / name).exists() and (name == "same" or any(other == name for *_, other in works)):
                make(folder / name, arguments.records, changed)
        print(f"{'work':28} {'wall s':>8} {'CPU s':>8} {'MiB':>8}")
        for work, code, other in works:
            wall, cpu, memory, last = measured(code.format(a=str(folder / "same"), b=str(folder / other)))
            seconds, most = TARGETS.get(work, (float("inf"), float("inf")))
            over = cpu > seconds * max(arguments.records / 1e6, 0.1) or memory > most
            missed |= over
            told = "MISSED" if over else ""
            print(f"{f'{work} {other}':28} {wall:8.2f} {cpu:8.2f} {memory:8.0f} {told:7} {last}", flush=True)
    sys.exit(missed)


if __name__ == "__main__":
    main()
