"""ONNX files whose nodes carry no module paths: of the older exporter, after optimisers, and after quantisers."""

import numpy as np
import pytest
import torch
from torch import nn

import layertap as lt
from literals import fixed_part
from targets.artefacts import quiet

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


class Block(nn.Module):
    """One activation is called twice; normalisations are folded into convolutions."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(8)

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(x + self.bn2(self.conv2(y)))


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layer1 = nn.Sequential(Block(), Block())
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(self.layer1(self.stem(x)).mean((2, 3)))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(2)
        )
        self.head = nn.Linear(16, 5, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def made(kind):
    torch.manual_seed(0)
    model = kind().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return model


def given(kind, seed):
    generator = torch.Generator().manual_seed(seed)
    if kind is Words:
        return (torch.randint(20, (2, 7), generator=generator),)
    return (torch.randn(2, 3, 8, 8, generator=generator).clamp(-2, 2),)  # within what a quantiser was shown


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """(model, exporter) → file."""
    folder = tmp_path_factory.mktemp("onnx")
    found = {}
    for kind in (Pictures, Words):
        for exporter in ("older", "dynamo"):
            path = found[kind, exporter] = folder / f"{kind.__name__}_{exporter}.onnx"
            names = {"input_names": ["x"], "output_names": ["y"]}
            with quiet():
                if exporter == "older":
                    torch.onnx.export(made(kind), given(kind, 0), path, dynamo=False, **names)
                else:
                    torch.onnx.export(made(kind), given(kind, 0), dynamo=True, verbose=False, **names).save(path)
    return found


def optimised(path, level):
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(path.with_suffix(f".{level}.onnx"))
    runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return path.with_suffix(f".{level}.onnx")


class Shown:
    """What a static quantiser is calibrated on."""

    def __init__(self, x):
        self._left = iter(
            [{"x": x.numpy()} for x in (x, x.clamp(-2, 2), torch.full_like(x, 2), torch.full_like(x, -2))]
        )

    def get_next(self):
        return next(self._left, None)


def quantised(path, how):
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

    out = path.with_suffix(f".{how}.onnx")
    with quiet():
        if how == "dynamic":
            quantize_dynamic(path, out, weight_type=QuantType.QUInt8)
        else:
            quantize_static(path, out, Shown(*given(Pictures, 0)), quant_format=QuantFormat[how])
    return out


def recorded(target, args):
    with torch.inference_mode(), lt.record(target, sites="**", keep="tensor") as rec:
        target.run(args) if hasattr(target, "run") else target(*args)
    return rec


def compared(kind, path):
    args = given(kind, 1)
    rec = recorded(lt.open_target(path), args)
    return rec, lt.diff(recorded(made(kind), args).run, rec.run)


@pytest.mark.parametrize("level", [None, "BASIC", "EXTENDED"])
@pytest.mark.parametrize("kind", [Pictures, Words])
def test_modules_are_known_by_the_names_that_the_older_exporter_gives(kind, level, files):
    path = files[kind, "older"]
    rec, report = compared(kind, optimised(path, level) if level else path)
    rows = {str(row.site): row for row in report.rows}
    assert {row.verdict for row in report.rows} <= {"identical", "noise"}, str(report)
    assert all(row.site == row.candidate_site for row in report.rows)
    if kind is Pictures:
        assert {"stem", "layer1", "layer1.0", "layer1.1.relu", "layer1.1.relu@1", "fc"} <= set(rows)
        silent = {site.path: site.why for site in rec.receipt.silent}
        assert (
            "the operation after it (a normalisation, an activation) was merged into its node,"
            in silent["layer1.0.conv1"]
        )
    elif level is None:
        assert {"embed", "blocks.0", "blocks.1.3", "head"} <= set(rows)
    assert any(note.startswith("names: modules are known only by the names of values") for note in rec.receipt.notes)


def test_the_path_above_a_container_is_known_from_weights(tmp_path):
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            inner = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Tanh())
            self.layers = nn.ModuleList([nn.ModuleDict({"a": nn.Linear(4, 4), "b": inner})])
            self.act_1 = nn.Tanh()

        def forward(self, x):
            return self.act_1(self.layers[0]["b"](self.layers[0]["a"](x))) * 2

    with quiet():
        torch.onnx.export(Nested().eval(), (torch.randn(2, 4),), tmp_path / "n.onnx", dynamo=False)
    paths = {site.path for site in lt.open_target(tmp_path / "n.onnx").sites}
    assert paths == {
        *("", "layers.0.a", "layers.0.b", "layers.0.b.0", "layers.0.b.0.0", "layers.0.b.0.1", "layers.0.b.1", "act_1"),
    }


def test_a_cast_of_a_module_s_input_to_its_own_dtype_is_no_output_of_the_module(tmp_path):
    class Norm(nn.Module):
        def forward(self, x):
            x = x.to(torch.float32)
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(4, 4), Norm(), nn.Linear(4, 4)

        def forward(self, x):
            x = self.first(x)
            return x + self.last(self.norm(x))

    torch.manual_seed(0)
    model, args = Residual().eval(), (torch.randn(2, 4),)
    with quiet():
        torch.onnx.export(model, args, tmp_path / "n.onnx", dynamo=False)
    proto = onnx.load(tmp_path / "n.onnx")
    # As larger models are written: the cast stays, and the residual reads it.
    (producer,) = (node.output[0] for node in proto.graph.node if node.name == "/first/Gemm")
    del proto.graph.value_info[:]
    if not any(node.op_type == "Cast" for node in proto.graph.node):
        at = next(place for place, node in enumerate(proto.graph.node) if node.name == "/first/Gemm") + 1
        for node in proto.graph.node:
            node.input[:] = ["/norm/Cast_output_0" if name == producer else name for name in node.input]
        cast = onnx.helper.make_node(
            "Cast", [producer], ["/norm/Cast_output_0"], "/norm/Cast", to=onnx.TensorProto.FLOAT
        )
        proto.graph.node.insert(at, cast)
    onnx.save(proto, tmp_path / "n.onnx")
    rec = recorded(lt.open_target(tmp_path / "n.onnx"), args)
    assert [str(site) for site in rec.run.sites if site.path == "norm"] == ["norm"]
    with torch.inference_mode():
        torch.testing.assert_close(rec.run["norm"].tensor(), model.norm(model.first(*args)))


def test_without_any_path_each_tensor_is_offered_by_its_own_name(files):
    target = lt.open_target(optimised(files[Pictures, "dynamo"], "EXTENDED"))
    assert {"conv2d", "relu", "y"} <= {site.path for site in target.sites}
    assert "nodes have no module paths" in str(target.describe())
    args = given(Pictures, 1)
    rec = recorded(target, args)
    model = made(Pictures)
    with torch.inference_mode():
        torch.testing.assert_close(rec.run["conv2d"].tensor(), model.stem(*args), rtol=1e-4, atol=1e-5)


CASES = [
    *((Pictures, exporter, how) for exporter in ("older", "dynamo") for how in ("QDQ", "QOperator")),
    *((Words, exporter, "dynamic") for exporter in ("older", "dynamo")),
]


@pytest.mark.parametrize(("kind", "exporter", "how"), CASES, ids=lambda one: getattr(one, "__name__", one))
def test_a_quantised_file_is_seen_in_floats(kind, exporter, how, files):
    path = quantised(files[kind, exporter], how)
    rec, report = compared(kind, path)
    assert {record.dtype for record in rec.run.records() if record.site.role == "output"} == {"float32"}
    assert not [row for row in report.rows if row.verdict == "fault"], str(report)
    by_tensor = exporter == "dynamo" and how == "QOperator"  # the quantiser drops the metadata of all that it makes
    assert all((row.site == row.candidate_site or by_tensor) and row.error < 0.1 for row in report.rows), str(report)
    assert any(note.startswith("quantised: ") for note in rec.receipt.notes)
    assert not any(fixed_part("trust.drift") in note for note in rec.receipt.notes)
    found = lt.find_fault(made(kind), lt.open_target(path), given(kind, 1))
    assert (found.verdict, found.cause) == ("noise", "quantization"), str(found)


def test_what_a_quantised_file_shows_of_each_module(files):
    rows = compared(Pictures, quantised(files[Pictures, "dynamo"], "QDQ"))[1].rows
    assert {"stem", "layer1.0.bn1", "layer1.0", "layer1.1", "layer1", "fc"} <= {str(row.site) for row in rows}
    rows = compared(Words, quantised(files[Words, "dynamo"], "dynamic"))[1].rows
    assert {"embed", "blocks.0.0", "blocks.0.1", "blocks.1.3"} <= {str(row.site) for row in rows}


@pytest.mark.parametrize("exporter", ["older", "dynamo"])
def test_the_wrong_layer_of_a_quantised_file(exporter, files):
    wrong = made(Words)
    with torch.no_grad():
        wrong.blocks[1][1].weight.mul_(-1)
    found = lt.find_fault(wrong, lt.open_target(quantised(files[Words, exporter], "dynamic")), given(Words, 1))
    assert (found.verdict, found.site) == ("fault", "blocks.1.1")


def test_a_tapped_quantised_file_is_saved(files, tmp_path):
    target = lt.open_target(quantised(files[Pictures, "older"], "QOperator"))
    target.save(tmp_path / "tapped.onnx", "stem")
    session = runtime.InferenceSession(str(tmp_path / "tapped.onnx"), providers=["CPUExecutionProvider"])
    (x,) = given(Pictures, 1)
    _, stem = session.run(None, {"x": x.numpy()})
    assert stem.dtype == np.float32
    with torch.inference_mode():
        assert np.abs(stem - made(Pictures).stem(x).numpy()).max() < 0.1
