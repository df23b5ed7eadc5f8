"""Damaged and hostile files into every reader: `python tests/fuzz/fuzz.py 100000 --seed 0` prints a table of outcomes.

as it was    what is read is what was written
told         it opens, what is left is right, and `problems` say what is not
refused      one clear error of layertap's
other data   it opens without a word, and holds something else: allowed only where the format has no checksum
wrong        any other error, or more than five seconds: never allowed
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

if __name__ == "__main__":
    sys.path[:1] = [str(Path(__file__).parents[2] / "src"), str(Path(__file__).parents[1])]

from formats.foreign import recorded
from fuzz.damage import damage
from layertap.compare import diff
from layertap.compare.align.mapping import read_rules
from layertap.errors import LayertapError
from layertap.formats import export, open_run
from layertap.report.screen import plain_text
from layertap.report.show import run_rows, run_view
from layertap.store import Run, RunWriter
from layertap.testing import load_golden, save_golden
from layertap.watching.config import read_config
from store.making import kept, receipt

SECONDS = 5


def make(folder: Path) -> None:
    """One sound example of everything that is read."""
    for name in ("run", "reference"):
        writer = RunWriter(
            folder / name, info={"model": "Toy", "meta": {"mode": "bf16"}, "parameter_dtypes": ["bfloat16"]}
        )
        for step in range(3):
            for site in range(4):
                array = np.full((3, 4), step + site, np.float32)
                writer.add(*kept(array, f"layers.{site}", step, order=site))
            writer.commit()
        writer.close(receipt())
    source = recorded(["model.layers.0", "model.layers.1", "model.norm"], steps=1, input_ids=torch.tensor([[1, 2, 3]]))
    for layout in ("layers", "monitor"):
        export(source, folder / layout, layout)
    export(source, folder / "npz" / "io.npz", "npz", names={"model.layers.0": "output"})
    (folder / "neuron").mkdir()
    for layer in range(3):
        name = f"captured_tensors_cte_step_1_module_layers.{layer}_output.pt"
        torch.save(torch.randn(2, 3), folder / "neuron" / name)
    (folder / "golden").mkdir()
    save_golden(recorded(["model.layers.0", "model.layers.1"]), folder / "golden" / "g.layertap")
    (folder / "mapping").mkdir()
    (folder / "mapping" / "m.json").write_text(json.dumps({r"layer_(\d+)": r"model.layers.\1", "a": {"to": "b"}}))
    (folder / "mapping" / "m.toml").write_text("'layer_(\\d+)' = 'model.layers.\\1'\n")
    (folder / "watch").mkdir()
    (folder / "watch" / "w.json").write_text(json.dumps({"sites": ["layers.*"], "ring": 5, "what": ["output"]}))
    (folder / "watch" / "w.toml").write_text("[watch]\nsites = ['layers.*']\nschedule = 'every 10'\nkeep = 'stats'\n")


def whole(run: Run) -> tuple[Any, bool]:
    """All that a run holds, and whether it says of itself that something is missing; shown and compared as well."""
    held = []
    for record in run.records():
        tensor = b""
        if record.kept != "stats":
            tensor = run.kept_bytes(record).tobytes()
        held.append(
            (
                str(record.site),
                record.step,
                record.shape,
                record.dtype,
                record.fingerprint,
                repr(record.statistics),
                tensor,
            )
        )
    plain_text(run_view(run, run_rows(run)))
    _ = str(run), str(run.receipt), [str(run[site]) for site in run.sites]
    return sorted(held), bool(run.problems)


def of_run(folder: Path) -> tuple[Any, bool]:
    found = whole(Run(folder / "run"))
    str(diff(folder / "reference", folder / "run"))
    return found


def of_npz(folder: Path) -> tuple[Any, bool]:
    path = folder / "npz" / "io.npz"
    return whole(open_run(path))


def of_mapping(folder: Path) -> tuple[Any, bool]:
    return [str(read_rules(path)) for path in sorted((folder / "mapping").iterdir())], True


def of_watch(folder: Path) -> tuple[Any, bool]:
    return [str(read_config(path)) for path in sorted((folder / "watch").iterdir())], True


READERS: dict[str, Callable[[Path], tuple[Any, bool]]] = {
    "run": of_run,
    "layers": lambda folder: whole(open_run(folder / "layers")),
    "monitor": lambda folder: whole(open_run(folder / "monitor")),
    "neuron": lambda folder: whole(open_run(folder / "neuron")),
    "npz": of_npz,
    "golden": lambda folder: whole(load_golden(folder / "golden" / "g.layertap")),
    "mapping": of_mapping,
    "watch": of_watch,
}
CHECKED = ("run", "golden")
"""What carries checksums of its own: never other data."""


class TookTooLong(BaseException):
    """Not an Exception: no reader may take it for damage."""


@contextmanager
def within(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fuzz(count: int, seed: int, kinds: tuple[str, ...] = tuple(READERS)) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Outcomes by reader, and what went wrong, with the seed that makes it again."""
    outcomes: Counter[tuple[str, str]] = Counter()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sound, folder = Path(temporary, "sound"), Path(temporary, "damaged")
        sound.mkdir()
        make(sound)
        right = {kind: READERS[kind](sound)[0] for kind in kinds}
        shutil.copytree(sound, folder)
        for number in range(count):
            rng = random.Random(seed + number)
            kind = kinds[number % len(kinds)]
            here = folder / kind
            path = rng.choice(sorted(item for item in here.rglob("*") if item.is_file()))
            way = damage(path, rng)
            try:
                with within(SECONDS):
                    found, told = READERS[kind](folder)
                outcome = "as it was" if found == right[kind] else "told" if told else "other data"
            except LayertapError:
                outcome = "refused"
            except (Exception, TookTooLong) as error:  # noqa: BLE001 - that is what is looked for
                outcome = "wrong"
                wrong.append(f"seed {seed + number}, {kind}, {path.name}, {way}: {type(error).__name__}")
                wrong.append("".join(traceback.format_exception(error)[-3:]))
            if outcome == "other data" and kind in CHECKED:
                wrong.append(f"seed {seed + number}, {kind}, {path.name}, {way}: other data, and nothing told")
            outcomes[kind, outcome] += 1
            shutil.rmtree(here)
            shutil.copytree(sound / kind, here)
    return outcomes, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(READERS))
    arguments = parser.parse_args()
    outcomes, wrong = fuzz(arguments.count, arguments.seed, tuple(arguments.only))
    names = ("as it was", "told", "refused", "other data", "wrong")
    print(f"| reader | inputs | {' | '.join(names)} |")
    print("|---|" + "---:|" * (len(names) + 1))
    for kind in arguments.only:
        counts = [outcomes[kind, name] for name in names]
        print(f"| {kind} | {sum(counts)} | {' | '.join(map(str, counts))} |")
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak = next(int(line.split()[1]) >> 10 for line in status if line.startswith("VmHWM"))
    print(f"\nmost memory: {peak} MiB")
    print("\n".join(wrong[:60]))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
