"""Damaged and hostile files into every reader: `python tests/fuzz/fuzz.py 100000 --seed 0` prints a table of outcomes.

as it was    what is read is what was written
told         it opens, what is left is right, and `problems` say what is not
refused      one clear error of layertap's
other data   it opens without an error, and has other content: allowed only where the format has no checksum
wrong        any other error, a process that dies, or more than five seconds of work: never allowed

Inputs are spread over forked processes, which import everything once. One that dies, or does not come back, is
replaced, and its input counts as wrong.
"""

from __future__ import annotations

import argparse
import atexit
import mmap
import os
import pickle
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO

if __name__ == "__main__":
    sys.path[:1] = [str(Path(__file__).parents[2] / "src"), str(Path(__file__).parents[1])]

from fuzz.damage import damage
from fuzz.examples import make
from fuzz.readers import CHECKED, READERS
from layertap.errors import LayertapError

SECONDS = 5
"""Of processor time; a process that waits for something is stopped after six times as many by the clock."""
OUTCOMES = ("as it was", "told", "refused", "other data", "wrong")


@dataclass
class Tally:
    """Outcomes by reader, what went wrong with the seed that makes it again, and what held other data."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    other: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By reader, file suffix and way of damage."""
    memory: int = 0
    """The most that a process had, in KiB."""

    def add(self, more: Tally) -> None:
        self.outcomes += more.outcomes
        self.wrong += more.wrong
        self.other += more.other
        self.memory = max(self.memory, more.memory)


class TookTooLong(BaseException):
    """Not an Exception: no reader may take it for damage."""


@contextmanager
def within(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TookTooLong

    timers = ((signal.ITIMER_PROF, signal.SIGPROF, seconds), (signal.ITIMER_REAL, signal.SIGALRM, 6 * seconds))
    before = [signal.signal(number, stop) for _, number, _ in timers]
    for timer, _, limit in timers:
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for (timer, number, _), old in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, old)


def fuzz(numbers: Sequence[int], kinds: tuple[str, ...] = tuple(READERS), begun: mmap.mmap | None = None) -> Tally:
    """Reads one damaged file for each number, which is its seed, in this process."""
    tally = Tally()
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place) as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sound = Path(temporary) / "sound"
        shutil.copytree(_examples(), sound)
        files = {kind: sorted(path for path in (sound / kind).rglob("*") if path.is_file()) for kind in kinds}
        right = {kind: READERS[kind](sound)[0] for kind in kinds}
        for number in numbers:
            if begun is not None:
                begun[:16] = struct.pack("qd", number, time.time())
            _one(tally, number, sound, kinds[number % len(kinds)], files, right)
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text(encoding="ascii").splitlines()
        tally.memory = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return tally


@cache
def _examples() -> Path:
    """The sound files, made once; whoever damages some works on a copy."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make(folder)
    return folder


def _one(
    tally: Tally, number: int, sound: Path, kind: str, files: dict[str, list[Path]], right: dict[str, object]
) -> None:
    rng = random.Random(number)
    path = rng.choice(files[kind])
    before = path.read_bytes()
    way = damage(path, rng)
    name = f"seed {number}, {kind}, {path.name}, {way}"
    try:
        with within(SECONDS):
            found, told = READERS[kind](sound)
        outcome = "as it was" if found == right[kind] else "told" if told else "other data"
    except LayertapError:
        outcome = "refused"
    except (Exception, TookTooLong) as error:  # noqa: BLE001 - that is what is looked for
        outcome = "wrong"
        tally.wrong.append(f"{name}: {type(error).__name__}\n{''.join(traceback.format_exception(error)[-3:])[:2000]}")
    if outcome == "other data":
        tally.other[kind, path.suffix, way] += 1
        if kind in CHECKED:
            tally.wrong.append(f"{name}: other data, and nothing told")
    tally.outcomes[kind, outcome] += 1
    path.write_bytes(before)


def spread(numbers: range, kinds: tuple[str, ...], processes: int) -> Iterator[Tally]:
    """The same in forked processes, in parts as they are done."""
    _examples()  # before the first fork
    pending = [numbers[begin : begin + 500] for begin in range(0, len(numbers), 500)]
    running: dict[int, tuple[range, IO[bytes], mmap.mmap]] = {}
    while pending or running:
        while pending and len(running) < processes:
            part, begun = pending.pop(0), mmap.mmap(-1, 16)
            begun[:16] = struct.pack("qd", part[0], time.time())
            pid, file = _fork(part, kinds, begun)
            running[pid] = part, file, begun
        time.sleep(0.05)
        for pid, (part, file, begun) in list(running.items()):
            number, since = struct.unpack("qd", begun[:16])
            stuck = time.time() - since > 20 * SECONDS
            if stuck:
                os.kill(pid, signal.SIGKILL)
            done, status = os.waitpid(pid, 0 if stuck else os.WNOHANG)
            if not done:
                continue
            del running[pid]
            with file:
                file.seek(0)
                raw = file.read()
            if status == 0 and raw:
                yield pickle.loads(raw)  # our own process wrote it
                continue
            kind = kinds[number % len(kinds)]
            how = "did not come back" if stuck else f"ended the process (status {status})"
            yield Tally(Counter({(kind, "wrong"): 1}), [f"seed {number}, {kind}: {how}"])
            at = part.index(number)
            pending += [rest for rest in (part[:at], part[at + 1 :]) if len(rest)]


def _fork(part: range, kinds: tuple[str, ...], begun: mmap.mmap) -> tuple[int, IO[bytes]]:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the parent reads it when the child is gone
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            file.write(pickle.dumps(fuzz(part, kinds, begun)))
            file.flush()
            status = 0
        except BaseException:  # noqa: BLE001 - the child ends here, whatever it was
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid, file


def table(tally: Tally, kinds: Sequence[str]) -> str:
    lines = [f"| reader | inputs | {' | '.join(OUTCOMES)} |", "|---|" + "---:|" * (len(OUTCOMES) + 1)]
    for kind in (*kinds, "all"):
        counts = [
            sum(count for (of, what), count in tally.outcomes.items() if what == name and kind in (of, "all"))
            for name in OUTCOMES
        ]
        lines.append(f"| {kind} | {sum(counts):,} | {' | '.join(f'{count:,}' for count in counts)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0, help="the first input; each is made from its own number")
    parser.add_argument("--only", nargs="*", default=list(READERS))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    kinds, total, started = tuple(arguments.only), Tally(), time.monotonic()
    for part in spread(range(arguments.seed, arguments.seed + arguments.count), kinds, arguments.processes):
        total.add(part)
        done = sum(total.outcomes.values())
        seconds = time.monotonic() - started
        print(f"{done:,} of {arguments.count:,}, {done / seconds:.0f} a second", file=sys.stderr, flush=True)
        for line in part.wrong:
            print(line, file=sys.stderr, flush=True)
    print(table(total, kinds))
    print(f"\nmost memory: {total.memory >> 10} MiB")
    for (kind, suffix, way), count in sorted(total.other.items()):
        print(f"other data: {kind} {suffix} {way} {count}")
    print("\n".join(total.wrong[:60]))
    sys.exit(bool(total.wrong))


if __name__ == "__main__":
    main()
