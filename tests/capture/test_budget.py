"""The budget and the writer's thread: bounded memory, and every loss counted."""

import errno
import threading

import pytest
import torch
from torch import nn

import layertap as lt
from layertap.capture.room import Room
from layertap.store import RunWriter
from layertap.store.open_shard import OpenShard

X = torch.ones(1000)
SIZE = 4000


class Stack(nn.Module):
    def __init__(self, depth=10):
        super().__init__()
        self.layers = nn.ModuleList(nn.Identity() for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x + 1)
        return x


def test_in_memory_the_budget_turns_tensors_into_statistics():
    with lt.record(Stack(), sites="layers.*", keep="tensor", budget=3 * SIZE) as rec:
        rec.model(X)
    kept = [rec.run[site].record.kept for site in rec.run.sites]
    assert kept == ["tensor"] * 3 + ["stats"] * 7
    assert sum(site.dropped for site in rec.receipt.sites) == 7
    assert not rec.receipt.complete
    assert "not kept, because the budget was used up: 7" in str(rec.receipt)


def test_drop_leaves_the_record_out(tmp_path):
    with lt.record(Stack(), sites="layers.*", keep="tensor", budget=3 * SIZE, policy="drop") as rec:
        rec.model(X)
    assert len(rec.run.sites) == 3
    assert "not kept, because the budget was used up" in rec.receipt.sites[-1].why


def test_block_waits_for_the_writer_and_loses_nothing(tmp_path, monkeypatch):
    high, add, gate = [], RunWriter.add_batch, threading.Event()

    def slow(self, batch):
        gate.wait(10)
        return add(self, batch)

    reserve = Room.reserve

    def watched(self, nbytes):
        if self.used + nbytes > 4 * SIZE:
            gate.set()
        result = reserve(self, nbytes)
        high.append(self.used)
        return result

    monkeypatch.setattr(RunWriter, "add_batch", slow)
    monkeypatch.setattr(Room, "reserve", watched)
    with lt.record(Stack(30), tmp_path / "run", sites="layers.*", keep="tensor", budget=4 * SIZE) as rec:
        rec.model(X)
    assert max(high) <= 4 * SIZE
    assert gate.is_set(), "the budget was never reached"
    assert rec.receipt.complete
    assert len(rec.run.sites) == 30


def test_a_tensor_larger_than_the_budget_passes_alone(tmp_path):
    with lt.record(Stack(3), tmp_path / "run", sites="layers.*", keep="tensor", budget=SIZE // 2) as rec:
        rec.model(X)
    assert rec.receipt.complete
    assert torch.equal(rec.run["layers.2"].tensor(), X + 3)


def test_a_full_disk_never_reaches_the_loop(tmp_path, monkeypatch, caplog):
    append, count = OpenShard.append, [0]

    def full(self, names, *given):
        if count[0] + len(names) > 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        count[0] += len(names)
        return append(self, names, *given)

    monkeypatch.setattr(OpenShard, "append", full)
    with lt.record(Stack(), tmp_path / "run", sites="layers.*", keep="tensor") as rec:
        for _ in range(3):
            assert torch.equal(rec.model(X), X + 10)
            rec.step()
    assert "No space left" in rec.receipt.error
    assert not rec.receipt.complete
    assert rec.receipt.records == 4 + 3, "and the statistics of the inputs"
    assert rec.receipt.lost == 33 - 7
    assert caplog.text.count("No space left") == 1, "said once"
    assert len(lt.Run(tmp_path / "run").sites) == 4


@pytest.mark.parametrize("threads", [1, 4])
def test_models_in_several_threads(threads):
    model = Stack()
    with lt.record(model, sites="layers.*", keep="tensor") as rec:
        workers = [threading.Thread(target=model, args=(X,)) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert rec.receipt.records == threads * 11
