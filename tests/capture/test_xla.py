"""Baked taps through torch_xla, the nearest that runs on a CPU to Neuron's tracing. Run by `make test-xla` alone."""

import pytest
import torch
from torch import nn

import layertap as lt

torch_xla = pytest.importorskip("torch_xla", reason="torch_xla has an environment of its own: make test-xla")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def parts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)).eval()
    return model, torch.randn(2, 8), torch.randn(2, 8)


def right(model, x):
    with torch.no_grad(), lt.record(model, sites="*", keep="tensor") as rec:
        output = model(x)
    return output, {str(site): rec.run[site].tensor() for site in rec.run.sites}


@pytest.mark.parametrize("backend", ["lazy", "openxla"])
def test_taps_of_the_second_input(parts, backend):
    model, first, second = parts
    want, sites = right(model, second)
    device = torch_xla.device()
    tapped = lt.bake(model, sites="*").to(device)
    run = torch.compile(tapped, backend="openxla") if backend == "openxla" else tapped
    with torch.no_grad():
        for x in (first, second):
            raw = run(x.to(device))
            torch_xla.sync()
    output, taps = tapped.split([value.cpu() for value in raw])
    assert torch.allclose(output, want, atol=1e-5)
    assert set(map(str, taps)) == set(sites)
    assert all(torch.allclose(taps[site], sites[site], atol=1e-5) for site in sites)
