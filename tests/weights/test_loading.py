"""`loading()` around code that loads and says nothing."""

import pytest
import torch
import transformers
from torch import nn

import models
from layertap.errors import BadArgument, WeightsWrong
from layertap.weights import loading


def two():
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def test_what_from_pretrained_passes_over_is_named(tmp_path):
    model, _ = models.qwen3()
    state = model.state_dict()
    del state["model.layers.1.mlp.up_proj.weight"]
    model.save_pretrained(tmp_path, state_dict=state)
    with loading() as load:
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert load.audit.verdict == "fault"
    assert load.audit.by_status["missing"] == 1


def test_a_healthy_load_is_identical(tmp_path):
    model, _ = models.mixtral()
    model.save_pretrained(tmp_path)
    with loading(strict=True) as load:
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert load.audit.verdict == "identical"


def test_a_file_loaded_with_strict_off(tmp_path):
    state = {f"net.{name}": tensor for name, tensor in two().state_dict().items()}  # a prefix: nothing fits
    torch.save(state, tmp_path / "x.pt")
    model = two()
    with loading() as load:
        model.load_state_dict(torch.load(tmp_path / "x.pt"), strict=False)
    assert load.audit.by_status == {"unwritten": 4}
    assert load.audit.other == str(tmp_path / "x.pt")
    with pytest.raises(WeightsWrong, match="its values are those from before loading"), loading(strict=True):
        model.load_state_dict(torch.load(tmp_path / "x.pt"), strict=False)


def test_parts_loaded_one_after_another_are_one_checkpoint():
    model, saved = two(), two().state_dict()
    with loading() as load:
        for layer in ("0", "1"):
            part = {name: tensor for name, tensor in saved.items() if name.startswith(layer)}
            model.load_state_dict(part, strict=False)
    assert load.audit.verdict == "identical"


def test_code_that_copies_by_hand_names_its_model(tmp_path):
    model, saved = two(), two().state_dict()
    torch.save(saved, tmp_path / "x.pt")
    with loading(model) as load:
        held = torch.load(tmp_path / "x.pt")
        for name, parameter in model.named_parameters():
            if name != "1.bias":
                parameter.data.copy_(held[name])
    assert {row.name: row.status for row in load.audit.rows if row.status != "exact"} == {"1.bias": "unwritten"}


def test_nothing_loaded_says_so_and_everything_is_put_back():
    before = nn.Module.load_state_dict, transformers.PreTrainedModel.__dict__["from_pretrained"], torch.load
    with pytest.raises(BadArgument, match="nothing was loaded inside the block"), loading():
        pass
    with pytest.raises(ZeroDivisionError), loading():
        _ = 1 / 0
    assert before == (
        nn.Module.load_state_dict,
        transformers.PreTrainedModel.__dict__["from_pretrained"],
        torch.load,
    )


def test_transformers_is_not_imported_for_plain_state_dicts_and_watched_when_it_is(tmp_path):
    import subprocess
    import sys

    model, _ = models.qwen3()
    state = model.state_dict()
    del state["model.layers.1.mlp.up_proj.weight"]
    model.save_pretrained(tmp_path, state_dict=state)
    code = f"""
import sys, torch
from layertap.weights import loading
net = torch.nn.Linear(2, 2)
with loading() as load:
    net.load_state_dict(torch.nn.Linear(2, 2).state_dict())
assert load.audit.verdict == "identical" and "transformers" not in sys.modules
with loading() as load:
    from transformers import AutoModelForCausalLM
    AutoModelForCausalLM.from_pretrained({str(tmp_path)!r})
import transformers.modeling_utils as held
assert type(held.__loader__).__name__ == "SourceFileLoader", held.__loader__
assert "_loaded" not in repr(held.PreTrainedModel.__dict__["from_pretrained"])
print(load.audit.by_status["missing"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "1"


class Forgetful(transformers.Qwen3ForCausalLM):
    """A class whose initialiser leaves out what it adds."""

    def __init__(self, config):
        super().__init__(config)
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("steps", torch.arange(3), persistent=False)
        self.post_init()


def test_memory_that_nobody_wrote_is_named(tmp_path):
    models.qwen3()[0].save_pretrained(tmp_path)
    with loading() as load:
        Forgetful.from_pretrained(tmp_path)
    rows = {row.name: row for row in load.audit.rows if row.status == "unwritten"}
    assert set(rows) == {"scale", "steps"}, str(load.audit)
    assert rows["scale"].detail == "nothing wrote it: neither the checkpoint nor the class's initialiser"
    assert load.audit.verdict == "fault"


def test_the_models_own_tensors_are_no_checkpoint():
    model = two()
    with pytest.raises(BadArgument, match="the model's own tensors, which proves nothing"), loading():
        model.load_state_dict(model.state_dict())


def test_a_distributed_checkpoint_loaded_in_place(tmp_path):
    import warnings

    import torch.distributed.checkpoint as dcp

    saved, model = two(), two()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"model": saved.state_dict()}, checkpoint_id=tmp_path / "c")
        with loading() as load:
            state = {"model": model.state_dict()}
            dcp.load(state, checkpoint_id=tmp_path / "c")
            model.load_state_dict(state["model"])
    assert load.audit.verdict == "identical", str(load.audit)
    assert load.audit.other == str(tmp_path / "c")


def test_shards_and_an_optimizer_read_beside_them(tmp_path):
    model, saved = two(), two().state_dict()
    torch.save({n: t for n, t in saved.items() if n[0] == "0"}, tmp_path / "0.pt")
    torch.save({n: t for n, t in saved.items() if n[0] == "1"}, tmp_path / "1.pt")
    torch.save({"state": {0: {"exp_avg": torch.ones(3)}}}, tmp_path / "optimizer.pt")
    with loading() as load:
        torch.load(tmp_path / "optimizer.pt")
        state = {**torch.load(tmp_path / "0.pt"), **torch.load(tmp_path / "1.pt")}
        model.load_state_dict({name: tensor for name, tensor in state.items() if name != "1.bias"}, strict=False)
    assert {row.name: row.status for row in load.audit.rows if row.status != "exact"} == {"1.bias": "unwritten"}


@pytest.mark.parametrize("name", ["load_checkpoint_in_model", "load_checkpoint_and_dispatch"])
def test_accelerates_loaders(tmp_path, name):
    import accelerate

    model, _ = models.qwen3()
    state = model.state_dict()
    if name == "load_checkpoint_in_model":
        del state["model.layers.1.mlp.up_proj.weight"]
    model.save_pretrained(tmp_path, state_dict=state)
    with accelerate.init_empty_weights():
        empty = transformers.Qwen3ForCausalLM(model.config)
    with loading() as load:
        getattr(accelerate, name)(empty, tmp_path, device_map={"": "cpu"})
    lost = 1 if name == "load_checkpoint_in_model" else 0
    assert load.audit.by_status.get("meta", 0) == lost, str(load.audit)
    assert load.audit.other == str(tmp_path)
    assert load.audit.verdict == ("fault" if lost else "identical"), str(load.audit)


def test_a_part_of_a_model_loaded_by_itself():
    model, saved = two(), nn.Linear(4, 4).state_dict()
    with loading(model) as load:
        model[1].load_state_dict(saved)
    assert {row.name: row.status for row in load.audit.rows} == {
        "0.weight": "missing",
        "0.bias": "missing",
        "1.weight": "exact",
        "1.bias": "exact",
    }


def test_a_prefix_that_ddp_leaves_is_seen_through(tmp_path):
    model, saved = two(), two()
    torch.save({f"module.{name}": tensor for name, tensor in saved.state_dict().items()}, tmp_path / "x.pt")
    with loading() as load:
        state = torch.load(tmp_path / "x.pt")
        model.load_state_dict({name.removeprefix("module."): tensor for name, tensor in state.items()})
    assert load.audit.verdict == "identical"


def test_a_meta_model_that_got_a_part_of_its_weights():
    with torch.device("meta"):
        model = two()
    with loading() as load:
        model.load_state_dict({"0.weight": torch.ones(4, 4), "0.bias": torch.ones(4)}, strict=False, assign=True)
    assert load.audit.by_status == {"exact": 2, "meta": 2}


def test_a_buffer_that_was_never_written():
    def make(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    model, trained = make(0), make(1)
    trained(torch.randn(16, 4))
    state = trained.state_dict()
    with loading(model) as load:
        for name, parameter in model.named_parameters():
            parameter.data.copy_(state[name])
        torch.nn.Module.load_state_dict(model, state | {"1.running_mean": state["1.running_mean"]}, strict=True)
        model[1].running_var.fill_(1.0)
    rows = {row.name: row for row in load.audit.rows if row.status != "exact"}
    assert rows["1.running_var"].status == "unwritten"
