"""A few thousand damaged files in every test run; a hundred thousand by hand: see fuzz.py."""

import resource

import pytest

from fuzz.fuzz import READERS, fuzz


@pytest.mark.timeout(200)
@pytest.mark.parametrize("kind", READERS)
def test_no_damaged_file_brings_a_traceback_a_hang_or_other_data(kind: str) -> None:
    outcomes, wrong = fuzz(150 if kind == "run" else 330, seed=1_000_000, kinds=(kind,))
    assert not wrong, "\n".join(wrong[:6])
    assert outcomes[kind, "refused"] + outcomes[kind, "told"] > 10, "the damage is noticed"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 3 << 20, "KiB; the whole session's"
