"""The two sides on two devices: whatever there is besides the CPU (CUDA; torch_xla by `make test-xla`)."""

import copy
import subprocess
import sys
import types

import pytest
import torch

import models
from layertap.fault import find_fault

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def device():
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    return pytest.importorskip("torch_xla", reason="there is no device besides the CPU").device()


def clean(block):
    """No fault."""


def row(block):
    block.mlp.up_proj.weight[3] *= 1.7


def eps(block):
    block.input_layernorm.variance_epsilon = 1e-2


def scaling(block):
    block.self_attn.scaling *= 1.3


def changed(change):
    def plant(block):
        right = block.mlp.forward
        block.mlp.forward = types.MethodType(lambda self, x: change(x, right(x)), block.mlp)

    return plant


def nan(x, y):
    y = y.clone()
    y[0, 0, 0] = float("nan")
    return y


LAYER = "model.layers.1"
FAULTS = {
    "row": (row, "mlp.up_proj", "weights"),
    "eps": (eps, "input_layernorm", "config"),
    "scaling": (scaling, "self_attn", "config"),
    "sign": (changed(lambda x, y: -y), "mlp", "sign"),
    "scale": (changed(lambda x, y: 1.25 * y), "mlp", "scale"),
    "nan": (changed(nan), "mlp", "nonfinite"),
    "skipped": (changed(lambda x, y: x), "mlp", "skipped"),
    "shift": (changed(lambda x, y: y.roll(1, 1)), "mlp", "shift"),
}


def pair(plant):
    model, inputs = models.qwen3()
    other = copy.deepcopy(model.requires_grad_(False))
    plant(other.model.layers[1])
    return model, other, {"input_ids": inputs["input_ids"], "use_cache": False}


@pytest.mark.parametrize("there", ["candidate", "reference"])
@pytest.mark.parametrize("name", FAULTS)
def test_the_culprit_and_why(device, name, there):
    plant, module, cause = FAULTS[name]
    reference, candidate, inputs = pair(plant)
    (candidate if there == "candidate" else reference).to(device)
    found = find_fault(reference, candidate, inputs)
    assert (found.verdict, found.site, found.cause) == ("fault", f"{LAYER}.{module}", cause), str(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_clean_pair_is_left_alone(device, dtype):
    reference, candidate, inputs = pair(clean)
    found = find_fault(reference, candidate.to(device, dtype), inputs)
    assert found.verdict == "noise", str(found)


def test_what_it_writes_runs_by_itself(device, tmp_path):
    reference, candidate, inputs = pair(row)
    folder = find_fault(reference, candidate.to(device), inputs).repro(tmp_path / "repro")
    done = subprocess.run(
        [sys.executable, folder / "repro.py"], check=False, capture_output=True, text=True, timeout=120
    )
    assert "relative error" in done.stdout, done.stdout + done.stderr
