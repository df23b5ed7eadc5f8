"""Distributed tensors: what is recorded is a rank's part, and the record and the receipt say which."""

import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import layertap as lt
from layertap.capture.sharding import region, same_part
from layertap.capture.sink import Sink
from layertap.measure import measure
from layertap.measure.part import PartPlace, whole_sums
from layertap.site import Sharding
from layertap.store import MemoryWriter


@pytest.fixture
def mesh():
    """Rank 1 of 4, in a job whose collectives do nothing: layouts need no peers."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    yield init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


class Given(nn.Module):
    """Returns what it was made with."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, x):
        return self.value


def recorded(value, keep="tensor"):
    with torch.no_grad(), lt.record(nn.Sequential(Given(value)), sites="0", keep=keep) as rec:
        rec.model(torch.ones(1))
    return rec


def part(mesh, placement, shape=(3, 5)):
    local = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    return DTensor.from_local(local, mesh, [placement], run_check=False)


LAYOUTS = [
    *itertools.product([Replicate(), Shard(0), Shard(1), Partial()], repeat=2),
    (_StridedShard(0, split_factor=3), Shard(0)),
    (_StridedShard(1, split_factor=3), Shard(1)),
    (_StridedShard(1, split_factor=3), Shard(0)),  # gaps: no later dimension cuts the same axis
]


@pytest.mark.parametrize("placements", LAYOUTS, ids=str)
@pytest.mark.parametrize("shape", [(12, 6), (7, 5), (1, 12)])
def test_the_region_is_torchs_own(placements, shape):
    torchs_own = pytest.importorskip("torch.distributed.tensor._utils")
    if not hasattr(torchs_own, "_compute_local_shape_and_global_offset"):
        pytest.skip("torch 2.6 has no function for a part of an explicit mesh")
    for here in itertools.product(range(2), range(3)):
        size, begin = torchs_own._compute_local_shape_and_global_offset(shape, (2, 3), list(here), placements)
        found = region(shape, (2, 3), here, placements)
        if found is None:
            assert isinstance(placements[0], _StridedShard)
        elif 0 not in size:  # where nothing is left, torch states that it begins at the end
            assert found == (tuple(begin), tuple(size)), here


def test_a_strided_shard_with_gaps_has_no_region_and_one_without_has():
    assert region((12, 6), (2, 3), (0, 0), (_StridedShard(1, split_factor=3), Shard(0))) is None
    assert region((12, 6), (2, 3), (1, 2), (_StridedShard(0, split_factor=3), Shard(0))) == ((10, 0), (2, 6))


def test_a_shard_is_recorded_with_its_place_in_the_whole(mesh):
    rec = recorded(part(mesh, Shard(1)))
    record = rec.run["0"].record
    assert record.shape == (3, 5)
    assert record.sharding == Sharding(
        placements=("Shard(dim=1)",),
        global_shape=(3, 20),
        offset=(0, 5),
        mesh_shape=(4,),
        mesh_names=("tp",),
        mesh_coordinate=(1,),
        mesh_origin=0,
    )
    note = next(note for note in rec.receipt.notes if note.startswith("0: "))
    assert note == "0: recorded is the part on rank 1 of 4, Shard(dim=1): [3, 5] of global [3, 20]"


def test_the_receipt_names_the_leaf_that_is_a_part(mesh):
    rec = recorded((torch.ones(2), part(mesh, Shard(1))))
    assert any(note.startswith("0:output.1: recorded is the part on rank 1 of 4") for note in rec.receipt.notes)


KEEPS = ["stats", "tensor", {"0": lambda x: x[:1]}]


@pytest.mark.parametrize("keep", KEEPS, ids=["stats", "tensor", "reduced"])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("placement", [Shard(0), Shard(1)])
def test_a_part_has_its_sums_in_the_whole(mesh, placement, compiled, keep, monkeypatch):
    if not compiled:
        monkeypatch.setattr("layertap.measure.native.available", lambda: False)
        monkeypatch.setattr("layertap.measure.part.native.available", lambda: False)
    given = part(mesh, placement)
    local = given.to_local().clone()
    with torch.no_grad(), lt.record(nn.Sequential(Given(given)), sites="0", keep=keep) as rec:
        rec.model(torch.ones(1))
        given.to_local().fill_(-1)  # what is measured later is what was captured
    record = rec.run["0"].record
    begin, shape = {0: ((3, 0), (12, 5)), 1: ((0, 5), (3, 20))}[placement.dim]
    place = PartPlace(spans=tuple(((at, at + size),) for at, size in zip(begin, (3, 5), strict=True)), shape=shape)
    assert record.fingerprint == measure(local).fingerprint
    assert record.fingerprint_in_whole == whole_sums(local, place).fingerprint
    assert record.sketch_in_whole == whole_sums(local, place).sketch


class Lane:
    """In the place of the way from a device: bytes arrive when the writer's thread asks for them."""

    def __init__(self):
        self.sent = []

    def of_slabs(self, slabs):
        self.sent += [slab.clone() for slab in slabs]
        return iter([slab.numpy for slab in self.sent])


@pytest.mark.parametrize("whole", [True, False], ids=["kept", "statistics"])
def test_a_part_on_a_device_is_summed_there_or_from_the_bytes_that_arrive(whole):
    sink = Sink(MemoryWriter(info={}), budget=1 << 20, policy="block", retains=True)
    lane = sink._cuda = Lane()
    tensor = torch.arange(12.0).view(3, 4)
    place = PartPlace(spans=(((0, 3),), ((4, 8),)), shape=(3, 8))
    right, copy, found = whole_sums(tensor, place), tensor.clone(), measure(tensor)
    arrive = sink._placed(lambda: (found, copy if whole else None), tensor, place, whole=whole)
    tensor.fill_(-1)
    assert len(lane.sent) == (not whole), "nothing is sent for a tensor that arrives as a whole"
    measured, host = arrive()
    assert (measured.in_whole, measured.fingerprint) == (right, found.fingerprint)
    assert host is (copy if whole else None)
    sink.close()


def test_what_is_no_part_with_a_place_has_no_sums_in_a_whole(mesh):
    ragged = DTensor.from_local(
        torch.ones(2, 5), mesh, [Shard(0)], run_check=False, shape=torch.Size((12, 5)), stride=(5, 1)
    )
    for value in (part(mesh, Partial()), part(mesh, Replicate()), ragged, torch.ones(3, 5)):
        record = recorded(value).run["0"].record
        assert (record.fingerprint_in_whole, record.sketch_in_whole) == (None, None)


def test_a_summand_is_no_whole_although_it_has_its_shape(mesh):
    rec = recorded(part(mesh, Partial()))
    assert rec.run["0"].record.sharding.partial
    assert "Partial(sum): [3, 5] of global [3, 5]" in str(rec.receipt)


def test_a_replicated_tensor_is_whole(mesh):
    rec = recorded(part(mesh, Replicate()))
    assert rec.run["0"].record.sharding.is_whole((3, 5))
    assert not any("rank 1" in note for note in rec.receipt.notes)


def test_a_part_of_another_size_than_torch_would_cut_has_no_known_place(mesh):
    ragged = DTensor.from_local(
        torch.ones(2, 5), mesh, [Shard(0)], run_check=False, shape=torch.Size((12, 5)), stride=(5, 1)
    )
    sharding = recorded(ragged).run["0"].record.sharding
    assert (sharding.global_shape, sharding.offset) == ((12, 5), ())


def test_a_shard_inside_another_wrapper_keeps_its_layout(mesh):
    from torch.testing._internal.two_tensor import TwoTensor

    rec = recorded(TwoTensor(part(mesh, Shard(0)), part(mesh, Replicate(), (12, 5))))
    assert [str(site) for site in rec.run.sites] == ["0:output.a", "0:output.b"]
    assert rec.run["0:output.a"].record.sharding.offset == (3, 0)
    assert rec.run["0:output.b"].record.sharding.is_whole((12, 5))
    rec = recorded(DTensor.from_local(TwoTensor(torch.ones(3, 5), torch.ones(3, 5)), mesh, [Shard(0)], run_check=False))
    sharding = rec.run["0:output.a"].record.sharding
    assert (sharding.placements, sharding.global_shape) == (("Shard(dim=0)",), ())


def test_parameters_and_gradients_of_fsdp(mesh):
    from torch.distributed.fsdp import fully_shard

    block = nn.Sequential(nn.Linear(6, 8, bias=False))
    fully_shard(block, mesh=mesh)
    roles = ("output", "param", "param_grad")
    with lt.record(nn.Sequential(block), sites="0", what=roles, keep="tensor") as rec:
        rec.model(torch.ones(2, 6)).sum().backward()
    whole, shard = (rec.run[f"0:{role}.0.weight"].record for role in ("param", "param_grad"))
    assert (whole.shape, whole.sharding) == ((8, 6), None), "as the block computes with it: gathered"
    assert shard.shape == (2, 6)
    assert (shard.sharding.global_shape, shard.sharding.offset) == ((8, 6), (2, 0))


def test_a_plain_output_of_a_module_with_sharded_parameters_is_told(mesh):
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
    parallelize_module(model, mesh, {"0": ColwiseParallel()})
    with torch.no_grad(), lt.record(model, sites="**") as rec:
        model(torch.ones(2, 6))
    assert any(note.startswith("0: sharded parameters and a plain output") for note in rec.receipt.notes)


def test_what_two_tensors_hold_of_the_same_whole(mesh):
    whole = torch.arange(60.0).reshape(12, 5)
    shard = DTensor.from_local(whole[3:6], mesh, [Shard(0)], run_check=False)
    for pair in ((whole, shard), (shard, whole), (shard, shard)):
        one, other = same_part(*pair)
        assert type(one) is type(other) is torch.Tensor
        assert torch.equal(one, whole[3:6])
        assert torch.equal(other, whole[3:6])
    assert same_part(shard, DTensor.from_local(whole, mesh, [Replicate()], run_check=False)) is None
    assert same_part(whole, DTensor.from_local(whole, mesh, [Partial()], run_check=False)) is None
    assert same_part(torch.ones(3, 5), shard) is None
