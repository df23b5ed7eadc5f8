"""Recording plain tensors that are parts: what the mapping says is in the records, and what is wrong in it is said."""

import numpy as np
import pytest
import torch
from torch import nn

import layertap as lt
from layertap.errors import BadArgument
from layertap.measure import measure
from layertap.store.merged import merged

MAPPING = {"mesh": {"cp": 2, "tp": 2}, "0": {"dims": "t[cp:zigzag] h[tp]"}, "0:input": {"dims": "t[cp:zigzag] d"}}


@pytest.fixture
def as_rank(monkeypatch):
    """This process as one of four."""

    def become(rank, size=4):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(size))

    return become


def parts(tensor, rank, width=None):
    cp, tp = divmod(rank, 2)
    pieces = tensor.chunk(4)
    mine = torch.cat([pieces[cp], pieces[3 - cp]])
    return mine if width is None else mine[:, tp * width : (tp + 1) * width]


@pytest.mark.parametrize("keep", ["tensor", "stats"])
def test_the_ranks_of_one_folder_make_the_whole_tensor(as_rank, tmp_path, keep):
    torch.manual_seed(0)
    whole, x = nn.Linear(3, 4), torch.randn(8, 3)
    for rank in range(4):
        as_rank(rank)
        tp = rank % 2
        mine = nn.Sequential(nn.Linear(3, 2))
        with torch.no_grad():
            mine[0].weight.copy_(whole.weight[2 * tp : 2 * tp + 2])
            mine[0].bias.copy_(whole.bias[2 * tp : 2 * tp + 2])
            with lt.record(mine, tmp_path / "run", sites="0", what=("input", "output"), keep=keep, mapping=MAPPING):
                for _ in range(2):  # the first call of a module and the later ones are taken in different ways
                    mine(parts(x, rank))
    run, right = lt.Run(tmp_path / "run"), whole(x).detach()
    for site in ("0", "0@1"):
        assert run[site].statistics.mean == pytest.approx(float(right.mean()), abs=1e-6)
        sharding = run[site].at(rank=1).record.sharding
        assert (sharding.placements, sharding.global_shape) == (("Zigzag(dim=0)", "Shard(dim=1)"), (8, 4))
        assert (sharding.mesh_names, sharding.mesh_coordinate) == (("cp", "tp"), (0, 1))
        given = run[site.replace("0", "0:input", 1)]
        assert given.fingerprint == measure(x).fingerprint
        assert all(record.fingerprint_in_whole != record.fingerprint for record in given)
        if keep == "tensor":
            assert torch.allclose(run[site].tensor(), right, atol=1e-6)
            assert run[site].fingerprint == measure(run[site].tensor()).fingerprint
            assert torch.equal(given.tensor(), x)
    one = merged(run).run[":input" if ":input" in run.sites else "0:input"].record
    assert one.fingerprint == measure(x).fingerprint
    if keep == "stats":
        sketch = np.frombuffer(measure(x).sketch, "<f4")
        np.testing.assert_allclose(np.frombuffer(one.sketch, "<f4"), sketch, atol=1e-6)


class Complex(nn.Module):
    def forward(self, x):
        return torch.complex(x, x)


def test_tensors_that_are_taken_the_long_way(as_rank):
    as_rank(1, size=2)
    model = nn.Sequential(Complex())
    with lt.record(model, sites="0", mapping={"mesh": {"tp": 2}, "0": {"dims": "t[tp] d"}}) as rec:
        model(torch.ones(4, 3))
    assert rec.run["0"].record.sharding.offset == (4, 0)


def test_a_wrong_mapping_is_refused_before_anything_is_recorded(as_rank):
    as_rank(0, size=8)
    with pytest.raises(BadArgument, match=r"the mesh \(cp 2 × tp 2\) has 4 ranks and the job 8"):
        lt.record(nn.Sequential(nn.Linear(3, 2)), sites="0", mapping=MAPPING)
    as_rank(0)
    with pytest.raises(BadArgument, match="the mesh has no axis 'sp'"):
        lt.record(nn.Sequential(nn.Linear(3, 2)), sites="0", mapping={**MAPPING, "0": {"dims": "t[sp] h"}})


def test_an_annotation_that_does_not_fit_is_in_the_receipt_and_ends_nothing(as_rank):
    as_rank(0)
    mapping = {**MAPPING, "0": {"dims": "b t[cp:zigzag] h[tp]"}, "nowhere": {"dims": "t"}}
    model = nn.Sequential(nn.Linear(3, 2))
    with lt.record(model, sites="0", mapping=mapping) as rec:
        model(torch.ones(4, 3))
    told = " ".join(rec.receipt.notes)
    assert "0: 3 words for a tensor of 2 dimensions, [4, 2]" in told
    assert "rule 'nowhere' match no site" in told
    assert rec.run["0"].record.sharding is None
    with pytest.raises(BadArgument, match="3 words"), lt.record(model, sites="0", mapping=mapping, strict=True):
        model(torch.ones(4, 3))
