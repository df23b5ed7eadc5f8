"""Quantised ONNX: what rounding does to modules without weights, to values that are only moved, and to merged ones."""

import pytest
import torch
from torch import nn

import layertap as lt
from layertap.result import code_of
from targets.artefacts import quiet

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


class Gated(nn.Module):
    """Modules without weights, of several operations and of one that only moves elements."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 1)
        self.gate = nn.SiLU()
        self.pool = nn.MaxPool2d(2)
        self.last = nn.Linear(8, 5)
        self.sig = nn.Sigmoid()

    def forward(self, x):
        return self.sig(self.last(self.pool(self.gate(self.first(x))).mean((2, 3))))


class Merged(nn.Module):
    """A normalisation that goes into the convolution, and an activation that rounding replaces."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU()

    def forward(self, x):
        return self.relu(self.bn(self.conv(x))).mean((2, 3))


class Shown:
    def __init__(self, x):
        self._left = iter([{"x": x.numpy()}])

    def get_next(self):
        return next(self._left, None)


def quantised(model, x, folder, exporter, how, optimise=False):
    from onnxruntime.quantization import QuantFormat, quantize_static

    path, out = folder / "float.onnx", folder / "quantised.onnx"
    names = {"input_names": ["x"], "output_names": ["y"]}
    with quiet():
        if exporter == "older":
            torch.onnx.export(model, (x,), path, dynamo=False, **names)
        else:
            torch.onnx.export(model, (x,), dynamo=True, verbose=False, **names).save(path)
        quantize_static(path, out, Shown(x), quant_format=QuantFormat[how])
    if optimise:
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(folder / "optimised.onnx")
        runtime.InferenceSession(str(out), options, providers=["CPUExecutionProvider"])
        out = folder / "optimised.onnx"
    return out


def recorded(target, x):
    with torch.inference_mode(), lt.record(target, sites="**", keep="tensor") as rec:
        target.run((x,)) if hasattr(target, "run") else target(x)
    return rec


def made(kind):
    torch.manual_seed(0)
    return kind().eval(), torch.randn(2, 3, 8, 8)


@pytest.mark.parametrize("optimise", [False, True])
@pytest.mark.parametrize("how", ["QDQ", "QOperator"])
@pytest.mark.parametrize("exporter", ["older", "dynamo"])
def test_no_integers_are_shown_as_floats(exporter, how, optimise, tmp_path):
    model, x = made(Gated)
    rec = recorded(lt.open_target(quantised(model, x, tmp_path, exporter, how, optimise)), x)
    report = lt.diff(recorded(model, x).run, rec.run)
    assert report.verdict != "fault", str(report)
    assert {record.dtype for record in rec.run.records() if record.site.role == "output"} == {"float32"}
    assert len(report.rows) >= 2


@pytest.mark.parametrize("how", ["QDQ", "QOperator"])
def test_a_module_without_weights_is_called_once_although_its_scales_are_read_twice(how, tmp_path):
    model, x = made(Gated)
    exporter = "dynamo" if how == "QDQ" else "older"
    rec = recorded(lt.open_target(quantised(model, x, tmp_path, exporter, how)), x)
    assert [str(site) for site in rec.run.sites] == ["first", "gate", "pool", "last", "sig", ":output"]
    floats = recorded(model, x).run
    for site in ("gate", "pool", "sig"):
        torch.testing.assert_close(rec.run[site].tensor(), floats[site].tensor(), rtol=0, atol=0.05)


def test_what_a_quantiser_took_out_is_in_the_receipt(tmp_path):
    model, x = made(Merged)
    rec = recorded(lt.open_target(quantised(model, x, tmp_path, "dynamo", "QDQ")), x)
    assert {site.path: code_of(site.why) for site in rec.receipt.silent} == {"conv": "scopes.gone"}
    assert "onnx.rounded_activation" in {code_of(note) for note in rec.receipt.notes}


class Hidden(nn.Module):
    """An activation between two convolutions, of which nothing is left once both are quantised."""

    def __init__(self):
        super().__init__()
        self.one, self.act, self.two = nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 1)

    def forward(self, x):
        return self.two(self.act(self.one(x))).mean((2, 3))


def test_a_module_whose_activation_is_in_its_rounding_is_not_shown(tmp_path):
    model, x = made(Hidden)
    rec = recorded(lt.open_target(quantised(model, x, tmp_path, "older", "QOperator")), x)
    assert {site.path: code_of(site.why) for site in rec.receipt.silent} == {"one": "onnx.merged_after"}
    assert "two" in {site.path for site in rec.run.sites}


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x):
        return self.act(self.up(x))


class Twice(nn.Module):
    """One container is called twice, one contains a module that is."""

    def __init__(self):
        super().__init__()
        self.shared, self.act, self.last = Inner(), nn.Tanh(), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, x):
        return self.last(self.act(self.shared(self.act(self.shared(x)))))


def test_a_container_that_may_be_called_twice_is_not_shown_as_one_call(tmp_path):
    model, x = made(Twice)[0], torch.randn(2, 4)
    with quiet():
        torch.onnx.export(model, (x,), tmp_path / "twice.onnx", dynamo=False, input_names=["x"])
    rec = recorded(lt.open_target(tmp_path / "twice.onnx"), x)
    report = lt.diff(recorded(model, x).run, rec.run)
    assert report.verdict != "fault", str(report)
    assert {site.path: code_of(site.why) for site in rec.receipt.silent} == {"shared": "scopes.ambiguous"}
    assert {"shared.up", "shared.up@1", "act@1", "last"} <= {str(site) for site in rec.run.sites}
