"""`layertap report`: files by their suffix, exit codes by the verdict, clear words where something is missing."""

import json
import sys

import pytest

from cli.test_terminal import printed
from report.results import broken, model, recorded, training


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, net in (("whole", model()), ("same", model()), ("broken", broken())):
        recorded(net, path=folder / name)
    training(folder / "one")
    training(folder / "two", scale=1.5)
    return folder


def test_two_runs_leave_with_the_verdicts_exit_code(runs, tmp_path, capfd):
    code, out = printed(capfd, "report", runs / "whole", runs / "broken", "-o", tmp_path / "new" / "out.html")
    assert code == 1
    assert "FAULT" in out
    assert str(tmp_path / "new" / "out.html") in out.replace("\n", "")
    html = (tmp_path / "new" / "out.html").read_text(encoding="utf-8")
    assert "data-verdict='fault'" in html
    assert "Histograms of the differences" in html
    assert "Receipt of" in html
    code, _ = printed(capfd, "report", runs / "whole", runs / "same", "-o", tmp_path / "same.md")
    assert code == 0
    assert (tmp_path / "same.md").read_text(encoding="utf-8").startswith("### = IDENTICAL")


def test_one_run_and_two_trainings(runs, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out = printed(capfd, "report", runs / "one")
    assert code == 0
    assert "report.html" in out
    assert "not finite" not in (tmp_path / "report.html").read_text(encoding="utf-8").partition("<h1")[0]
    code, _ = printed(capfd, "report", runs / "one", runs / "two", "-o", "out.svg")
    assert code in (1, 3)
    assert (tmp_path / "out.svg").read_text(encoding="utf-8").startswith("<svg xmlns=")


def test_markdown_goes_to_the_screen_and_json_says_what_was_written(runs, tmp_path, capfd):
    code, out = printed(capfd, "report", runs / "whole", runs / "broken", "-o", "-")
    assert code == 1
    assert out.startswith("### ✗ FAULT")
    code, out = printed(capfd, "report", runs / "whole", runs / "broken", "-o", tmp_path / "x.html", "--json")
    found = json.loads(out)
    assert (found["written"], found["result"]["verdict"]) == (str(tmp_path / "x.html"), "fault")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("whole", "-o", "out.pdf"), ".html, .md, .png, .svg"),
        (("whole", "--floor", "same"), "--floor"),
        (("nowhere",), "does not exist"),
    ],
)
def test_bad_usage_says_the_way_out_and_writes_nothing(runs, tmp_path, capfd, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, out = printed(capfd, "report", runs / arguments[0], *arguments[1:])
    assert code == 2
    assert words in out
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_prints_the_pip_line(runs, tmp_path, capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    code, out = printed(capfd, "report", runs / "whole", runs / "broken", "-o", tmp_path / "out.png")
    assert code == 2
    assert "pip install 'layertap[view]'" in out
