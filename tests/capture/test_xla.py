"""Taps through torch_xla, the nearest that runs on a CPU to Neuron's tracing. Run by `make test-xla` alone."""

import pytest
import torch

import layertap as lt

torch_xla = pytest.importorskip("torch_xla", reason="torch_xla has an environment of its own: make test-xla")
models = pytest.importorskip("models")

pytestmark = pytest.mark.filterwarnings("ignore")

SITES = ["model.layers.*", "model.layers.*.mlp", "model.norm"]


@pytest.fixture(params=["qwen3", "llama", "minimax_m2"])
def build(request):
    def make():
        model, inputs = getattr(models, request.param)()
        if request.param == "minimax_m2":
            model.set_experts_implementation("batched_mm")  # the usual one is torch.histc, which XLA refuses
        return model.requires_grad_(False), {"input_ids": inputs["input_ids"], "use_cache": False}

    return make


@pytest.fixture
def parts(build):
    """The model on the device, two inputs, and what is right for the second."""
    model, first = build()
    second = {**first, "input_ids": first["input_ids"].flip(-1)}
    with torch.no_grad(), lt.record(model, sites=SITES, keep="tensor") as rec:
        output = model(**second).logits
    sites = {str(site): rec.run[site].tensor() for site in rec.run.sites if site.role == "output"}
    return build()[0].to(torch_xla.device()), (first, second), output, sites


def there(inputs):
    return {**inputs, "input_ids": inputs["input_ids"].to(torch_xla.device())}


def close(mine, theirs):
    return torch.allclose(mine, theirs, atol=1e-4)


@pytest.mark.parametrize("backend", ["lazy", "openxla"])
def test_baked_taps_of_the_second_input(parts, backend):
    model, inputs, want, sites = parts
    tapped = lt.bake(model, sites=SITES)
    run = torch.compile(tapped, backend="openxla") if backend == "openxla" else tapped
    with torch.no_grad():
        for each in inputs:
            raw = run(**there(each))
            torch_xla.sync()
    output, taps = tapped.split([value.cpu() for value in raw])
    assert close(output.logits, want)
    assert set(map(str, taps)) == set(sites)
    assert all(close(taps[site], sites[site]) for site in sites)


@pytest.mark.parametrize("backend", ["lazy", "openxla"])
def test_recording_of_the_second_input(parts, backend):
    model, inputs, want, sites = parts
    run = torch.compile(model, backend="openxla") if backend == "openxla" else model
    with torch.no_grad(), lt.record(run, sites=SITES, keep="tensor") as rec:
        for each in inputs:
            output = run(**there(each)).logits
            torch_xla.sync()
            rec.step()
    assert rec.receipt.complete, str(rec.receipt)
    assert close(output.cpu(), want)
    assert all(close(rec.run[site].at(step=1).tensor(), sites[site]) for site in sites)
