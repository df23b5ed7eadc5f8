"""Compiled files: real models, what each format does to them, and the files in which nothing can be seen."""

import json
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import layertap as lt
import models
from layertap import cli
from layertap.errors import BadArgument, TargetError
from layertap.targets import make_inputs
from targets.artefacts import SUFFIXES, inputs, make, net, opened, quiet


def recorded(target, given, **options):
    with torch.inference_mode(), lt.record(target, keep="tensor", **options) as rec:
        target.run(given) if hasattr(target, "run") else target(**given)
    return rec


@pytest.mark.parametrize(("name", "kind"), [*(("qwen3", kind) for kind in SUFFIXES), ("vit", "onnx")])
def test_a6_every_module_of_a_real_model_is_what_eager_gives_on_a_second_input(name, kind, tmp_path):
    model, given = models.ALL[name]()
    model.config.use_cache = False
    with torch.no_grad():
        for parameter in model.parameters():  # norms of ones would hide a lost weight
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    if name == "qwen3":
        given["attention_mask"] = torch.ones_like(given["input_ids"])
        second = {**given, "input_ids": given["input_ids"].flip(0) // 2 + 3}
    else:
        second = {"pixel_values": given["pixel_values"].flip(0) * 0.7}
    target = opened(make(kind, model, given, tmp_path / f"{name}{SUFFIXES[kind]}"))
    rec = recorded(target, second, sites="**")
    reference = recorded(model, second, sites="**")
    report = lt.diff(reference.run, rec.run)
    assert [(str(row.site), row.why) for row in report.rows if row.verdict not in ("identical", "noise")] == []
    blocks = [str(row.site) for row in report.rows if row.site.path.endswith((".0", ".1", ".2"))]
    assert len(blocks) >= model.config.num_hidden_layers
    if kind in ("torchscript", "exported"):
        assert report.verdict == "identical", report.reasons
        assert len(report.rows) == len(reference.run.sites)
    else:
        # What is not there is reported, by name: dropout without a node, rotary tables folded into constants.
        gone = {site.partition(":")[0].partition("@")[0] for _, site in report.unmatched}
        assert all("dropout" in path or "rotary" in path for path in gone), gone


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = nn.Linear(4, 4)
        self.odd = nn.Linear(4, 4)
        self.pair = Swapped()

    def forward(self, x: torch.Tensor, times: int) -> torch.Tensor:
        for number in range(times):
            x = self.step(x)
            if number % 2 == 1:
                x = self.odd(x)
        a, b = self.pair(x)
        return b.sin() * a


class Swapped(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, x - 1


def test_taps_inside_the_loops_and_branches_of_a_scripted_model(tmp_path):
    torch.manual_seed(0)
    model = Twice().eval()
    with quiet():
        torch.jit.script(model).save(tmp_path / "scripted.pt")
    target = lt.open_target(tmp_path / "scripted.pt")
    for times in (3, 5):
        given = (torch.randn(2, 4), times)
        rec = recorded(target, given, sites=["step", "odd", "pair"])
        with torch.inference_mode(), lt.record(model, sites=["step", "odd", "pair"], keep="tensor") as reference:
            model(*given)
        assert [str(site) for site in rec.run.sites] == [str(site) for site in reference.run.sites], (
            "a source keeps order"
        )
        for site in reference.run.sites:
            assert torch.equal(rec.run[site].tensor(), reference.run[site].tensor()), site


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"a": self.inner(x)}


def test_a_scripted_module_that_returns_a_dictionary_is_told_and_what_it_calls_is_seen(tmp_path):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.named = Named()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.named(x)["a"] + 1

    with quiet():
        torch.jit.script(Outer().eval()).save(tmp_path / "named.pt")
    rec = recorded(lt.open_target(tmp_path / "named.pt"), (torch.randn(2, 4),), sites="**")
    assert [str(site) for site in rec.run.sites] == ["named.inner", ":output"]
    assert "returns Dict[str, Tensor], of which no tensor can be tapped" in rec.receipt.silent[0].why


def test_a_trace_puts_outputs_in_order_of_use_and_we_in_order_of_computation(tmp_path):
    rec = recorded(opened(make("torchscript", net(), inputs(0), tmp_path / "net.pt")), inputs(2), sites="pair.*")
    both = recorded(lt.open_target(tmp_path / "net.pt"), inputs(2), sites="pair")
    assert torch.equal(both.run["pair:output.v0"].tensor(), rec.run["pair.one"].tensor())
    assert torch.equal(both.run["pair:output.v1"].tensor(), rec.run["pair.two"].tensor().tanh())


@pytest.mark.parametrize("strict", [True, False])
def test_a_program_that_was_exported_with_a_module_s_signature_keeps_what_it_returned(strict, tmp_path):
    with quiet():
        program = torch.export.export(net(), inputs(0), preserve_module_call_signature=("pair",), strict=strict)
        torch.export.save(program, tmp_path / "net.pt2")
    rec = recorded(lt.open_target(tmp_path / "net.pt2"), inputs(2), sites="pair")
    with torch.inference_mode(), lt.record(net(), sites="pair", keep="tensor") as reference:
        reference.model(*inputs(2))
    assert [str(site) for site in rec.run.sites] == ["pair:output.0", "pair:output.1"]
    for site in reference.run.sites:
        assert torch.equal(rec.run[site].tensor(), reference.run[site].tensor()), site
    assert not any(note.startswith("several outputs") for note in rec.receipt.notes)


def test_onnx_tells_a_module_that_the_exporter_merged_into_the_next(tmp_path):
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.ReLU(), nn.Linear(4, 4)).eval()
    path = make("onnx", model, (torch.randn(2, 4),), tmp_path / "fused.onnx")
    target = lt.open_target(path)
    assert "0" not in [site.path for site in target.sites]
    rec = recorded(target, (torch.randn(2, 4),), sites=["0", "2"])
    assert "merged into a later one by the exporter's rule" in rec.receipt.silent[0].why


def test_openvino_makes_one_of_a_module_s_weight_and_a_factor_after_it_and_that_is_told(tmp_path):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(6)

        def forward(self, x):
            return (self.norm(x) * 2).sin()

    model, given = Scaled().eval(), (torch.randn(3, 6),)
    nn.init.normal_(model.norm.weight)
    target = opened(make("openvino", model, given, tmp_path / "scaled.xml"))
    assert "norm" not in [site.path for site in target.sites]
    assert "merged into a later one by the exporter's rule LinOpSequenceFusion" in target.describe().lost["norm"]
    assert "folding: OpenVINO merges successive constant factors" in str(target.describe())


def test_onnx_runtime_without_optimisations_is_the_cross_check(tmp_path):
    target = opened(make("onnx", net(), inputs(0), tmp_path / "net.onnx"))
    rec = recorded(target, inputs(2), sites="blocks.*")
    assert any(note.startswith("ORT_DISABLE_ALL: ") for note in rec.receipt.notes)


def test_onnx_weights_that_lie_beside_the_file_stay_there(tmp_path):
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
    with quiet():
        made = torch.onnx.export(model, (torch.randn(2, 64),), dynamo=True, verbose=False)
        made.save(tmp_path / "large.onnx", external_data=True)
    assert (tmp_path / "large.onnx.data").exists()
    given = (torch.randn(2, 64),)
    rec = recorded(lt.open_target(tmp_path / "large.onnx"), given, sites="*")
    with torch.inference_mode():
        assert torch.allclose(rec.run["0"].tensor(), model[0](*given), atol=1e-5)


class Folded(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 4)
        self.register_buffer("places", torch.arange(5))

    def forward(self, x):
        return self.head(x + self.table(self.places))


@pytest.mark.parametrize("kind", ["exported", "openvino"])
def test_a_tap_that_no_input_reaches_is_called_constant(kind, tmp_path):
    target = opened(make(kind, Folded().eval(), (torch.randn(5, 4),), tmp_path / f"f{SUFFIXES[kind]}"))
    rec = recorded(target, (torch.randn(5, 4),), sites="**")
    if kind == "exported":
        assert any(note.startswith("constant: no input reaches table") for note in rec.receipt.notes)
    else:
        assert "table" not in [site.path for site in target.sites], "folded away, with its weight and its name"


def test_an_input_that_cannot_be_varied_leaves_freshness_untested(tmp_path):
    model = nn.Sequential(nn.Linear(1, 2)).eval()
    rec = recorded(opened(make("exported", model, (torch.ones(1),), tmp_path / "one.pt2")), (torch.ones(1),))
    assert any(note.startswith("freshness: not tested") for note in rec.receipt.notes)


def test_a_stale_capture_is_called_unmoved(tmp_path):
    class Stale(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.kept = nn.Linear(4, 4)

        def forward(self, x):
            if not hasattr(self, "old"):
                self.old = self.first(x).detach()  # what a thread-local list does while tracing
            return self.kept(self.old) + 0 * self.first(x)

    model = Stale().eval()
    model(torch.ones(2, 4))
    rec = recorded(opened(make("torchscript", model, (torch.ones(2, 4),), tmp_path / "s.pt")), (torch.randn(2, 4),))
    assert any(note.startswith("unmoved: kept gave the same values on a second input") for note in rec.receipt.notes)


# Files in which nothing can be seen.


def _frozen(path):
    with quiet():
        torch.jit.freeze(torch.jit.trace(net(), inputs(0))).save(path)


def _written(content):
    return lambda path: path.write_bytes(content)


def _aoti(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/archive_format", "pt2")
        archive.writestr("model/data/aotinductor/model/net.so", b"\x7fELF")


@pytest.mark.parametrize(
    ("name", "write", "what"),
    [
        (
            "frozen.pt",
            _frozen,
            "is frozen TorchScript: its layers are not visible, since freezing merged it",
        ),
        ("m.vmfb", _written(b"vm"), "is IREE bytecode: its layers are not visible"),
        ("m.neff", _written(b"neff"), r"is a Neuron executable \(NEFF\): its layers are not visible"),
        ("m.so", _written(b"\x7fELF"), r"is a shared library \(AOTInductor\)"),
        ("m.pt2", _aoti, "is a package of AOTInductor binaries: its layers are not visible"),
    ],
)
def test_a1_an_opaque_file_says_what_why_and_what_to_do_before_compiling(name, write, what, tmp_path):
    write(tmp_path / name)
    with pytest.raises(TargetError, match=what + r".*Before compiling: tapped = lt\.bake\(model"):
        lt.open_target(tmp_path / name)


def test_a1_torchscript_around_a_neuron_executable_is_told(tmp_path):
    # Such a file cannot be made here: its loader's own words stand in for it.
    from layertap.targets.opaque import foreign_device

    said = "Unknown type name '__torch__.torch.classes.neuron.Model':"
    assert "its layers are inside the NEFF" in str(foreign_device("model.pt", said))
    assert "neuron.prepare(neuron_config, sites)" in str(foreign_device("model.pt", said))


def test_a_checkpoint_is_no_program(tmp_path):
    torch.save(net().state_dict(), tmp_path / "weights.pt")
    with pytest.raises(
        TargetError, match=r"contains weights, or a pickled model \(torch.save\), not a program that can be run"
    ):
        lt.open_target(tmp_path / "weights.pt")
    (tmp_path / "broken.pt").write_bytes(b"no archive")
    with pytest.raises(TargetError, match=r"is not a file of torch\.jit\.save or torch\.export\.save"):
        lt.open_target(tmp_path / "broken.pt")
    with pytest.raises(TargetError, match="there is no file"):
        lt.open_target(tmp_path / "absent.pt2")


def test_onnx_without_module_paths_says_how_to_export(tmp_path):
    import onnx

    path = make("onnx", net(), inputs(0), tmp_path / "net.onnx")
    model = onnx.load(path)
    for node in model.graph.node:
        del node.metadata_props[:]
    onnx.save(model, tmp_path / "bare.onnx")
    target = lt.open_target(tmp_path / "bare.onnx")
    assert "have no module paths" in str(target.describe())
    assert "dynamo=True" in str(target.describe())


def test_config_is_for_openvino_alone(tmp_path):
    said = CliRunner().invoke(cli.app, ["record", "m.xml", "-o", "run", "--config", "f32"])
    assert "expected KEY=VALUE" in str(said.exception)
    with pytest.raises(BadArgument, match=r"is for OpenVINO's \.xml files"):
        lt.open_target(tmp_path / "m.onnx", config={"A": "b"})


OPERATOR = """
import torch

@torch.library.custom_op("layertap_test::{name}", mutates_args=())
def {name}(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@{name}.register_fake
def _(x):
    return torch.empty_like(x)
"""


def test_a_program_with_an_operator_of_its_own_names_it_and_the_command_line_imports_it(tmp_path):
    """Made, shown and recorded in processes of their own: what is registered stays for good."""
    (tmp_path / "their_ops.py").write_text(OPERATOR.format(name="twice"))
    (tmp_path / "make.py").write_text(
        "import their_ops, torch\n"
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)\n"
        "    def forward(self, x):\n"
        "        return self.two(torch.ops.layertap_test.twice(self.one(x)))\n"
        "torch.export.save(torch.export.export(Net().eval(), (torch.ones(2, 4),)), 'net.pt2')\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "make.py"], cwd=tmp_path, check=True)
    path = tmp_path / "net.pt2"
    target = lt.open_target(path)
    assert [site.path for site in target.sites] == ["", "one", "two"]
    assert "to run it, this is needed: the operator layertap_test::twice" in str(target.describe())
    with pytest.raises(TargetError, match="needs the operator layertap_test::twice, which is not registered"):
        target.run()
    call = [sys.executable, "-m", "layertap", "record", "net.pt2", "-o", "run", "--sites", "one"]
    refused = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "--import NAME" in refused.stderr
    absent = subprocess.run([*call, "--import", "no_such"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "--import no_such: ModuleNotFoundError" in absent.stderr
    done = subprocess.run([*call, "--import", "their_ops"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [str(site) for site in lt.Run(tmp_path / "run").sites][-1] == "one"
    show = [sys.executable, "-m", "layertap", "show", "net.pt2", "--import", "their_ops"]
    shown = subprocess.run(show, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (shown.returncode, "layertap_test::twice" in shown.stdout, "Linear" in shown.stdout) == (0, False, True)


def test_a_scripted_lstm_is_seen(tmp_path):
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(4, 3)
            self.head = nn.Linear(3, 2)

        def forward(self, x):
            out, _ = self.lstm(x)
            return self.head(out)

    model, args = Reader().eval(), (torch.randn(5, 4),)
    with quiet():
        torch.jit.script(model).save(tmp_path / "lstm.pt")
    target = lt.open_target(tmp_path / "lstm.pt")
    assert [site.path for site in target.sites] == ["", "lstm", "head"]
    rec = recorded(target, args, sites="**")
    with torch.inference_mode():
        out, (hidden, cell) = model.lstm(*args)
    for site, expected in (("lstm:output.0", out), ("lstm:output.1.0", hidden), ("lstm:output.1.1", cell)):
        torch.testing.assert_close(rec.run[site].tensor(), expected)


def test_checks_are_not_in_the_cost_line(tmp_path, monkeypatch):
    from layertap.targets import shadow

    real = shadow.check

    def slow(*args):
        time.sleep(1.0)
        return real(*args)

    monkeypatch.setattr(shadow, "check", slow)
    target = lt.open_target(make("exported", net(), inputs(0), tmp_path / "net.pt2"))
    target.run(inputs(1))
    began = time.perf_counter()
    rec = recorded(target, inputs(2), sites="head")
    passed = time.perf_counter() - began
    assert passed > 1.0
    assert rec.receipt.seconds <= passed - 1.0
    assert rec.receipt.overhead <= passed - 1.0
    assert any(note.startswith("checks: ") for note in rec.receipt.notes)


# What was baked before compiling.


def test_a4_a_frozen_file_with_baked_taps_shows_them(tmp_path):
    tapped = lt.bake(net(), sites=["blocks.*", "head"])
    with quiet():
        traced = torch.jit.freeze(torch.jit.trace(tapped, inputs(0)))
        torch.jit.save(traced, tmp_path / "frozen.pt")
    tapped.layout.save(tmp_path / "frozen.pt")
    target = lt.open_target(tmp_path / "frozen.pt")
    assert [str(site) for site in target.sites] == [":output", "blocks.0", "blocks.1", "blocks.2", "head"]
    rec = recorded(target, inputs(2), sites="**")
    with torch.inference_mode(), lt.record(net(), sites=["blocks.*", "head"], keep="tensor") as reference:
        reference.model(*inputs(2))
    for site in reference.run.sites:
        assert torch.equal(rec.run[site].tensor(), reference.run[site].tensor()), site
    assert any("freshness: on a second input 4 of 4" in note for note in rec.receipt.notes)
    assert any(note.startswith("baked: ") for note in rec.receipt.notes)


# The command line.


def call(*args, code=0):
    result = CliRunner().invoke(cli.app, [str(arg) for arg in args])
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


def test_record_show_and_diff_from_the_command_line(tmp_path):
    path = make("exported", net(), inputs(0), tmp_path / "net.pt2")
    np.savez(tmp_path / "x.npz", x=inputs(2)[0].numpy())
    text = call(
        "record", path, "--inputs", tmp_path / "x.npz", "-o", tmp_path / "a", "--sites", "blocks.*", "--keep", "tensor"
    )
    assert "observer drift: none" in text
    with torch.inference_mode(), lt.record(net(), tmp_path / "b", sites="blocks.*", keep="tensor") as rec:
        rec.model(x=inputs(2)[0])
    shown = json.loads(call("show", tmp_path / "a", "--json"))
    assert [row["site"] for row in shown["rows"]] == ["blocks.0", "blocks.1", "blocks.2", "blocks.0@1"]
    assert "freshness" in json.dumps(shown["receipt"]["notes"])
    assert "IDENTICAL" in call("diff", tmp_path / "b", tmp_path / "a")
    assert "net.pt2: torch.export Net" in call("show", path)


def test_inputs_that_came_with_the_file_are_used_and_others_are_asked_for(tmp_path):
    exported = opened(make("exported", net(), inputs(0), tmp_path / "net.pt2"))
    assert torch.equal(make_inputs(exported)[0], inputs(0)[0])
    traced = opened(make("onnx", net(), inputs(0), tmp_path / "net.onnx"))
    with pytest.raises(TargetError, match=r"no inputs to run it with; give an input file .* with x: float32\[3, 6\]"):
        make_inputs(traced)
    np.savez(tmp_path / "y.npz", y=inputs(2)[0].numpy())
    with pytest.raises(TargetError, match="has 'y', which Net does not take; it takes x"):
        make_inputs(traced, input=tmp_path / "y.npz")


def test_a_script_module_that_is_recorded_as_it_is_says_how_to_open_it():
    with quiet():
        scripted = torch.jit.trace(net(), inputs(0))
    with lt.record(scripted, sites=["", "blocks.1"]) as rec:
        scripted(*inputs(2))
    assert "open it: target = lt.open_target(model)" in rec.receipt.silent[0].why


def test_models_in_memory_are_targets_too():
    with quiet():
        scripted = torch.jit.trace(net(), inputs(0))
        program = torch.export.export(net(), inputs(0))
    for model in (scripted, program):
        target = lt.open_target(model)
        rec = recorded(target, inputs(2), sites="blocks.1")
        with torch.inference_mode(), lt.record(net(), sites="blocks.1", keep="tensor") as reference:
            reference.model(*inputs(2))
        assert torch.equal(rec.run["blocks.1"].tensor(), reference.run["blocks.1"].tensor())
    with pytest.raises(TargetError, match="a int is not a target"):
        lt.open_target(3)
    assert lt.open_target(program).describe().kind == "Net"


def test_a4_iree_bytecode_with_baked_taps_shows_them(tmp_path):
    """The nearest thing to a device's binary that runs here: nothing in it has a name."""
    aot = pytest.importorskip("iree.turbine.aot")
    compiler = pytest.importorskip("iree.compiler")
    tapped = lt.bake(net(), sites=["blocks.*", "pair"])
    with quiet():
        program = aot.export(torch.export.export(tapped, inputs(0)).run_decompositions())
        program.save_mlir(tmp_path / "net.mlir")
    binary = compiler.compile_file(
        str(tmp_path / "net.mlir"), target_backends=["llvm-cpu"], extra_args=["--iree-llvmcpu-target-cpu=host"]
    )
    (tmp_path / "net.vmfb").write_bytes(binary)
    with pytest.raises(TargetError, match="is IREE bytecode: its layers are not visible"):
        lt.open_target(tmp_path / "net.vmfb")
    tapped.layout.save(tmp_path / "net.vmfb")
    rec = recorded(lt.open_target(tmp_path / "net.vmfb"), inputs(2), sites="**")
    with torch.inference_mode(), lt.record(net(), sites=["blocks.*", "pair"], keep="tensor") as reference:
        reference.model(*inputs(2))
    for site in reference.run.sites:
        assert torch.allclose(rec.run[site].tensor(), reference.run[site].tensor(), atol=1e-5), site
    assert any("freshness: on a second input 4 of 4" in note for note in rec.receipt.notes)
