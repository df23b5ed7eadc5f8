"""Many ranks read as one: records in blocks, tensors one after the other, whatever the number of ranks."""

import numpy as np
import pytest
import torch

import layertap as lt
from compare.test_sharded import record, run_of
from layertap.site import Sharding
from layertap.store import Run, RunWriter, merged
from layertap.store.merged import merged as merge

RANKS, SITES = 64, 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of many ranks: each has a row of each tensor."""
    folder = tmp_path_factory.mktemp("many") / "run"
    for rank in range(RANKS):
        writer = RunWriter(folder, info={}, rank=rank, durability="none")
        layout = Sharding(
            placements=("Shard(dim=0)",),
            global_shape=(RANKS, 8),
            offset=(rank, 0),
            mesh_shape=(RANKS,),
            mesh_coordinate=(rank,),
            mesh_origin=0,
        )
        for order, (site, tensor) in enumerate(whole().items()):
            part = tensor[rank : rank + 1].contiguous()
            writer.add(record(site, part, order, layout, rank), np.frombuffer(part.numpy().tobytes(), np.uint8))
        writer.close()
    return folder


def whole():
    generator = torch.Generator().manual_seed(0)
    return {f"layers.{number}": torch.randn(RANKS, 8, generator=generator) for number in range(SITES)}


@pytest.fixture
def most(monkeypatch):
    """The most records that were asked for at once, and how many in all."""
    seen = []
    asked = Run.records_at

    def records_at(run, rows, **how):
        seen.append(len(rows))
        return asked(run, rows, **how)

    monkeypatch.setattr(Run, "records_at", records_at)
    return seen


@pytest.mark.parametrize("held", [0, 1 << 16])
def test_records_are_read_in_blocks(folder, most, monkeypatch, held):
    monkeypatch.setattr(merged, "BLOCK", 3 * RANKS)
    monkeypatch.setattr(merged, "HELD", held)
    one = merge(Run(folder)).run
    assert max(most) <= 3 * RANKS
    assert sum(most) == RANKS * SITES, "each record once"
    before = len(most)
    assert all(torch.equal(one[site].tensor(), tensor) for site, tensor in whole().items())
    # What is not held is read again, one tensor at a time.
    again = [count for count in most[before:] if count > 1]  # of the merged run itself one record at a time
    assert again == ([] if held else [RANKS] * SITES)


def test_headers_of_tensor_files_are_read_once(folder, monkeypatch):
    from layertap.store import kept

    read = []
    header = kept.read_header
    monkeypatch.setattr(kept, "read_header", lambda *given: read.append(given) or header(*given))
    run = Run(folder)
    for site in run.sites:
        run[site].tensor()
    assert len(read) == RANKS
    monkeypatch.setattr(kept, "_CACHED_ENTRIES", 0)  # where they are too many, the last ones alone are kept
    run = Run(folder)
    for site in run.sites[:2]:
        run[site].tensor()
    assert len(read) == 3 * RANKS
    assert len(run._kept._headers) == kept._CACHED_HEADERS


def test_a_diff_with_one_process_holds_one_block(folder, most, monkeypatch):
    monkeypatch.setattr(merged, "BLOCK", 2 * RANKS)
    monkeypatch.setattr(merged, "HELD", 0)
    report = lt.diff(run_of("one", {site: (tensor, None) for site, tensor in whole().items()}), folder)
    assert report.verdict == "identical", str(report)
    assert max(most) <= 2 * RANKS
