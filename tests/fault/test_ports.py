"""Candidates that are written or stored otherwise: what cancels is no fault, and a fault beside it is found."""

import logging
import sys
from pathlib import Path

import pytest

from layertap.fault import find_fault

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from benchmarks.faultbench import others, ported  # noqa: E402

CLEAN, FAULTY = [*ported.CLEAN, *others.CLEAN], [*ported.FAULTY, *others.FAULTY]
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its own ageing

QUICK = {
    "clean-fp32-port-tuple",
    "clean-bf16-port-flat",
    "clean-fp32-port-deferred-residual",
    "clean-bf16-port-chunked",
    "clean-fp32-port-channels-first",
    "clean-fp32-port-sorted-batch",
    "clean-bf16-folded-norms",
    "clean-fp32-permuted-heads",
    "fp32-flat-weight-permuted",
    "fp32-deferred-residual-weight-scaled",
    "fp32-chunked-inside-weight-wrong",
    "fp32-fold-wrong",
    "fp32-sorted-batch-weight-wrong",
    "fp32-folded-and-wrong",
    "bf16-heads-and-wrong",
    "fp32-mask-renamed",
    "bf16-slopes",
    "clean-fp32-autocast",
    "fp32-autocast-and-wrong",
    "bf16-adapters-lost",
    "clean-bf16-weights-packed",
    "fp32-packed-scales",
    "clean-bf16-mask-none-inf",
    "clean-fp32-merged-adapters",
    "clean-fp32-dynamic-int8",
    "clean-fp32-eight-bits",
    "clean-fp32-code-books",
    "clean-fp32-dense-experts",
    "clean-fp32-written-fourier",
    "bf16-mask-none-inf-and-wrong",
    "fp32-gate-and-up-swapped",
    "fp32-one-not-transposed",
    "fp32-adapter-merged-by-half",
    "fp32-eight-bits-scaled",
    "fp32-other-codes",
    "bf16-cap-left-out",
    "fp32-gates-exchanged",
    "fp32-gradient-cut",
}


def _marked(cases):
    return [pytest.param(case, id=case.name, marks=[] if case.name in QUICK else pytest.mark.slow) for case in cases]


@pytest.fixture(autouse=True)
def _quiet():
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    yield
    logging.disable(before)


def test_the_quick_ones_are_in_the_list_and_there_are_enough_clean_pairs():
    assert {case.name for case in (*CLEAN, *FAULTY)} >= QUICK
    assert len(CLEAN) >= len(FAULTY)


@pytest.mark.parametrize("case", _marked(CLEAN))
def test_what_is_only_written_otherwise_is_not_accused(case):
    found = find_fault(*case.make())
    assert found.verdict in ("identical", "noise"), str(found)
    assert not found.site
    assert max(found.forwards.values()) <= 10


@pytest.mark.parametrize("case", _marked(FAULTY))
def test_a_fault_in_what_is_written_otherwise_is_found(case):
    found = find_fault(*case.make())
    assert found.verdict == "fault", str(found)
    assert found.site in case.culprits[0], str(found)
    assert found.cause in case.causes[0], str(found)
    assert max(found.forwards.values()) <= 10
