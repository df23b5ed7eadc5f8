"""Four gloo processes against one: parts of the sequence in zigzag, parts of the features, stages with microbatches."""

import pytest
import torch

import layertap as lt
from compare import ranks
from fault import sequence, spread

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    for rank, found in enumerate(ranks.run(folder)):
        assert not [text for text in found.values() if isinstance(text, str)], (rank, found)
        FOUND[rank] = found
    return folder


FOUND = {}
"""What each rank returned, by scenario."""


def codes(report):
    return {note.code for note in report.notes}


@pytest.mark.parametrize("name", ["context", "context-plain"])
def test_parts_of_the_sequence_are_read_as_one(job, name):
    # `context` was recorded with the mapping; of the other one nothing but the mapping given here says what is where.
    report = lt.diff(job / "one", job / name, mapping=None if name == "context" else sequence.CONTEXT)
    assert report.verdict == "noise", str(report)
    assert not report.unmatched
    assert codes(report) == {"layouts.merged"}


def test_the_whole_tensor_is_put_together_from_what_was_recorded(job):
    whole, run = lt.Run(job / "one")["head"].tensor(), lt.Run(job / "context")
    assert torch.allclose(run["head"].tensor(), whole, atol=1e-5)
    assert torch.equal(run[":input"].tensor(), spread.ids())
    sharding = run["head"].at(rank=1).record.sharding
    assert (sharding.placements, sharding.global_shape, sharding.offset) == (("Zigzag(dim=1)",), (2, 8, 64), ())
    assert (sharding.mesh_names, sharding.mesh_shape, sharding.mesh_coordinate) == (("cp",), (4,), (1,))


def test_a_wrong_slice_of_the_positions_is_named_with_its_rank(job):
    report = lt.diff(job / "one", job / "context-broken")
    assert (report.verdict, str(report.first.site)) == ("fault", "blocks.0.attention.rotary:input"), str(report)
    assert "the error lies in the part of rank 1" in report.notes[0]


def test_parts_of_the_features_with_the_mapping_given_to_diff(job):
    report = lt.diff(job / "one", job / "tensor-plain", mapping=ranks.TENSOR)
    assert report.verdict == "noise", str(report)
    report = lt.diff(job / "one", job / "tensor-broken", mapping=ranks.TENSOR)
    assert (report.verdict, str(report.first.site)) == ("fault", "blocks.0.attention.q")
    assert "the error lies in the part of rank 2" in report.notes[0]
    swapped = lt.diff(job / "tensor-broken", job / "one", mapping=ranks.TENSOR)
    assert (swapped.verdict, str(swapped.first.site)) == ("fault", "blocks.0.attention.q")


def test_the_stages_of_a_pipeline_and_its_microbatches(job):
    report = lt.diff(job / "long", job / "pipeline")
    assert report.verdict in ("identical", "noise"), str(report)
    assert not report.unmatched
    assert codes(report) == {"layouts.stages", "layouts.microbatches", "layouts.first_call"}
    broken = lt.diff(job / "long", job / "pipeline-broken")
    assert (broken.verdict, str(broken.first.site)) == ("fault", "blocks.1.feed.down"), str(broken)


def test_find_fault_does_not_judge_a_stage(job):
    for rank in (0, 1):
        verdict, why, forwards = FOUND[rank]["pipeline"]
        assert (verdict, why, sum(forwards.values())) == ("inconclusive", ["fault.stage"], 0)
