"""find_fault of a candidate on several ranks against one process: all ranks here in one, by torch's LocalTensorMode."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import layertap as lt
from fault import spread
from layertap.fault.places import choices, chosen, placed
from layertap.fault.world import World
from literals import fixed_part

RANKS = 4
FAST = {spread.clean, spread.stale_column, spread.not_reduced}


@pytest.fixture
def mesh():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


def found(mesh, spread_out, fault, mixture=False, trained=False):
    from torch.distributed._local_tensor import LocalTensorMode

    reference, ids = spread.whole(mixture), spread.ids()
    with LocalTensorMode(RANKS):
        candidate = copy.deepcopy(reference)
        spread_out(candidate, mesh)
        fault(candidate)
        return lt.find_fault(reference, candidate, (lambda m: spread.step(m, ids)) if trained else (ids,))


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=[] if fault in FAST else pytest.mark.slow, id=fault.__name__)
        for fault in spread.FAULTS
    ],
)
def test_what_is_wrong_on_which_rank(mesh, fault):
    mixture, trained, said = spread.FAULTS[fault]
    finding = found(mesh, spread.megatron, fault, mixture, trained)
    told = (finding.site, finding.cause, finding.ranks) if finding.verdict == "fault" else None
    assert told == said, str(finding)
    assert finding.verdict != "inconclusive"
    assert max(finding.forwards.values()) <= 11


@pytest.mark.slow
@pytest.mark.parametrize("mixture", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_distributed_tensors_without_a_fault(mesh, mixture, trained):
    finding = found(mesh, spread.tensor_parallel, spread.clean, mixture, trained)
    assert finding.verdict == "noise", str(finding)
    assert not any(fixed_part("fault.other_form") in note for note in finding.notes)


def test_a_finding_says_the_rank_in_words_and_in_json(mesh, tmp_path):
    finding = found(mesh, spread.megatron, spread.stale_row)
    assert "weight: relative error" in str(finding)
    assert "on rank 1 of 4" in str(finding)
    assert finding.to_dict()["ranks"] == [1]


WORLD = World(4, (0, 1, 2, 3))
WORLD.dims = [{0: 0, 1: 0, 2: 1, 3: 1}, {0: 0, 1: 1, 2: 0, 3: 1}, {rank: rank for rank in range(4)}]


def held(axis, dim, way):
    """What each rank has of a whole by one way to cut it, and the whole."""
    whole = torch.randn(6, 48, generator=torch.Generator().manual_seed(0))
    choice = ((axis, dim, way),)
    places = {rank: placed(WORLD, rank, whole.shape, choice) for rank in WORLD.ranks}
    return whole, {rank: place.cut(whole) for rank, place in places.items()}, choice


def errors(whole, parts):
    return {
        rank: {
            choice: float((placed(WORLD, rank, whole.shape, choice).cut(whole) - part).norm())
            for choice in choices(WORLD, rank, whole.shape, part.shape)
        }
        for rank, part in parts.items()
    }


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("way", ["chunk", "zigzag", "packed2", "packed3"])
def test_the_way_to_cut_is_the_one_that_most_ranks_agree_with(dim, way):
    whole, parts, choice = held(1, dim, way)
    assert chosen(errors(whole, parts)) == (choice, True)
    parts[3] = parts[0]  # the wrong part is the rank's fault, and no other layout
    assert chosen(errors(whole, parts)) == (choice, True)


def test_a_zigzag_is_the_first_with_the_last():
    whole, parts, _ = held(1, 2, "zigzag")
    assert torch.equal(parts[1], torch.cat([whole[:, 6:12], whole[:, 36:42]], 1))


def test_numbers_that_fit_no_layout_are_not_called_clear():
    whole, parts, _ = held(1, 2, "chunk")
    noise = {
        rank: torch.randn(part.shape, generator=torch.Generator().manual_seed(rank)) for rank, part in parts.items()
    }
    choice, clear = chosen(errors(whole, noise), ((1, 2, "chunk"),))
    assert (choice, clear) == (((1, 2, "chunk"),), False) or clear is False
