"""E2, E8: the example does what its README says, and its broken copy is exposed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import layertap as lt
from layertap.sweeping import read_definition

pytest.importorskip("transformers")
EXAMPLE = Path(__file__).parents[2] / "examples/mamba_modes"
SAME_AS_TRANSFORMERS = """
import sys, torch, transformers
sys.path.insert(0, ".")
from safetensors.torch import load_file
from mixer import Settings
from model import build
from pathlib import Path
from prepare import config, sentences
stock = transformers.MambaForCausalLM(config()).eval()
stock.load_state_dict(load_file("checkpoints/fp32/model.safetensors"))
ids = sentences(1, 32, seed=7)
with torch.no_grad():
    a, b = stock(ids).logits, build(Path("checkpoints"), Settings(model="fp32"))(ids).logits
print(float((a - b).norm() / a.norm()))
"""


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """A copy of the example, with a checkpoint trained for a few steps."""
    folder = tmp_path_factory.mktemp("mamba") / "mamba_modes"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("checkpoints", "runs", "__pycache__"))
    done = subprocess.run(
        [sys.executable, "prepare.py", "checkpoints", "40"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_e2_e8_the_eight_modes_and_the_three_questions(example, tmp_path):
    defined = read_definition(example / "modes.toml")
    assert defined.names == ("fp32", "0", "2-0", "2-1", "2-2", "2-3", "2-4", "3")
    assert defined.presets["essential"] == ("fp32", "0", "2-1", "2-2", "2-4")
    assert defined.presets["quant_only"] == defined.names[1:]
    short = {"input": {**defined.input, "seq_len": 64}}
    found = lt.sweep(example / "modes.toml", tmp_path / "runs", changes=short)
    assert not found.failed, str(found)
    assert found.groups == (("fp32",), ("0", "2-0"), ("2-1",), ("2-2",), ("2-3",), ("2-4",), ("3",))
    assert str(found).splitlines()[0].startswith("fp32 | 0 = 2-0: bit-identical | ")
    assert found.modes["fp32"].bits == 0
    assert {mode.bits for name, mode in found.modes.items() if name != "fp32"} == {8}
    assert "kernels" in found.modes["2-4"].dtypes["int8"], "the projections stay INT8"
    costs, right, gains = found.answers
    assert 1e-3 < costs.error < 0.3
    assert right.error < 1e-6, "the scan in PyTorch and the kernel's differ by rounding"
    assert gains.after == pytest.approx(gains.before, rel=0.2), "the FP32 scan alone gains nothing to speak of"
    scan = "backbone.layers.0.mixer.scan"
    assert found.matrix["fp32", "2-4", scan] < 0.8 * found.matrix["fp32", "2-2", scan]
    coded = next(row for row in found.modes["0"].rows if row.site.endswith("conv:output.0"))
    codes = found.modes["0"].run[coded.site].numpy()
    values = found.modes["fp32"].run[coded.site].numpy().astype(np.float64)
    assert codes.dtype == np.int8
    scale = (codes * values).sum() / (codes.astype(np.float64) ** 2).sum()
    assert coded.error == pytest.approx(np.linalg.norm(codes * scale - values) / np.linalg.norm(values), rel=1e-4)
    assert coded.verdict == "noise", "codes are held against values by the scale that fits best"


@pytest.mark.slow
def test_e7_the_broken_copy_is_exposed_on_the_first_line(example, tmp_path):
    modes = ["fp32", "0", "2-4", "3"]
    found = lt.sweep(example / "broken.toml", tmp_path / "runs", modes)
    first, second = str(found).splitlines()[:2]
    assert first == "fp32 = 0: the reference does not compute in the precision of its name | 2-4 = 3: bit-identical"
    assert second.startswith("FAULT: ")
    assert found.misnamed == ("fp32",)
    assert found.exit_code == 1


@pytest.mark.slow
def test_the_float_mode_is_the_model_of_transformers(example):
    done = subprocess.run(
        [sys.executable, "-c", SAME_AS_TRANSFORMERS], cwd=example, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-6
    scales = json.loads((example / "checkpoints/w8a8/scales.json").read_text())
    assert set(scales) == {"0", "1", "2", "3"}
    assert set(scales["0"]) == {"in_proj", "conv", "u", "dt_proj", "dt", "B", "C", "out_proj"}
