"""Neuron's adapter, on a stand-in app (see neuron_app.py): never run on the hardware itself."""

import importlib.util
import inspect
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import layertap as lt
from layertap import cli
from layertap.errors import BadArgument, MissingExtra, NothingCaptured, TargetError
from layertap.targets import neuron
from layertap.targets.neuron import decode, prepare, to_hf, to_neuron
from targets.neuron_app import CLASSES, NeuronConfig, NeuronTinyForCausalLM, decoder, ids


def app_of(folder, sites=None, layers=4, **options):
    config = NeuronConfig(tp_degree=options.pop("tp_degree", 1))
    prepare(config, sites, num_layers=layers, classes=CLASSES, **options)
    return NeuronTinyForCausalLM(decoder(layers), config, folder)


def reference(given, sites):
    model = decoder()
    with torch.inference_mode(), lt.record(model, sites=sites, keep="tensor") as rec:
        model(input_ids=given)
    return rec.run


def test_importing_the_adapter_imports_no_neuronx():
    script = "import sys, layertap.targets.neuron\nassert not [m for m in sys.modules if 'neuronx' in m]"
    subprocess.run([sys.executable, "-c", script], check=True)


# Before compiling.


def test_b1_the_switch_sets_the_three_fields_that_only_work_together():
    config = NeuronConfig()
    plan = prepare(config, record_layer_outputs=True, num_layers=62, classes=CLASSES)
    names = config.tensor_capture_config.modules_to_capture
    assert names == ["embed_tokens", *(f"layers.{number}" for number in range(62))]
    assert len(names) == 63
    assert config.output_logits is True
    assert isinstance(config.on_device_sampling_config, CLASSES.OnDeviceSamplingConfig)
    assert "63 modules will be captured; compile now" in str(plan)
    assert "sampling was off; it is on now" in str(plan)


def test_b1_off_leaves_the_configuration_as_it_was():
    config = NeuronConfig()
    before = dict(vars(config))
    assert "costs nothing" in str(prepare(config))
    assert vars(config) == before


def test_b5_some_layers_by_their_true_names():
    config = NeuronConfig(tp_degree=64, enable_bucketing=True)
    plan = prepare(config, ["model.layers.[0,30,61]", "model.norm", "lm_head"], classes=CLASSES)
    assert plan.modules == ("layers.0", "layers.30", "layers.61", "norm", "lm_head")
    assert any("only the first bucket's captures are real" in note for note in plan.notes)
    assert any("rank 0's shard" in note for note in plan.notes)
    assert prepare(config, "model.layers.*.mlp", model=decoder(2), classes=CLASSES).modules == (
        "layers.0.mlp",
        "layers.1.mlp",
    )
    with pytest.raises(BadArgument, match="needs num_layers="):
        prepare(config, "model.layers.*", classes=CLASSES)
    with pytest.raises(BadArgument, match="record_layer_outputs=True needs num_layers="):
        prepare(config, record_layer_outputs=True, classes=CLASSES)


@pytest.mark.skipif(importlib.util.find_spec("neuronx_distributed_inference") is not None, reason="neuronx is here")
def test_without_neuronx_it_says_what_to_install():
    with pytest.raises(MissingExtra, match="neuronx-distributed-inference"):
        prepare(NeuronConfig(), "model.norm")


@pytest.mark.parametrize(
    "path", ["model.embed_tokens", "model.layers.3", "model.layers.3.mlp.gate", "model.norm", "lm_head"]
)
def test_names_there_and_back(path):
    assert to_hf(to_neuron(path)) == path


# One call.


def test_a3_captures_become_sites_with_right_values_cut_to_the_true_length(tmp_path):
    app = app_of(tmp_path, ["model.norm", "lm_head"], record_layer_outputs=True)
    given = {"input_ids": ids(1), "attention_mask": torch.ones(1, 11, dtype=torch.long)}
    found = neuron.run(app, given, tmp_path / "device")
    sites = ["model.embed_tokens", "model.layers.*", "model.norm", "lm_head"]
    run = reference(ids(1), sites)
    for site in run.sites:
        assert torch.allclose(found.run[site].tensor(), run[site].tensor(), atol=1e-6), site
    assert found.run["model.layers.0"].record.shape == (1, 11, 8)
    notes = "\n".join(found.receipt.notes)
    assert "model.layers.2 and 3 more: padded to 16 tokens, cut to the true 11" in notes
    assert "freshness: on a second input 7 of 7 captures change" in notes
    assert found.decoded.padding == 2
    assert {row.verdict for row in lt.diff(run, found.run).rows} <= {"identical", "noise"}
    assert lt.Run(tmp_path / "device").info["artefact"] == "NxD Inference"


def test_a_placeholder_is_no_capture(tmp_path):
    app = app_of(tmp_path, ["model.layers.[0,99]"])
    found = neuron.run(app, {"input_ids": ids(1)})
    assert [site.path for site in found.receipt.silent if "placeholder" in site.why] == ["model.layers.99"]
    assert "zeros(1): the module was never hit (is its name right?)" in str(found.receipt)
    assert "model.layers.99" not in [site.path for site in found.run.sites]


def test_a_shard_of_rank_0_is_told(tmp_path):
    app = app_of(tmp_path, ["model.layers.0.mlp", "model.layers.0"], tp_degree=2)
    found = neuron.run(app, {"input_ids": ids(1)})
    assert any("model.layers.0.mlp: " in note and "rank 0's shard, 1 of 2" in note for note in found.receipt.notes)
    assert not any(note.startswith("model.layers.0: ") and "shard" in note for note in found.receipt.notes)


def test_a5_logits_that_are_none_are_explained_and_captures_that_are_none_are_an_error(tmp_path):
    app = app_of(tmp_path, "model.layers.0")
    app.neuron_config.output_logits = False
    with pytest.raises(NothingCaptured, match="output_logits=True and an on_device_sampling_config together"):
        neuron.run(app, {"input_ids": ids(1)})
    # A stack that hands out captures without logits: then the None is explained.
    captured = [torch.ones(1, 11, 8)]
    app.forward = lambda *args, tensor_capture_hook=None, **kwargs: (
        tensor_capture_hook(app, captured),
        type("Output", (), {"logits": None})(),
    )[1]
    app._layertap_attached = False
    found = neuron.run(app, {"input_ids": ids(1)})
    assert any(note.startswith("logits: None. With sampling on the device") for note in found.receipt.notes)
    assert any(note.startswith("unmoved: model.layers.0") for note in found.receipt.notes), (
        "and stale captures are told"
    )


def test_a1_an_app_that_captures_nothing_says_what_can_be_seen(tmp_path):
    app = NeuronTinyForCausalLM(decoder(), NeuronConfig(), tmp_path)
    with pytest.raises(TargetError, match=r"models\[0\]\.model is a RecursiveScriptModule without layers.*prepare\("):
        neuron.run(app, {"input_ids": ids(1)})


def test_an_app_is_a_target(tmp_path):
    target = lt.open_target(app_of(tmp_path, record_layer_outputs=True))
    assert [str(site) for site in target.sites] == [
        ":output",
        "model.embed_tokens",
        *(f"model.layers.{n}" for n in range(4)),
    ]
    assert "NxD Inference NeuronTinyForCausalLM" in str(target.describe())
    with lt.record(target, sites="model.layers.[1,3]") as rec:
        target.run({"input_ids": ids(1)})
    assert [str(site) for site in rec.run.sites] == ["model.layers.1", "model.layers.3"]
    with pytest.raises(TargetError, match="fixed when it is compiled"):
        target.save(tmp_path / "x", "model.layers.1")


# The documented helper.


def test_b2_63_hidden_states_for_62_layers_of_this_call_and_no_other(tmp_path):
    app = app_of(tmp_path, record_layer_outputs=True, layers=62)
    neuron.open_app(app)
    states = []
    for seed in (1, 2):
        output = app(input_ids=ids(seed))
        assert output.logits.shape == (1, 11, 64), "the app's own output is what it was"
        states.append(neuron.get_layer_hidden_states())
    for seed, found in zip((1, 2), states, strict=True):
        assert len(found) == 63
        model = decoder(62)
        x = model.model.embed_tokens(ids(seed))
        assert torch.equal(found[0], x)
        for number, layer in enumerate(model.model.layers):
            x = layer(x)
            assert torch.allclose(found[number + 1], x, atol=1e-5), number
    assert not torch.equal(states[0][62], states[1][62])


def test_b2_an_error_rather_than_the_states_of_an_older_call(tmp_path):
    app = app_of(tmp_path, record_layer_outputs=True)
    neuron.open_app(app)
    with pytest.raises(NothingCaptured, match="no call of an app was listened to"):
        neuron.get_layer_hidden_states(app)
    app(input_ids=ids(1))
    assert len(neuron.get_layer_hidden_states(app)) == 5
    with pytest.raises(RuntimeError):
        app(input_ids=torch.full((1, 11), 999))
    with pytest.raises(NothingCaptured, match="last call did not end"):
        neuron.get_layer_hidden_states(app)
    app.neuron_config.on_device_sampling_config = None
    app(input_ids=ids(1))
    with pytest.raises(NothingCaptured, match="the device handed out no captures"):
        neuron.get_layer_hidden_states(app)


def test_b2_a_list_with_holes_is_refused(tmp_path):
    app = app_of(tmp_path, "model.layers.[0,2]")
    neuron.open_app(app)
    app(input_ids=ids(1))
    with pytest.raises(
        NothingCaptured, match=r"3 of the 5 hidden states were not captured: model.embed_tokens \(not asked for\)"
    ):
        neuron.get_layer_hidden_states()


# Decoding alone.


def test_decoding_is_a_pure_function_of_the_tensors():
    nan = torch.full((1,), float("nan"))
    tensors = [torch.ones(1, 4, 2), torch.zeros(1, 4, 2), torch.zeros(1), torch.ones(2, 3), nan, nan]
    found = decode(tensors, ["layers.0", "layers.1"], capture_inputs=True, span=(1, 3))
    assert [str(site) for site in found.captures] == ["model.layers.0", "model.layers.0:input", "model.layers.1:input"]
    assert found.captures["model.layers.0"].shape == (1, 2, 2), "left padding is cut too"
    assert "placeholder" in found.lost["model.layers.1"]
    assert found.padding == 2
    assert found.manual == []
    assert len(decode([torch.ones(1, 2, 2)], ["layers.0", "layers.1"]).lost) == 1
    sharded = decode(
        [torch.ones(1, 4, 2)], ["layers.0"], tp_degree=4, shapes={lt.Site(path="model.layers.0"): (1, 16, 2)}
    )
    assert "1 of 4 along axis 1" in sharded.notes["model.layers.0"], "sequence parallelism shards the tokens"


# A folder that NxD Inference's own hook wrote.


def test_a_capture_folder_is_read_and_compared_by_name(tmp_path):
    run = reference(ids(1), ["model.embed_tokens", "model.layers.*", "model.norm"])
    folder = tmp_path / "captured"
    folder.mkdir()
    for site in run.sites:
        tensor = run[site].tensor()
        if str(site) == "model.layers.2":
            tensor = tensor * 1.5
        torch.save(tensor, folder / f"captured_tensors_cte_step_1_module_{to_neuron(site.path)}_output.pt")
    torch.save(torch.zeros(1), folder / "captured_tensors_cte_step_1_module_layers.9_output.pt")
    torch.save(torch.ones(2), folder / "captured_tensors_cte_step_1_manual_tensor_0.pt")
    (folder / "capture_metadata.json").write_text("{}")
    device = neuron.read_neuron(folder)
    assert [str(site) for site in device.sites] == [str(site) for site in run.sites]
    assert any("layers.9" in text and "placeholder" in text for text in device.problems)
    assert any("registered by hand" in text for text in device.problems)
    report = lt.diff(run, device)
    assert str(next(row for row in report.rows if row.verdict == "fault").site) == "model.layers.2"
    shown = CliRunner().invoke(cli.app, ["export", str(folder), "-o", str(tmp_path / "out"), "--layout", "layers"])
    assert shown.exit_code == 0, shown.output


# Where neuronx is installed, and only there.


def test_the_classes_and_signatures_are_those_that_we_set():
    config = pytest.importorskip("neuronx_distributed_inference.models.config")
    capture = config.TensorCaptureConfig(modules_to_capture=["layers.0"], capture_inputs=True)
    assert capture.modules_to_capture == ["layers.0"]
    made = config.NeuronConfig(batch_size=1, seq_len=32, tp_degree=1)
    prepare(made, "model.layers.0")
    assert made.tensor_capture_config.modules_to_capture == ["layers.0"]
    assert made.output_logits
    base = pytest.importorskip("neuronx_distributed_inference.models.model_base")
    assert "tensor_capture_hook" in inspect.signature(base.NeuronBaseForCausalLM.forward).parameters
