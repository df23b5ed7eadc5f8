"""Float32 outside, something coarser within: real cases of OpenVINO's, and that nothing else is called so."""

import copy

import pytest
import torch
from torch import nn

import layertap as lt
import models
from layertap.artefact import ArtefactState
from literals import fixed_part
from targets.artefacts import inputs, net, quiet

SITES = ["model.embed_tokens", "model.layers.*", "model.norm", "lm_head"]


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A model, its IR in float32, and a second input with what eager gives for it."""
    openvino = pytest.importorskip("openvino")
    model, given = models.qwen3(layers=4)
    model.config.use_cache = False
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    with quiet():
        made = openvino.convert_model(model, example_input=given)
    given["input_ids"] = given["input_ids"].flip(1)
    return openvino, made, tmp_path_factory.mktemp("ir"), given, eager(model, given)


def eager(model, given):
    with torch.inference_mode(), lt.record(model, sites=SITES, keep="tensor") as rec:
        model(**given)
    return rec.run


def opened(path, given, config=None):
    target = lt.open_target(path, config=config)
    with lt.record(target, sites=SITES, keep="tensor") as rec:
        target.run(given)
    return rec


def test_openvino_saves_weights_as_float16_unless_told_otherwise(case):
    openvino, made, folder, given, reference = case
    openvino.save_model(made, folder / "default.xml")
    openvino.save_model(made, folder / "float32.xml", compress_to_fp16=False)
    exactly = {"INFERENCE_PRECISION_HINT": "f32"}  # some CPUs would compute in bfloat16 besides
    report = lt.diff(reference, opened(folder / "default.xml", given, exactly).run)
    assert report.cause == "precision"
    assert "the error has the size of float16 rounding, although the tensors are float32" in str(report)
    assert "the candidate's parameters are float16, the reference's are not" in str(report)
    clean = lt.diff(reference, opened(folder / "float32.xml", given, exactly).run)
    assert (clean.verdict, clean.cause) == ("noise", "")


def test_openvino_computes_in_bfloat16_where_the_cpu_has_it(case):
    openvino, made, folder, given, reference = case
    core = openvino.Core()
    if "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("this CPU has no bf16; the next test emulates it")
    openvino.save_model(made, folder / "float32.xml", compress_to_fp16=False)
    rec = opened(folder / "float32.xml", given)
    notes = rec.receipt.notes
    assert any(note.startswith("precision: OpenVINO computes ") and "operations in bf16" in note for note in notes)
    assert not any(fixed_part("trust.drift") in note for note in notes), "bfloat16 explains what taps do"
    report = lt.diff(reference, rec.run)
    assert report.verdict == "fault"
    assert report.cause == "precision"
    assert "the candidate's runtime reports that it computes in bfloat16" in report.notes[0]
    model, _ = models.qwen3(layers=4)
    model.config.use_cache = False
    found = lt.find_fault(model, lt.open_target(folder / "float32.xml"), given)
    assert (found.verdict, found.cause) == ("fault", "precision")
    assert 1e-3 < found.total < 1e-2
    exact = opened(folder / "float32.xml", given, {"INFERENCE_PRECISION_HINT": "f32"})
    assert lt.diff(reference, exact.run).verdict == "noise"


def test_bfloat16_within_is_called_precision(case):
    """What such a CPU does, done in the graph: the weights, and what enters each matrix product, are rounded."""
    openvino, made, folder, given, reference = case
    ops = openvino.opset13
    openvino.save_model(made, folder / "plain.xml", compress_to_fp16=False)
    model = openvino.Core().read_model(folder / "plain.xml")
    for op in model.get_ordered_ops():
        if op.get_type_name() == "Constant" and op.get_element_type().get_type_name() == "f32":
            constant = ops.constant(torch.from_numpy(op.data.copy()).bfloat16().float().numpy())
            constant.set_friendly_name(op.get_friendly_name())
            for port in op.output(0).get_target_inputs():
                port.replace_source_output(constant.output(0))
        if op.get_type_name() == "MatMul":
            for port in op.inputs():
                rounded = ops.convert(ops.convert(port.get_source_output(), "bf16"), "f32")
                port.replace_source_output(rounded.output(0))
    openvino.save_model(model, folder / "bf16.xml", compress_to_fp16=False)
    rec = opened(folder / "bf16.xml", given, {"INFERENCE_PRECISION_HINT": "f32"})
    assert not {"bfloat16", "float16"} & set(rec.run.info["parameter_dtypes"]), "nothing in the file says it"
    report = lt.diff(reference, rec.run)
    assert report.verdict == "fault", "float32 does not explain it"
    assert report.cause == "precision"
    assert "has the size of bfloat16 rounding, although the tensors are float32" in report.notes[0]
    assert "every value of the candidate's model.embed_tokens can be represented in bfloat16" in report.notes[0]


def test_a_hint_that_the_cpu_does_not_follow_is_told(case):
    openvino, made, folder, given, _ = case
    if "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("this CPU follows it")
    openvino.save_model(made, folder / "hint.xml", compress_to_fp16=False)
    rec = opened(folder / "hint.xml", given, {"INFERENCE_PRECISION_HINT": "bf16"})
    assert "precision: bf16 was requested, but on this CPU OpenVINO computes in f32" in rec.receipt.notes


@pytest.mark.parametrize(
    "break_it",
    [
        lambda model: model.model.embed_tokens.weight.mul_(1.005),
        lambda model: model.model.layers[0].self_attn.o_proj.weight.mul_(1.01),
        lambda model: model.model.embed_tokens.weight[:, 3].add_(0.001),
        lambda model: model.model.layers[2].mlp.down_proj.weight.mul_(0.9),
    ],
    ids=["all is scaled", "the first layer is scaled", "one channel", "a later layer"],
)
def test_other_faults_are_not_called_precision(break_it, case):
    given, reference = case[3], case[4]
    model, _ = models.qwen3(layers=4)
    model.config.use_cache = False
    broken = copy.deepcopy(model)
    with torch.no_grad():
        break_it(broken)
    report = lt.diff(reference, eager(broken, given))
    assert report.verdict == "fault"
    assert report.cause == ""


def test_an_honest_bfloat16_run_is_not_called_silent(case):
    given, reference = case[3], case[4]
    model, _ = models.qwen3(layers=4)
    model.config.use_cache = False
    report = lt.diff(reference, eager(model.bfloat16(), given))
    assert report.cause == ""


@pytest.mark.parametrize("says_so", [True, False])
def test_the_word_of_a_runtime_is_proof(case, says_so):
    given, reference = case[3], case[4]
    model, _ = models.qwen3(layers=4)
    model.config.use_cache = False
    if says_so:
        model.layertap_artefact = ArtefactState(computes_in={"bfloat16"})
    recording = lt.record(model, sites=SITES[:-1], keep="tensor")
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), recording as rec:
        model(**given)
    report = lt.diff(reference, rec.run)
    assert report.verdict == "fault"
    assert report.cause == ("precision" if says_so else "")
    proof = "the candidate's runtime reports that it computes in bfloat16" if says_so else "this is not proven"
    assert proof in report.notes[0]


@pytest.fixture(scope="module")
def baked(tmp_path_factory):
    """The same baked network, its weights kept in float32 and, as OpenVINO does by default, in float16."""
    openvino = pytest.importorskip("openvino")
    tapped = lt.bake(net(), sites="**")
    folder = tmp_path_factory.mktemp("baked")
    with quiet():
        made = openvino.convert_model(tapped, example_input=inputs(0))
    for name, half in (("float32", False), ("float16", True)):
        openvino.save_model(made, folder / f"{name}.xml", compress_to_fp16=half)
        tapped.layout.save(folder / f"{name}.xml")
    return folder


def recorded(model, target=None):
    with torch.inference_mode(), lt.record(target or model, sites="**", keep="tensor") as rec:
        (target.run if target else model)(inputs(2) if target else inputs(2)[0])
    return rec


def test_a_baked_file_says_what_its_runtime_computes_in(baked, monkeypatch):
    from layertap.targets import openvino_ir

    note = "precision: OpenVINO computes 9 operations in bf16"
    monkeypatch.setattr(openvino_ir, "computed_in", lambda compiled, config: (frozenset({"bfloat16"}), [note]))
    rec = recorded(net(), lt.open_target(baked / "float32.xml"))
    assert rec.run.info["computes_in"] == ["bfloat16"]
    assert note in rec.receipt.notes


def test_a_baked_file_in_bfloat16_is_silent_precision_where_the_cpu_has_it(baked):
    import openvino

    if "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("this CPU has no bf16; the test before this one has the runtime's word alone")
    target = lt.open_target(baked / "float32.xml")
    report = lt.diff(recorded(net()).run, recorded(net(), target).run)
    assert (report.verdict, report.cause) == ("fault", "precision")
    assert "the candidate's runtime reports that it computes in bfloat16" in report.notes[0]
    found = lt.find_fault(net(), target, inputs(2))
    assert (found.verdict, found.cause) == ("fault", "precision")
    exact = lt.open_target(baked / "float32.xml", config={"INFERENCE_PRECISION_HINT": "f32"})
    assert lt.diff(recorded(net()).run, recorded(net(), exact).run).verdict == "noise"


def test_the_dtype_of_a_baked_file_s_weights_is_known(baked):
    exactly = {"INFERENCE_PRECISION_HINT": "f32"}
    half = recorded(net(), lt.open_target(baked / "float16.xml", config=exactly))
    assert half.run.info["parameter_dtypes"] == ["float16"]
    assert not [row for row in lt.diff(recorded(net()).run, half.run).rows if row.verdict == "fault"]


def test_what_is_beyond_the_rounding_of_the_runtime_s_dtype_is_the_first_departure(case):
    given, reference = case[3], case[4]
    runs = []
    for broken in (False, True):
        model, _ = models.qwen3(layers=4)
        model.config.use_cache = False
        model.layertap_artefact = ArtefactState(computes_in={"bfloat16"})
        if broken:
            with torch.no_grad():
                model.model.layers[2].mlp.down_proj.weight.mul_(-200)
        recording = lt.record(model, sites=SITES[:-1], keep="tensor")
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), recording as rec:
            model(**given)
        runs.append(rec.run)
    report = lt.diff(reference, runs[1])
    assert (report.verdict, report.cause, str(report.first.site)) == ("fault", "", "model.layers.2")
    assert "that explains part of the errors" in report.notes[0]
    both = lt.diff(*runs)
    assert (both.verdict, str(both.first.site)) == ("fault", "model.layers.2"), "both compute in bfloat16"


class Deep(nn.Module):
    """Layers that lie beside each other, so that their roundings do not add up."""

    def __init__(self, rounded):
        super().__init__()
        self.rounded = rounded
        self.layers = nn.ModuleList(nn.Identity() for _ in range(30))

    def forward(self, x):
        return sum(
            layer((x * (n + 1)).bfloat16().float() if self.rounded else x * (n + 1))
            for n, layer in enumerate(self.layers)
        )


def test_where_float16_and_bfloat16_both_fit_bfloat16_is_meant():
    runs = []
    for rounded in (False, True):
        with lt.record(Deep(rounded), sites="layers.*", keep="tensor") as rec:
            rec.model(torch.rand(16, 16, generator=torch.Generator().manual_seed(0)) + 0.5)
        runs.append(rec.run)
    report = lt.diff(*runs)
    assert report.cause == "precision"
    assert "can be represented in bfloat16" in report.notes[0]
    assert "the size of bfloat16 rounding" in report.notes[0]
