"""The command line as a user types it."""

import json
import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from layertap import Run, cli
from layertap.errors import BadArgument

MODEL = """
import torch
from torch import nn

def healthy():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(12)])
    return model.eval(), (torch.ones(2, 8),)

def poisoned():
    model, inputs = healthy()
    with torch.no_grad():
        model[3][0].bias[2] = float("nan")
    return model, inputs
"""


@pytest.fixture
def target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(MODEL)
    return "nets.py:healthy"


def call(*args, code=0):
    result = CliRunner().invoke(cli.app, [str(arg) for arg in args], catch_exceptions=True)
    if isinstance(result.exception, Exception) and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


def test_b6_record_then_show_in_order_of_depth(target):
    text = call("record", target, "-o", "run", "--sites", "*", "--keep", "tensor")
    assert re.search(r"recorded 13 tensors from 12 of 12 sites in 1 step", text)
    shown = call("show", "run")
    names = re.findall(r"^(\d+) ", shown, re.MULTILINE)
    assert names == [str(i) for i in range(12)], "10 comes after 9"
    assert "Δ" in shown


def test_b7_show_names_the_first_non_finite_site(target):
    call("record", "nets.py:poisoned", "-o", "run", "--sites", "**.0")
    assert "first non-finite values: 3.0 (2 NaN, 0 Inf)" in call("show", "run")


def test_record_keeps_histograms_and_show_says_so(target):
    call("record", target, "-o", "run", "--sites", "*", "--keep", "histogram")
    site = Run("run")["5"]
    assert site.histogram().counts.sum() == site.statistics.count
    assert "kept histogram" in call("show", "run", "5")


def test_show_one_site_and_its_json_twin(target):
    call("record", target, "-o", "run", "--sites", "*", "--steps", "3")
    text = call("show", "run", "5")
    assert "3 records" in text
    assert "fingerprint" in text
    rows = json.loads(call("show", "run", "5", "--json"))
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert len({row["fingerprint"] for row in rows}) == 1, "the same input gives the same output"


def test_json_keeps_nan_as_a_word(target):
    call("record", "nets.py:poisoned", "-o", "run", "--sites", "*")
    data = json.loads(call("show", "run", "--json"))
    last = data["rows"][-1]
    assert (last["mean"], last["nan"]) == ("NaN", 16)
    assert data["receipt"]["records"] == 13
    receipt = json.loads(call("record", target, "-o", "run2", "--json"))["receipt"]
    assert receipt["error"] == ""


def test_plan_prints_sizes_and_records_nothing(target, tmp_path):
    text = call("record", target, "--plan", "--sites", "*")
    assert "64 B" in text or "768 B" in text
    assert not (tmp_path / "run").exists()


def test_an_existing_run_is_not_touched_unless_asked(target):
    call("record", target, "-o", "run")
    with pytest.raises(cli.LayertapError, match="run") as caught:
        call("record", target, "-o", "run")
    assert "replace" in str(caught.value)
    call("record", target, "-o", "run", "--replace")
    call("record", target, "-o", "run", "--append")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["show", "nowhere"], "nowhere"),
        (["record", "nets.py:absent", "-o", "x"], "absent"),
        (["record", "missing.py:model", "-o", "x"], "missing.py"),
        (["record", "nets.py:healthy"], "-o RUN"),
        (["record", "nets.py:healthy", "-o", "x", "--sites", "layers.*"], "layers"),
        (["record", "nets.py:healthy", "-o", "x", "--what", "outputs"], "grad_output"),
        (["record", "nets.py:healthy", "-o", "x", "--policy", "wait"], "block"),
        (["record", "nets.py:healthy", "-o", "x", "--replace", "--append"], "exclude"),
    ],
)
def test_wrong_input_is_one_message_and_exit_code_2(target, args, says):
    done = subprocess.run([sys.executable, "-m", "layertap", *args], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_diff_gives_its_verdict_as_exit_code_and_in_json(target, tmp_path):
    call("record", target, "-o", "a", "--sites", "*", "--keep", "tensor")
    call("record", target, "-o", "b", "--sites", "*", "--keep", "tensor")
    call("record", "nets.py:poisoned", "-o", "c", "--sites", "*", "--keep", "tensor")
    assert "IDENTICAL" in call("diff", "a", "b")
    text = call("diff", "a", "c", "--html", "page.html", "-v", code=1)
    assert "first departure: 3 (Sequential)" in text
    assert "plan: exact" in text
    assert "FAULT" in (tmp_path / "page.html").read_text()
    data = json.loads(call("diff", "a", "c", "--json", code=1))
    assert (data["verdict"], data["first"], data["exit_code"]) == ("fault", "3", 1)
    call("record", target, "-o", "d", "--sites", "[0-4]", "--keep", "tensor")
    assert "only in the reference" in call("diff", "a", "d", code=3)


def test_b4_export_and_diff_of_a_foreign_folder(target):
    call("record", target, "-o", "a", "--sites", "*", "--keep", "tensor")
    call("export", "a", "-o", "layers", "--layout", "layers")
    assert "IDENTICAL" in call("diff", "a", "layers")


def test_demo_goes_from_the_layer_to_its_part(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = call("demo")
    page = (tmp_path / "runs/demo/report.html").read_text(encoding="utf-8")
    assert "data-verdict='fault'" in page
    assert "runs/demo/report.html" in text
    assert "layertap view runs/demo/healthy-inside runs/demo/broken-inside" in text
    assert "first departure: blocks.3 (Block)" in text
    assert "first departure: blocks.3.down (Linear)" in text
    assert "blocks.3.down is wrong (weights): weight: 1 of 48 rows are zero (first: 7)" in text
    assert json.loads(call("demo", "--json"))["first"] == "blocks.3.down"


def started(*args, **environment):
    command = [sys.executable, "-c", "from layertap.cli import main; main()", *map(str, args)]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, env=os.environ | environment, timeout=120
    )


def test_version_and_short_help(target):
    assert call("--version").startswith("layertap ")
    assert "Usage" in call("diff", "-h")


def test_a_crash_is_no_verdict(target):
    call("record", target, "-o", "run")
    code = "from layertap.cli import main, show; show.open_run = show.Run = lambda run: 1 / 0; main()"
    command = [sys.executable, "-c", code, "show", "run"]
    crashed = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert "ZeroDivisionError" in crashed.stderr
    assert crashed.returncode == 2, "1 would say that a fault was found"


def test_a_terminal_without_unicode_gets_the_numbers(target):
    call("record", target, "-o", "run", "--sites", "*")
    done = started("show", "run", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "2?8  float32" in done.stdout


def test_a_closed_pipe_leaves_the_verdict(target):
    call("record", target, "-o", "a", "--sites", "**")
    call("record", "nets.py:poisoned", "-o", "b", "--sites", "**")
    command = [sys.executable, "-c", "from layertap.cli import main; main()", "diff", "a", "b"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, check=False, stdout=write, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(write)
    assert done.returncode == 1
    assert done.stderr == ""


def test_a_message_in_a_log_is_one_line(target):
    assert started("show", "x" * 200).stderr.count("\n") == 1


def test_show_compares_a_layer_with_one_of_the_same_pass_only(target):
    call("record", target, "-o", "run", "--sites", "[0-1]", "--steps", "2")
    rows = json.loads(call("show", "run", "--json"))["rows"]
    assert [(row["step"], row["site"], bool(row["change"])) for row in rows] == [
        (0, "0", False),
        (0, "1", True),
        (1, "0", False),
        (1, "1", True),
    ]
    assert "rank" not in call("show", "run")


def test_show_of_a_long_training_is_one_step_and_a_site_is_one_line_a_step(target):
    call("record", target, "-o", "run", "--sites", "[0-1]", "--steps", "400")
    shown = call("show", "run")
    assert "shown: step 399, the last; --step shows another" in shown
    assert len(shown.splitlines()) < 12
    assert len(call("show", "run", "1").splitlines()) == 404
    call("record", "nets.py:poisoned", "-o", "bad", "--sites", "[2-3]", "--steps", "400")
    assert "shown: step 0, the first with NaN or Inf" in call("show", "bad")


def test_show_opens_what_diff_opens(target):
    call("record", target, "-o", "run", "--sites", "*", "--keep", "tensor")
    call("export", "run", "-o", "layers", "--layout", "layers")
    assert re.search(r"^layer_12 +2×8 +float32", call("show", "layers"), re.MULTILINE)
    with pytest.raises(BadArgument, match="no record at step 9 in run: 12 sites"):
        call("show", "run", "--step", "9")
