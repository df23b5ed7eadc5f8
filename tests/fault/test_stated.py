"""find_fault where a mapping says how plain tensors lie on the ranks: context parallelism, and wrong annotations."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import layertap as lt
from fault import sequence, spread
from layertap.errors import BadArgument

RANKS = 4


@pytest.fixture
def mesh():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield init_device_mesh("cpu", (RANKS,), mesh_dim_names=("cp",))
    dist.destroy_process_group()


def found(mesh, spread_out, fault, mapping):
    from torch.distributed._local_tensor import LocalTensorMode

    reference, ids = spread.whole(), spread.ids()
    with LocalTensorMode(RANKS):
        candidate = spread_out(copy.deepcopy(reference), mesh)
        fault(candidate)
        return lt.find_fault(reference, candidate, (ids,), mapping=mapping)


def context_with(**more):
    return {**sequence.CONTEXT, **{name: {"dims": text} for name, text in more.items()}}


def test_context_parallelism_without_a_fault(mesh):
    finding = found(mesh, sequence.context_parallel, spread.clean, sequence.CONTEXT)
    assert finding.verdict == "noise", str(finding)
    assert len(finding.notes) == 1, finding.notes  # nothing that could not be judged
    assert max(finding.forwards.values()) <= 11


def test_one_rank_turns_its_heads_by_another_slice_of_the_positions(mesh):
    finding = found(mesh, sequence.context_parallel, sequence.other_slice, sequence.CONTEXT)
    assert (finding.verdict, finding.site, finding.ranks) == ("fault", "blocks.0.attention", (1,)), str(finding)
    assert finding.explained > 0.99


def test_a_rank_that_holds_other_weights(mesh):
    finding = found(mesh, sequence.context_parallel, sequence.stale_whole, sequence.CONTEXT)
    told = finding.verdict, finding.site, finding.cause, finding.ranks
    assert told == ("fault", "blocks.0.feed.down", "weights", (2,)), str(finding)


TENSOR = {
    "mesh": {"tp": RANKS},
    r".*attention\.[qkv]": {"dims": "b t h[tp]"},
    r".*attention\.[qkv]:param\.weight": {"dims": "h[tp] d"},
    r".*attention\.o:input.*": {"dims": "b t h[tp]"},
}


def test_the_annotation_is_taken_in_place_of_a_guess(mesh, monkeypatch):
    from layertap.fault import sharded_cause, sharded_replay

    guessed = []

    def choices(world, rank, whole, part):
        guessed.append((tuple(whole), tuple(part)))
        return iter(())

    monkeypatch.setattr(sharded_replay, "choices", choices)
    monkeypatch.setattr(sharded_cause, "choices", choices)
    mapping = {**TENSOR, r".*feed\.(gate|up)(:output.*)?|.*feed\.down:input.*": {"dims": "b t h[tp]"}}
    mapping |= {r".*attention\.(norm.*|rotary.*)": {"dims": "b h[tp] t d"}, r".*rotary:.*": {"dims": "t d"}}
    mapping |= {r".*rotary:input.*": {"dims": "t"}}
    finding = found(mesh, spread.megatron, spread.stale_column, mapping)
    told = finding.verdict, finding.site, finding.cause, finding.ranks
    assert told == ("fault", "blocks.0.attention.q", "weights", (2,)), str(finding)
    assert not guessed


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        (context_with(embed="b t[cp]"), "embed: 2 words for a tensor of 3 dimensions"),
        (context_with(embed="b[cp] t d"), "2 places of dimension 0 cannot be cut into 4 equal parts over 'cp'"),
        (context_with(embed="b t d"), "as annotated, rank 0 holds [2, 8, 32] of it, but each rank holds another shape"),
        (context_with(embed="b t d +cp:max"), "expected sum, avg"),
        ({**sequence.CONTEXT, "mesh": {"cp": 2}}, "the mesh (cp 2) has 2 ranks and the job 4"),
    ],
)
def test_an_annotation_that_does_not_fit_is_refused(mesh, mapping, said):
    with pytest.raises(BadArgument) as raised:
        found(mesh, sequence.context_parallel, spread.clean, mapping)
    assert said in str(raised.value)


def test_a_rule_that_matches_nothing_is_named(mesh):
    finding = found(mesh, sequence.context_parallel, spread.clean, context_with(**{"no.such": "b t"}))
    assert [note.code for note in finding.notes] == ["fault.ranks", "dims.unused"]


def test_a_mapping_with_dims_needs_the_ranks():
    model = torch.nn.Linear(2, 2)
    with pytest.raises(BadArgument, match=r"the mesh \(tp 4\) has 4 ranks and the job 1"):
        lt.find_fault(model, copy.deepcopy(model), (torch.ones(1, 2),), mapping=TENSOR)


def test_a_mesh_with_stages_is_inconclusive_and_runs_nothing():
    model = torch.nn.Linear(2, 2)
    finding = lt.find_fault(model, copy.deepcopy(model), (torch.ones(1, 2),), mapping={"mesh": {"pp": 2}})
    assert (finding.verdict, [note.code for note in finding.evidence]) == ("inconclusive", ["fault.stage_stated"])
    assert "lt.diff" in str(finding)
    assert set(finding.forwards.values()) == {0}
