"""Inside the culprit: the operator and its line, a repro that runs by itself, the command line."""

import copy
import json
import re
import subprocess
import sys

import pytest
import torch
from torch import nn

import models
from layertap.errors import LayertapError
from layertap.fault import CAUSES, find_fault


class Attention(nn.Module):
    """Everything between its projections is its own code."""

    def __init__(self, fault=""):
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        self.fault = fault

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2)
        scores = scores / (5.0 if self.fault == "scale" else 4.0)
        keep = torch.ones(scores.shape[-2:]).tril(1 if self.fault == "mask" else 0)
        scores = scores.masked_fill(keep == 0, float("-inf"))
        if self.fault == "cast":
            scores = scores.to(torch.bfloat16).to(torch.float32)
        weights = scores.softmax(-1)
        if self.fault == "clamp":
            weights = weights.clamp(max=0.4)
        return self.out(weights @ v)


class Net(nn.Module):
    def __init__(self, fault=""):
        super().__init__()
        self.first = Attention()
        self.second = Attention(fault)

    def forward(self, x):
        return self.second(self.first(x))


X = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(1))
FAULTS = {
    "scale": ("config", "aten.div.Tensor", "scores / (5.0"),
    "mask": ("mask", "aten.tril.default", ".tril(1 if"),
    "cast": ("precision", "aten._to_copy.default", "scores.to(torch.bfloat16)"),
    "clamp": ("clipping", "aten.clamp.default", "weights.clamp(max=0.4)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_operator_and_its_line_are_named(fault):
    cause, op, code = FAULTS[fault]
    reference, candidate = Net(), Net(fault)
    candidate.second.fault = fault
    reference.second.fault = ""
    candidate.second.__dict__["fault"] = _Hidden(fault)  # not a plain setting: only the operators tell
    found = find_fault(reference, candidate, (X,))
    assert (found.verdict, found.site, found.cause) == ("fault", "second", cause)
    assert found.op.startswith(f"{op} at test_inside.py:")
    assert code in found.op


class _Hidden:
    """Equal to a text, and not one."""

    def __init__(self, text):
        self.text = text

    def __eq__(self, other):
        return self.text == other

    __hash__ = None


def test_all_causes_are_from_the_closed_list():
    assert {cause for cause, _, _ in FAULTS.values()} <= set(CAUSES)


@pytest.fixture(scope="module")
def broken():
    reference, inputs = models.qwen3()
    candidate = copy.deepcopy(reference)
    candidate.model.layers[1].self_attn.scaling *= 1.2
    return find_fault(reference, candidate.to(torch.bfloat16), inputs)


def test_a_repro_runs_by_itself(broken, tmp_path):
    folder = broken.repro(tmp_path / "repro")
    done = subprocess.run(
        [sys.executable, folder / "repro.py"], check=False, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    about, reference, candidate, floor = done.stdout.splitlines()
    assert about.startswith("model.layers.1.self_attn (Qwen3Attention): config: scaling is 0.42")
    right, wrong = (float(line.split("relative error ")[1].split()[0]) for line in (reference, candidate))
    assert right < 0.01 < 0.05 < wrong
    assert floor.startswith("rounding explains ")


def test_a_module_that_cannot_be_pickled_is_exported(tmp_path):
    class Local(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    candidate = copy.deepcopy(reference)
    wrong = Local(4, 4)
    wrong.load_state_dict(candidate[1].state_dict())
    candidate[1] = wrong
    folder = find_fault(reference, candidate, (torch.randn(3, 4),)).repro(tmp_path / "repro")
    assert json.loads((folder / "about.json").read_text())["saved"] == {"candidate": "exported", "reference": "pickled"}
    done = subprocess.run(
        [sys.executable, folder / "repro.py"], check=False, capture_output=True, text=True, timeout=200
    )
    assert "candidate: relative error 1 against" in done.stdout


def test_the_page_names_the_culprit_and_needs_nothing_else(broken, tmp_path):
    broken.to_html(tmp_path / "made" / "finding.html")
    page = (tmp_path / "made" / "finding.html").read_text()
    assert "<h1 data-verdict='fault'>model.layers.1.self_attn is wrong (config): scaling is 0.42" in page
    assert page.count("data-state='fault'") == 1
    assert page.count("data-site=") == len(broken.table)
    sites = re.findall('data-site="([^"]*)"', page)
    assert sites.index("model.layers.0.mlp") < sites.index("model.layers.1.mlp"), "in order of execution"
    assert "http" not in page


def test_a_repro_does_not_write_over_anything(broken, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(LayertapError, match="already exists; give a new folder"):
        broken.repro(tmp_path)


def test_without_a_fault_there_is_nothing_to_reproduce(tmp_path):
    model = nn.Linear(2, 2)
    with pytest.raises(LayertapError, match="there is nothing to reproduce: the verdict is identical"):
        find_fault(model, copy.deepcopy(model), (torch.ones(1, 2),)).repro(tmp_path / "repro")


def test_a_finding_as_json(broken, tmp_path):
    broken.to_json(tmp_path / "finding.json")
    read = json.loads((tmp_path / "finding.json").read_text())
    assert (read["verdict"], read["exit_code"], read["site"]) == ("fault", 1, "model.layers.1.self_attn")
    rows = {row["path"]: row for row in read["table"]}
    row = rows["model.layers.1.self_attn"]
    assert row["ratio"] > 6
    assert row["total"] > row["floor"]
    assert {"total", "entry", "exit", "local", "floor", "ratio"} <= set(row)
    assert len(rows) > 40


def test_in_chinese(broken, monkeypatch):
    monkeypatch.setenv("LAYERTAP_LANG", "zh")
    assert str(broken).startswith("model.layers.1.self_attn 有错误（config）：")


FILE = """
import torch
from torch import nn

def right():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return model, (torch.randn(5, 8),)

def wrong():
    model, inputs = right()
    with torch.no_grad():
        model[2].weight[1] = 0
    return model, inputs
"""


def layertap(*args, cwd):
    return subprocess.run(
        [sys.executable, "-m", "layertap", *args], check=False, cwd=cwd, capture_output=True, text=True, timeout=200
    )


def test_from_the_command_line(tmp_path):
    (tmp_path / "net.py").write_text(FILE)
    done = layertap("fault", "net.py:right", "net.py:wrong", "--repro", "repro", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("2 is wrong (weights): weight: 1 of 4 rows are zero (first: 1)")
    assert done.stdout.rstrip().endswith("wrote repro; next: python repro/repro.py")
    clean = layertap("fault", "net.py:right", "net.py:right", "--json", cwd=tmp_path)
    assert clean.returncode == 0
    assert json.loads(clean.stdout)["verdict"] == "identical"
    nowhere = layertap("fault", "none.py:x", "none.py:y", cwd=tmp_path)
    assert nowhere.stderr.startswith("layertap: none.py:x: there is no file none.py"), "and no picture for :x:"
    bad = layertap("fault", "net.py:right", "net.py:nothing", cwd=tmp_path)
    assert bad.returncode == 2
    assert "nothing" in bad.stderr


def test_a_module_whose_parameters_are_read_without_calling_it_is_named():
    reference, inputs = models.mamba()
    candidate = copy.deepcopy(reference)
    with torch.no_grad():
        candidate.backbone.layers[1].mixer.conv1d.weight.copy_(
            reference.backbone.layers[1].mixer.conv1d.weight.flip(-1)
        )
    found = find_fault(reference, candidate, inputs)
    assert (found.site, found.cause) == ("backbone.layers.1.mixer.conv1d", "weights")
    assert "backbone.layers.1.mixer reads it without calling it" in found.evidence
    assert found.explained > 0.99  # the cache that it returns is wrong still, and is no result


def test_a_module_inside_a_fused_kernel_is_named():
    reference, inputs = models.encoder()
    candidate = copy.deepcopy(reference)
    with torch.no_grad():
        next(m for n, m in candidate.named_modules() if n.endswith("layers.1.linear2")).weight.mul_(1.2)
    found = find_fault(reference, candidate, inputs)
    assert found.site.endswith("layers.1.linear2")
    assert found.cause == "weights"


def test_a_module_that_spoils_its_input_is_to_blame_not_its_caller():
    reference, inputs = models.llama()
    candidate = copy.deepcopy(reference)
    broken = candidate.model.layers[1].mlp.gate_proj

    def forward(x):
        output = type(broken).forward(broken, x)
        x[:, 1] = 0
        return output

    broken.forward = forward
    found = find_fault(reference, candidate, inputs)
    assert found.site == "model.layers.1.mlp.gate_proj"


def test_a_module_that_works_in_place_is_no_fault():
    reference = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    candidate = copy.deepcopy(reference)
    candidate[1].inplace = True
    assert find_fault(reference, candidate, (torch.randn(4, 8),)).verdict == "identical"


def test_an_offset_by_channel_of_an_image_is_called_that():
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    candidate = copy.deepcopy(reference)
    broken = candidate[0]
    broken.forward = lambda x: type(broken).forward(broken, x) + broken.bias.view(-1, 1, 1)
    found = find_fault(reference, candidate, (torch.randn(2, 3, 10, 10),))
    assert (found.site, found.cause) == ("0", "offset")
