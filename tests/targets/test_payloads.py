"""Files that would run a program if they were opened carelessly: each tries to create a file, and none may appear.

Showing, planning and comparing read an archive and never its program; what is a pickle is refused.
"""

import io
import json
import os
import pickle
import shutil
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import layertap as lt
from layertap import cli
from layertap.errors import LayertapError, TargetError
from layertap.store import Layout
from layertap.store.layout import Fields, TapPlace
from layertap.weights import load_pruned
from layertap.weights.sources import open_weights
from targets.artefacts import inputs, make, net, quiet


class Evil:
    """Unpickled, it creates a file."""

    def __init__(self, canary):
        self.canary = str(canary)

    def __reduce__(self):
        return (open, (self.canary, "w"))


@pytest.fixture
def canary(tmp_path):
    return tmp_path / "canary"


def saved(value):
    held = io.BytesIO()
    torch.save(value, held)
    return held.getvalue()


def rewritten(source, path, change):
    """A copy of an archive: `change` takes {member: bytes}, by name without the archive's folder."""
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    root = next(iter(members)).partition("/")[0]
    plain = {name.removeprefix(f"{root}/"): held for name, held in members.items()}
    change(plain)
    with zipfile.ZipFile(path, "w") as archive:
        for name, held in plain.items():
            archive.writestr(f"{root}/{name}", held)
    return path


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return make("exported", net(), inputs(0), tmp_path_factory.mktemp("clean") / "net.pt2")


def sample_inputs(members, evil):
    members["data/sample_inputs/model.pt"] = saved(((evil,), {}))


def nested_sample_inputs(members, evil):
    members["models/a/b.json"] = members["models/model.json"]
    members["data/sample_inputs/a/b.pt"] = saved(((evil,), {}))


def pickled_weight(members, evil):
    config = json.loads(members["data/weights/model_weights_config.json"])
    entry = config["config"]["head.weight"]
    entry["use_pickle"] = True
    members[f"data/weights/{entry['path_name']}"] = saved(evil)
    members["data/weights/model_weights_config.json"] = json.dumps(config).encode()


def legacy_weights(members, evil):
    members["data/weights/model.pt"] = saved({"head.weight": evil})


def opaque_constant(members, evil):
    entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": False, "tensor_meta": None}
    members["data/constants/model_constants_config.json"] = json.dumps({"config": {"c": entry}}).encode()
    members["data/constants/opaque_obj_0"] = pickle.dumps(evil)


def script_object_among_weights(members, evil):
    config = json.loads(members["data/weights/model_weights_config.json"])
    entry = config["config"]["head.weight"] | {"use_pickle": True, "path_name": "custom_obj_0"}
    config["config"]["head.weight"] = entry
    members["data/weights/custom_obj_0"] = saved(evil)
    members["data/weights/model_weights_config.json"] = json.dumps(config).encode()


def old_format(members, evil):
    members["serialized_state_dict.pt"] = saved({"a": evil})


PICKLES = [
    *(sample_inputs, nested_sample_inputs, pickled_weight, legacy_weights, opaque_constant),
    *(script_object_among_weights, old_format),
]


def looked_at(path, folder):
    """Everything that describes a file; errors are as good as answers."""
    runner = CliRunner()
    told = []
    for command in (
        ["show", path],
        ["show", path, "--json"],
        ["record", path, "--plan"],
        ["record", path, "--plan", "--sites", "**"],
        ["diff", path, path],
        ["export", path, "-o", folder / "exported"],
    ):
        done = runner.invoke(cli.app, [str(part) for part in command])
        assert done.exception is None or isinstance(done.exception, (LayertapError, SystemExit)), done.exception
        told.append((done.stdout, done.exception))
    try:
        target = lt.open_target(path)
        told.append((str(target.describe()) + repr(target) + repr((target.sites, target.inputs)), None))
    except LayertapError as error:
        told.append(("", error))
    return told


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", PICKLES)
def test_a_program_with_a_pickle_inside_is_refused(change, program, tmp_path, canary):
    path = rewritten(program, tmp_path / "evil.pt2", lambda members: change(members, Evil(canary)))
    with pytest.raises(TargetError, match="is a pickle that contains more than tensors; it is refused"):
        lt.open_target(path)
    looked_at(path, tmp_path)
    done = CliRunner().invoke(cli.app, ["record", str(path), "-o", str(tmp_path / "run")])
    assert isinstance(done.exception, TargetError)
    assert not canary.exists()


def test_the_payload_works_where_nothing_stops_it(program, tmp_path, canary):
    path = rewritten(program, tmp_path / "evil.pt2", lambda members: sample_inputs(members, Evil(canary)))
    with quiet():
        torch.export.load(path)
    assert canary.exists(), "or the tests above prove nothing"


def test_expressions_and_guards_of_a_program_are_not_evaluated(program, tmp_path, canary):
    code = f"__import__('pathlib').Path({str(canary)!r}).touch()"

    def change(members):
        model = json.loads(members["models/model.json"])
        model["guards_code"] = [code]
        for meta in model["graph_module"]["graph"]["tensor_values"].values():
            meta["sizes"] = [{"as_expr": {"expr_str": code, "hint": None}} for _ in meta["sizes"]]
        members["models/model.json"] = json.dumps(model).encode()

    looked_at(rewritten(program, tmp_path / "evil.pt2", change), tmp_path)
    assert not canary.exists()


class Restored(nn.Module):
    """Scripted, it works while it is loaded."""

    def __init__(self, path: str):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.path = path

    def forward(self, x):
        return self.inner(x)

    @torch.jit.export
    def __getstate__(self):
        return self.path, self.inner.weight, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, torch.Tensor, bool]):
        self.path = state[0]
        self.training = state[2]
        torch.save(state[1], state[0])


def test_torchscript_that_works_while_it_is_loaded_is_only_read(tmp_path, canary):
    with quiet():
        torch.jit.script(Restored(str(canary)).eval()).save(tmp_path / "evil.pt")
    told = looked_at(tmp_path / "evil.pt", tmp_path)
    assert "  inner  Linear" in told[0][0]
    assert not canary.exists()
    with quiet(), pytest.raises(RuntimeError, match="left uninitialized"):
        torch.jit.load(tmp_path / "evil.pt")
    assert canary.exists(), "or this test proves nothing"


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler to make a library")
def test_a_library_in_a_package_is_not_opened(tmp_path, canary):
    source = f'#include <stdio.h>\n__attribute__((constructor)) void go(void) {{ fopen("{canary}", "w"); }}\n'
    (tmp_path / "evil.c").write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "evil.so", tmp_path / "evil.c"], check=True)
    tapped = lt.bake(net(), sites="blocks.*")
    tapped(*inputs(0))
    layout = tapped.layout
    for name in ("evil.pt2", "evil.so.pt2"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("m/archive_format", "pt2")
            archive.write(tmp_path / "evil.so", "m/data/aotinductor/model/net.so")
        layout.save(tmp_path / name)
        told = looked_at(tmp_path / name, tmp_path)
        assert "AOTInductor with baked taps" in told[0][0]
        assert "blocks.[0-2]" in told[0][0]
    shutil.copy(tmp_path / "evil.so", tmp_path / "alone.so")
    looked_at(tmp_path / "alone.so", tmp_path)
    (tmp_path / "m.vmfb").write_bytes((tmp_path / "evil.so").read_bytes())
    layout.save(tmp_path / "m.vmfb")
    looked_at(tmp_path / "m.vmfb", tmp_path)
    assert not canary.exists()


@pytest.mark.parametrize(
    "name",
    [
        *("subprocess:Popen", "os:system", "builtins:exec", "builtins:open", "pathlib:Path", "io:FileIO"),
        *("multiprocessing.pool:Pool", "tempfile:TemporaryDirectory", "zipfile:ZipFile", "socket:socket"),
        *("torch.utils.tensorboard.writer:SummaryWriter", "logging:FileHandler", "argparse:FileType"),
    ],
)
def test_a_layout_may_not_name_any_class(name, tmp_path, canary):
    import logging  # noqa: F401  a class is only found where its module is loaded
    import tempfile  # noqa: F401

    for fields in (
        [["args", ["value", ["touch", str(canary)]]]],
        [["file", ["value", str(canary)]], ["mode", ["value", "w"]]],
        [["filename", ["value", str(canary)]]],
        [["name", ["value", str(canary)]], ["mode", ["value", "w"]]],
        [["log_dir", ["value", str(canary)]]],
    ):
        layout = Layout(model="Net", own=0, output=["class", name, fields], taps=())
        output, _ = Layout.loads(layout.dumps()).split(())
        assert isinstance(output, Fields)
    assert not canary.exists()


def test_a_layout_still_gives_outputs_their_own_type():
    import transformers.modeling_outputs

    output = ["class", "transformers.modeling_outputs:CausalLMOutput", [["logits", ["tensor", 0]]]]
    layout = Layout(model="Net", own=1, output=output, taps=(TapPlace(site="a", kind="", level="tensor"),))
    found, _ = Layout.loads(layout.dumps()).split((torch.ones(1), torch.ones(2)))
    assert type(found) is transformers.modeling_outputs.CausalLMOutput
    assert torch.equal(found.logits, torch.ones(1))


def raw_pickle(folder, evil):
    (folder / "evil.pt").write_bytes(pickle.dumps(evil))
    return folder / "evil.pt"


def torch_saved(folder, evil):
    (folder / "evil.pth").write_bytes(saved({"weight": evil}))
    return folder / "evil.pth"


def legacy_saved(folder, evil):
    torch.save({"weight": evil}, folder / "evil.pt", _use_new_zipfile_serialization=False)
    return folder / "evil.pt"


def script_with_a_pickle(folder, evil):
    path = make("torchscript", net(), inputs(0), folder / "clean.pt")
    return rewritten(path, folder / "evil.ts", lambda members: members.update({"data.pkl": pickle.dumps(evil, 2)}))


def npz(folder, evil):
    np.savez(folder / "evil.npz", layer_1=np.array([evil, None], dtype=object))
    return folder / "evil.npz"


def layers(folder, evil):
    (folder / "layers").mkdir()
    (folder / "layers" / "layer_1_output.pt").write_bytes(saved(evil))
    (folder / "layers" / "statistics.pt").write_bytes(pickle.dumps(evil))
    return folder / "layers"


def monitored(folder, evil):
    (folder / "epochs").mkdir()
    (folder / "epochs" / "epoch_1_batch_0_a.pt").write_bytes(saved({"output": evil}))
    return folder / "epochs"


def neuron(folder, evil):
    (folder / "neuron").mkdir()
    (folder / "neuron" / "captured_tensors_cte_step_1_module_layers.0_output.pt").write_bytes(saved(evil))
    return folder / "neuron"


def plain_binary(folder, evil):
    (folder / "evil.bin").write_bytes(pickle.dumps(evil))
    return folder / "evil.bin"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "payload",
    [raw_pickle, torch_saved, legacy_saved, script_with_a_pickle, npz, layers, monitored, neuron, plain_binary],
)
def test_a_pickle_in_any_other_file_is_not_run(payload, tmp_path, canary):
    looked_at(payload(tmp_path, Evil(canary)), tmp_path)
    assert not canary.exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["x.pt", "x.npz", "x.safetensors", "x.json"])
def test_inputs_are_tensors_only(name, program, tmp_path, canary):
    np.savez(tmp_path / "object.npz", x=np.array([Evil(canary)], dtype=object))
    held = (tmp_path / "object.npz").read_bytes() if name.endswith("npz") else saved({"x": Evil(canary)})
    (tmp_path / name).write_bytes(held)
    done = CliRunner().invoke(
        cli.app, ["record", str(program), "--inputs", str(tmp_path / name), "-o", str(tmp_path / "run")]
    )
    assert isinstance(done.exception, LayertapError)
    assert not canary.exists()


@pytest.fixture(scope="module")
def external(tmp_path_factory):
    """An ONNX model whose weights lie beside it."""
    folder = tmp_path_factory.mktemp("external")
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
    with quiet():
        torch.onnx.export(model, (torch.ones(2, 64),), dynamo=True, verbose=False).save(
            folder / "net.onnx", external_data=True
        )
    return folder


def located(external, folder, where):
    """The model, its weights said to lie elsewhere."""
    import onnx

    model = onnx.load(external / "net.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = where
    onnx.save(model, folder / "net.onnx")
    return folder / "net.onnx"


@pytest.mark.parametrize("baked", [False, True])
@pytest.mark.parametrize("where", ["..", "absolute", "link", "inside a loop"])
def test_weights_outside_the_folder_of_an_onnx_file_are_refused(where, baked, external, tmp_path):
    folder, secret = tmp_path / "model", tmp_path / "secret"
    folder.mkdir()
    shutil.copy(external / "net.onnx.data", secret)
    if where == "inside a loop":
        path = located(external, folder, "../secret")
        hide_in_a_branch(path)
    else:
        names = {"..": "../secret", "absolute": str(secret), "link": "weights.data"}
        os.symlink(secret, folder / "weights.data")
        path = located(external, folder, names[where])
    if baked:
        tapped = lt.bake(nn.Sequential(nn.Linear(64, 64)), sites="0")
        tapped(torch.ones(2, 64))
        tapped.layout.save(path)
    with pytest.raises(TargetError, match="outside its folder; that is refused"):
        lt.open_target(path)


def hide_in_a_branch(path):
    """Moves the weights into a branch of a node, where a careless reader does not look."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    branch = onnx.helper.make_graph([], "branch", [], [], initializer=list(model.graph.initializer))
    del model.graph.initializer[:]
    model.graph.node.append(onnx.helper.make_node("If", ["c"], ["d"], then_branch=branch, else_branch=branch))
    onnx.save(model, path)


def test_weights_behind_a_link_into_the_same_store_are_read(external, tmp_path):
    """As in Hugging Face's cache: a snapshot is links to files that lie together."""
    store, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    store.mkdir()
    snapshot.mkdir()
    for name in ("net.onnx", "net.onnx.data"):
        shutil.copy(external / name, store / name)
        os.symlink(store / name, snapshot / name)
    assert [site.path for site in lt.open_target(snapshot / "net.onnx").sites] == ["", "0", "1", "2"]


@pytest.mark.parametrize("kind", ["expansion", "external"])
def test_entities_of_an_ir_are_not_followed(kind, tmp_path):
    path = make("openvino", net(), inputs(0), tmp_path / "net.xml")
    secret = tmp_path / "secret"
    secret.write_text("the secret")
    doctypes = {
        "expansion": '<!DOCTYPE net [<!ENTITY a "lollollol">'
        + "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefghi", "bcdefghij", strict=True))
        + "]>",
        "external": f'<!DOCTYPE net [<!ENTITY j SYSTEM "file://{secret}">]>',
    }
    text = path.read_text()
    head, net_, rest = text.partition("<net ")
    path.write_text(
        f"{head}{doctypes[kind]}{net_}{rest.replace('name=', 'name=', 1)}".replace('name="Model', 'name="&j;', 1)
    )
    told = looked_at(path, tmp_path)
    assert not any("the secret" in text or "lollol" in text for text, _ in told)


def hf_folder(tmp_path):
    import models

    folder = tmp_path / "hf"
    model, _ = models.qwen3(layers=2)
    model.save_pretrained(folder)
    return folder


def set_config(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def own_code(folder, canary, evil):
    (folder / "modeling_evil.py").write_text(f"open({str(canary)!r}, 'w')\n")
    set_config(
        folder,
        architectures=["EvilForCausalLM"],
        model_type="evil",
        auto_map={"AutoConfig": "modeling_evil.C", "AutoModel": "modeling_evil.M"},
    )


def own_code_for_auto(folder, canary, evil):
    own_code(folder, canary, evil)
    set_config(folder, architectures=None)


def own_tokenizer(folder, canary, evil):
    (folder / "tok.py").write_text(f"open({str(canary)!r}, 'w')\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["tok.T", None]}}))


def pickled_checkpoint(folder, canary, evil):
    (folder / "model.safetensors").unlink()
    torch.save({"lm_head.weight": evil}, folder / "pytorch_model.bin")


def a_kernel(folder, canary, evil):
    set_config(folder, _attn_implementation="someone/kernel", attn_implementation="someone/kernel")


def a_kernel_of_a_part(folder, canary, evil):
    set_config(folder, text_config={"parts": [{"_attn_implementation": "someone/kernel"}]})


def not_a_model(folder, canary, evil):
    set_config(folder, architectures=["logging"])


def weights_elsewhere(folder, canary, evil):
    (folder / "model.safetensors").rename(folder.parent / "elsewhere.safetensors")
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (own_code, "auto_map"),
        (own_code_for_auto, ""),
        (own_tokenizer, ""),
        (pickled_checkpoint, ""),
        (a_kernel, "which is external code;"),
        (a_kernel_of_a_part, "which is external code;"),
        (not_a_model, "has no logging"),
        (weights_elsewhere, "outside the folder; that is refused"),
    ],
)
def test_a_hugging_face_folder_runs_no_code_and_reads_no_other_folder(payload, says, tmp_path, canary, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # whoever is asked would say yes
    folder = hf_folder(tmp_path)
    payload(folder, canary, Evil(canary))
    if payload is own_tokenizer:  # transformers passes over it, and takes another class
        with quiet():
            lt.open_target(f"hf:{folder}").load_tokenizer()
    else:
        with quiet(), pytest.raises(LayertapError, match=says):
            lt.open_target(f"hf:{folder}")
    assert not canary.exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("payload", "name"), [(own_code, "AutoModel"), (a_kernel, "LlamaForCausalLM"), (None, "logging")]
)
def test_a_pruned_folder_is_trusted_no_more(payload, name, tmp_path, canary, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    folder = hf_folder(tmp_path)
    if payload is not None:
        payload(folder, canary, Evil(canary))
    (folder / "pruning.json").write_text(json.dumps({"plan": {}, "class": name}))
    with quiet(), pytest.raises(LayertapError):
        load_pruned(folder)
    assert not canary.exists()


def test_metadata_that_asks_for_a_list_of_billions_is_refused_before(tmp_path):
    (tmp_path / ".metadata").write_bytes(b"\x80\x02Nr" + (2**31).to_bytes(4, "little") + b".")
    with pytest.raises(LayertapError, match="numbers an object 2147483648"):
        open_weights(tmp_path)


def test_a_mapping_is_data(tmp_path, canary):
    with lt.record(net(), tmp_path / "run", sites="head") as rec:
        rec.model(*inputs(0))
    evil = f"!!python/object/apply:builtins.open [{canary}, w]"
    (tmp_path / "map.yaml").write_text(evil)
    done = CliRunner().invoke(
        cli.app, ["diff", str(tmp_path / "run"), str(tmp_path / "run"), "--mapping", str(tmp_path / "map.yaml")]
    )
    assert isinstance(done.exception, LayertapError)
    assert not canary.exists()


def test_describing_and_loading_say_the_same(tmp_path):
    for kind, name in (("exported", "net.pt2"), ("torchscript", "net.pt")):
        path = Path(make(kind, net(), inputs(0), tmp_path / name))
        target = lt.open_target(path)
        before, sites = target.describe(), target.sites
        target.run(inputs(1))
        after = target.describe()
        assert (before.kind, before.modules, before.listing, before.inputs) == (
            *(after.kind, after.modules, after.listing, after.inputs),
        )
        assert sites == target.sites
        assert set(before.lost) == set(after.lost)
