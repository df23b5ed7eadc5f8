"""Every module's inputs and outputs of real models: no site without an explanation, and the model does not notice."""

import pytest
import torch

import layertap as lt
import models


def run(model, inputs):
    with torch.no_grad():
        return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


def tensors(output):
    return [leaf.tensor for leaf in lt.capture.leaves.leaves(output) if leaf.tensor is not None]


@pytest.mark.parametrize("family", models.ALL)
def test_every_module_is_recorded_or_explained(family, tmp_path):
    model, inputs = models.ALL[family]()
    bare = tensors(run(model, inputs))
    with lt.record(model, tmp_path / "run", sites="**", what=("input", "output"), keep="tensor") as rec:
        tapped = tensors(run(model, inputs))
    assert len(bare) == len(tapped)
    assert all(torch.equal(a, b) for a, b in zip(bare, tapped, strict=True))
    receipt = rec.receipt
    assert receipt.complete
    assert {site.path for site in receipt.sites} == {path for path, _ in model.named_modules()}
    assert all(site.why for site in receipt.silent)
    unexplained = [site for site in receipt.silent if "had no tensor" in site.why]
    assert not unexplained, unexplained
    run_back = lt.Run(tmp_path / "run")
    assert not run_back.partial
    for site in run_back.sites:
        assert run_back[site].verify()


def test_the_encoders_fast_path_stays_on_and_is_named():
    model, inputs = models.encoder()
    with lt.record(model, sites="**") as rec:
        run(model, inputs)
    silent = {site.path: site.why for site in rec.receipt.silent}
    assert "fused fast path" in silent["layers.0.linear1"]
    assert {site.path for site in rec.receipt.fired} >= {"layers.0", "layers.1", ""}


def test_a_recorded_layer_is_what_a_hook_sees():
    model, inputs = models.qwen3()
    seen = {}
    handles = [
        module.register_forward_hook(lambda m, a, out, name=name: seen.setdefault(name, out))
        for name, module in model.named_modules()
        if name.startswith("model.layers")
    ]
    with lt.record(model, sites="model.layers.**", keep="tensor") as rec:
        run(model, inputs)
    for handle in handles:
        handle.remove()
    compared = 0
    for name, value in seen.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(rec.run[name].tensor(), value), name
            compared += 1
    assert compared > 20


def test_generation_with_a_cache_counts_its_calls():
    model, inputs = models.qwen3()
    ids = inputs["input_ids"]
    bare = model.generate(ids, max_new_tokens=4, do_sample=False)
    with lt.record(model, sites="model.layers.0", what=("input", "output")) as rec:
        tapped = model.generate(ids, max_new_tokens=4, do_sample=False)
    assert torch.equal(bare, tapped)
    calls = {site.call for site in rec.run.sites}
    assert calls == {0, 1, 2, 3}
    assert any("past_key_values" in site.leaf for site in rec.run.sites if site.call == 1)


def test_quantised_weights_come_in_parts_or_are_named():
    pytest.importorskip("torchao")
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    model, inputs = models.llama()
    quantize_(model, Int8DynamicActivationInt8WeightConfig())
    bare = run(model, inputs).logits
    with lt.record(model, sites="**.q_proj", what=("param", "output"), keep="tensor") as rec:
        tapped = run(model, inputs).logits
    assert torch.equal(bare, tapped)
    leaves = {site.leaf for site in rec.run.sites if site.role == "param"}
    skipped = [site for site in rec.receipt.sites if site.role == "param" and site.skipped]
    assert skipped or any(run_dtype(rec, leaf) == "int8" for leaf in leaves)


def run_dtype(rec, leaf):
    return next(r.dtype for r in rec.run.records() if r.site.leaf == leaf)
