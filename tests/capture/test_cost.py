"""What a record costs, by counts: hand-overs, planning, operations of torch, Python objects."""

import sys
import threading
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import layertap as lt
from layertap.capture import gathering, quick, sink, writer_thread
from layertap.measure import measure
from layertap.store import RunWriter, columns

LAYERS = 20
X = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))


class Operations(TorchDispatchMode):
    """Counts what torch is asked to do."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(LAYERS))).requires_grad_(False)


@pytest.fixture
def patient(monkeypatch):
    """No batch is handed over for its age: a busy machine must not change the counts."""
    monkeypatch.setattr(gathering, "AGE", 3600.0)
    monkeypatch.setattr(sink, "AGE", 3600.0)
    monkeypatch.setattr(writer_thread, "AGE", 3600.0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("keep", ["stats", "tensor"])
def test_batches_are_handed_over_and_not_records(model, tmp_path, keep):
    with lt.record(model, tmp_path, sites="*", keep=keep) as rec:
        for _ in range(100):
            model(X)
            rec.step()
        taken, handed = rec.sink.taken, rec.sink.hand_overs
    assert taken == 100 * (LAYERS + 1) == rec.receipt.records
    assert handed <= taken / sink.FEW + 1
    assert rec.receipt.complete


@pytest.mark.usefixtures("patient")
def test_a_batch_is_handed_over_when_it_is_full(model, tmp_path):
    with lt.record(model, tmp_path, sites="*") as rec:
        for _ in range(100):
            model(X)
        assert rec.sink.hand_overs == rec.sink.taken // columns.CAPACITY


def test_a_record_that_is_followed_by_none_is_written_all_the_same(model, tmp_path, monkeypatch):
    monkeypatch.setattr(writer_thread, "IDLE", 0.0)
    written = threading.Event()
    commit = RunWriter.commit

    def committed(self):
        commit(self)
        if self.records:
            written.set()

    monkeypatch.setattr(RunWriter, "commit", committed)
    with lt.record(model, tmp_path, sites="*"):
        model(X)
        assert written.wait(30), "nothing was written until the end"
        assert len(lt.Run(tmp_path).sites) == LAYERS


def test_what_does_not_change_is_planned_once(model, monkeypatch):
    asked, planned = Counter(), Counter()
    supported, resized = quick.supported, quick.QuickWay._resized

    def seen(way, like, tensor):
        planned[tuple(tensor.shape)] += 1
        return resized(way, like, tensor)

    monkeypatch.setattr(quick, "supported", lambda tensor: asked.update([tuple(tensor.shape)]) or supported(tensor))
    monkeypatch.setattr(quick.QuickWay, "_resized", seen)
    with lt.record(model, sites="*") as rec:
        for _ in range(10):
            model(X)
            model(X[:2])
    assert asked == {(4, 64): LAYERS + 1}  # a new shape is planned after the tensor before it
    assert planned == {(2, 64): LAYERS + 1}
    assert rec.receipt.records == 20 * (LAYERS + 1)


@pytest.mark.parametrize("keep", ["stats", "tensor"])
def test_a_new_shape_is_recorded_as_it_is(keep):
    model = nn.Sequential(nn.Identity()).eval()
    xs = [torch.randn(1, size, generator=torch.Generator().manual_seed(size)) for size in (3, 5, 20_000, 7, 3)]
    with lt.record(model, sites="0", keep=keep) as rec:
        for x in xs:
            model(x)
    for call, x in enumerate(xs):
        found = rec.run[f"0@{call}" if call else "0"]
        assert found.record.shape == tuple(x.shape)
        assert found.record.fingerprint == measure(x).fingerprint
        assert found.record.statistics.count == x.numel()
        if keep == "tensor":
            assert torch.equal(found.tensor(), x)


@pytest.mark.parametrize("keep", ["stats", "tensor"])
def test_a_tap_asks_torch_for_nothing(model, keep):
    def counted():
        with Operations() as operations:
            model(X)
        return operations.counts

    bare = counted()
    with lt.record(model, sites="*", keep=keep) as rec:
        model(X)
        assert counted() == bare
    assert rec.receipt.records == 2 * (LAYERS + 1)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("keep", ["stats", "tensor"])
def test_a_tap_leaves_no_objects_behind(model, tmp_path, keep):
    with lt.record(model, tmp_path, sites="*", keep=keep) as rec:
        for _ in range(5):
            model(X)
        before, taken = sys.getallocatedblocks(), rec.sink.taken
        for _ in range(30):
            model(X)
        blocks, records = sys.getallocatedblocks() - before, rec.sink.taken - taken
        assert rec.sink.hand_overs == 0
    assert records == 30 * (LAYERS + 1)
    assert blocks < records / 10


@pytest.mark.parametrize("keep", ["stats", "tensor"])
def test_records_are_written_without_an_object_each(model, tmp_path, monkeypatch, keep):
    def never(*given):
        raise AssertionError("a record became an object")

    monkeypatch.setattr(columns, "to_records", never)
    monkeypatch.setattr(RunWriter, "add", never)
    with lt.record(model, tmp_path, sites="*", keep=keep) as rec:
        model(X)
    assert rec.receipt.complete
    assert len(lt.Run(tmp_path).sites) == LAYERS


@pytest.mark.parametrize("keep", ["stats", "tensor"])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (4016,), (70, 1000), (400, 1000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool])
def test_the_short_way_records_what_the_long_way_does(tmp_path, dtype, shape, keep):
    tensor = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 9).to(dtype)
    if dtype.is_floating_point and tensor.numel() > 3:
        tensor.view(-1)[1], tensor.view(-1)[2] = float("nan"), float("-inf")
    model = nn.Sequential(nn.Identity())
    with lt.record(model, tmp_path, sites="0", keep=keep) as rec:
        for _ in range(3):
            model(tensor)
    expected = measure(tensor)
    for call in range(3):
        found = rec.run["0" if not call else f"0@{call}"]
        assert repr(found.record.statistics) == repr(expected.statistics)
        assert (found.record.fingerprint, found.record.sketch) == (expected.fingerprint, expected.sketch)
        assert found.record.shape == shape
        if keep == "tensor":
            assert torch.equal(found.tensor().view(torch.uint8), tensor.view(torch.uint8)) if shape else True
            assert found.verify()


def test_a_view_that_is_not_contiguous_is_recorded_in_its_own_order():
    model = nn.Sequential(nn.Identity())
    tensor = torch.arange(12.0).reshape(3, 4)
    with lt.record(model, sites="0", keep="tensor") as rec:
        model(tensor)
        model(tensor.T)
    assert torch.equal(rec.run["0@1"].tensor(), tensor.T)


def test_memory_that_was_freed_is_not_read():
    model = nn.Sequential(nn.Identity())
    tensor = torch.ones(64)
    with lt.record(model, sites="0") as rec:
        model(tensor)
        tensor.untyped_storage().resize_(0)
        model(tensor)
    receipt = next(site for site in rec.receipt.sites if site.path == "0")
    assert receipt.tensors == 1
    assert receipt.skipped == {"its memory has been freed": 1}
