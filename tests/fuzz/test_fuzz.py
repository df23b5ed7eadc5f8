"""A few thousand damaged files in every test run; a hundred thousand by hand: see fuzz.py."""

import resource
import signal
from pathlib import Path

import pytest

from fuzz import fuzz as fuzzing
from fuzz.fuzz import READERS, fuzz, spread


@pytest.mark.timeout(200)
@pytest.mark.parametrize("kind", READERS)
def test_no_damaged_file_brings_a_traceback_a_hang_or_other_data(kind: str) -> None:
    found = fuzz(range(1_000_000, 1_000_200), kinds=(kind,))
    assert not found.wrong, "\n".join(found.wrong[:6])
    assert found.outcomes[kind, "refused"] + found.outcomes[kind, "told"] > 10, "the damage is noticed"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 3 << 20, "KiB; the whole session's"


@pytest.mark.forks
def test_a_reader_that_ends_its_process_is_found_and_the_rest_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(folder: Path) -> tuple[object, bool]:
        raw = (folder / "mapping" / "m.json").read_bytes()
        if raw.startswith(b"["):
            signal.raise_signal(signal.SIGKILL)
        return raw, True

    monkeypatch.setitem(fuzzing.READERS, "mapping", dies)
    total = fuzzing.Tally()
    for part in spread(range(1000), ("mapping",), 2):
        total.add(part)
    assert sum(total.outcomes.values()) == 1000
    assert 0 < total.outcomes["mapping", "wrong"] == len(total.wrong) < 100
    assert all("ended the process" in line for line in total.wrong)
