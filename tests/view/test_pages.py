"""The pages beside the comparison: runs, training, results (a sweep, an audit, a knock-out), and their JSON twins."""

import json
import re
import shutil

import pytest

from layertap.errors import BadArgument
from layertap.result import jsonable
from report import results
from view.accessibility import findings
from view.making import viewer
from view.test_browser import until


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from layertap.watching.trigger_report import Origin, TriggerReport, write_report

    found = tmp_path_factory.mktemp("pages")
    results.training(found / "bad")
    results.training(found / "good", bad=False)
    birth = Origin(step=9, site="layers.0", kind="Linear", where="forward", module="layers.0", before="embed", text="x")
    moment = {"step": 9, "epoch": None, "batch": None, "loss": None, "inputs": (), "steps": (7, 8, 9)}
    write_report(found / "bad", TriggerReport(rule="nonfinite", reason="NaN", rank=0, birth=birth, **moment))
    for name in ("audit", "knockout", "diagnosis", "finding", "sweep"):
        (found / f"{name}.json").write_text(json.dumps(jsonable(getattr(results, name)().to_dict())))
    return found


@pytest.fixture(scope="module")
def trained(folder):
    with viewer(str(folder / "bad"), str(folder / "good")) as shown:
        yield shown


@pytest.fixture(scope="module")
def told(folder):
    names = ("audit", "knockout", "diagnosis", "finding", "sweep")
    with viewer(*(str(folder / f"{name}.json") for name in names)) as shown:
        yield shown


def test_the_page_of_runs_has_plan_and_receipt_of_each(runs):
    with viewer(runs["a"], runs["b"]) as shown:
        html = shown.ask("/runs")[2].decode()
        twin = shown.json("/runs.json")["runs"]
    assert re.findall(r"data-run='(\d)'", html) == ["0", "1"]
    assert html.count("blocks.*, blocks.*.*") == 2  # the plan
    assert [run["receipt"]["records"] for run in twin] == [76, 76]
    assert html.count("76 tensors from 75 of 75 sites") == 2


def test_a_training_shows_loss_steps_and_what_triggered(trained, tab):
    tab.goto(f"{trained.url}/training?a=0&b=none")
    assert "nonfinite" in tab.locator("pre").first.text_content()
    assert tab.locator("svg[aria-label]").count() >= 3
    figure = tab.locator("figure.grid")
    grid = json.loads(figure.get_attribute("data-grid"))
    assert grid["sites"] == ["embed", "layers.0", "layers.1", "loss"]
    assert len(grid["steps"]) == 40
    box, (left, top, wide, high, whole, _) = figure.locator("svg").bounding_box(), grid["plot"]
    scale = box["width"] / whole
    at = {"x": (left + wide * 12.5 / 40) * scale, "y": (top + high * 2.5 / 4) * scale}
    figure.locator("svg").hover(position=at)
    until(tab, "document.getElementById('cell').value === 'layers.1  @ 12'")
    figure.locator("svg").click(position=at)
    tab.wait_for_url("**site=layers.1**")
    assert "step=12" in tab.url
    assert "layers.1" in tab.locator("#site h2").text_content()
    assert "NaN" in tab.locator("#site").text_content()


def test_the_trigger_leads_to_the_site_where_nan_was_born(trained, tab):
    tab.goto(f"{trained.url}/training?a=0&b=none")
    tab.locator("a", has_text="layers.0").first.click()
    tab.wait_for_url("**step=9**")
    assert tab.locator("tr[aria-selected=true]").get_attribute("data-site") == "layers.0"


def test_two_trainings_are_laid_over_one_another(trained):
    twin = trained.json("/training.json?a=0&b=1")["runs"]
    assert [run["run"] for run in twin] == ["bad", "good"]
    assert twin[0]["values"][1][8:10] == [2 + 2.0, "NaN"]
    assert twin[0]["loss"][9] == [9.0, "NaN"]
    assert twin[0]["triggers"][0]["birth"]["site"] == "layers.0"
    assert twin[1]["values"][1][9] == 2 + 9 / 4
    html = trained.ask("/training?a=0&b=1")[2].decode()
    assert html.count("class='grid'") == 3  # how far apart, and each by itself
    assert trained.json("/training.json?a=0&b=none&from=1&count=2")["runs"][0]["sites"] == ["layers.0", "layers.1"]


def test_results_are_shown_as_their_reports_are(told):
    listed = told.json("/results.json")["results"]
    assert [one["kind"] for one in listed] == ["audit", "knockout", "doctor", "fault", "sweep"]
    wanted = ("nothing in the checkpoint has its values", "layers.2.mlp", "layers.1", "own error", "fp32 = 0")
    verdicts = ("fault", "none", None, "fault", "inconclusive")
    for number, (text, verdict) in enumerate(zip(wanted, verdicts, strict=True)):
        html = told.ask(f"/results?r={number}")[2].decode()
        assert text in html
        found = re.findall(r"data-verdict='(\w+)'", html)
        assert len(found) == 1
        assert verdict is None or found == [verdict]
    assert told.ask("/results?r=9")[0] == 400
    assert told.json("/results.json?r=4")["result"]["matrix"]["fp32"]["3"]["layers.0"] == "NaN"


def test_a_viewer_without_runs_begins_with_its_results(told, tab):
    tab.goto(f"{told.url}/")
    assert "/results" in tab.url
    assert tab.locator("[data-verdict]").count() == 1
    assert told.ask("/training")[0] == 400


def test_a_folder_of_a_sweep_brings_the_runs_of_its_modes(folder, runs, tmp_path):
    data = json.loads((folder / "sweep.json").read_text())
    data["modes"]["2-1"]["path"], data["modes"]["fp32"]["path"] = runs["b"], runs["a"]
    (tmp_path / "sweep.json").write_text(json.dumps(data))
    with viewer(str(tmp_path)) as shown:
        assert [run["path"] for run in shown.json("/runs.json")["runs"]] == [runs["a"], runs["b"]]
        assert shown.json("/results.json")["results"][0]["kind"] == "sweep"
        assert shown.json("/diff.json")["verdict"] == "fault"


def test_a_result_that_changes_or_goes_is_said(folder, tmp_path):
    path = tmp_path / "audit.json"
    shutil.copy(folder / "audit.json", path)
    with viewer(str(path)) as shown:
        (result,) = shown.session.results
        path.write_text(path.read_text().replace("layers.1.weight", "layers.77.weight"))
        result.refresh()
        assert "layers.77.weight" in shown.ask("/results")[2].decode()
        path.unlink()
        result.refresh()
        assert "class='problem'" in shown.ask("/results")[2].decode()


@pytest.mark.parametrize("text", ["[]", "{}", '{"rows": 1, "tokens": 2, "perplexity": 3}', "{", '{"modes": {}}'])
def test_a_file_that_is_no_result_is_refused(tmp_path, text):
    from layertap.errors import LayertapError
    from layertap.view.sides import Session

    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(LayertapError, match=r"x\.json|knockout"):
        Session([str(path)])


def test_a_run_that_goes_away_is_said(runs, tmp_path):
    shutil.copytree(runs["a"], tmp_path / "run")
    with viewer(str(tmp_path / "run")) as shown:
        assert "class='problem'" not in shown.ask("/")[2].decode()
        shutil.rmtree(tmp_path / "run")
        (side,) = shown.session.sides
        assert side.refresh()
        assert not side.refresh()
        for page in ("/", "/runs"):
            html = shown.ask(page)[2].decode()
            assert "class='problem'" in html
        status, _, body = shown.ask("/site.html?site=blocks.3.norm")
        assert (status == 200) or b"cannot be read any more" in body
        assert shown.json("/runs.json")["runs"][0]["gone"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_serious_is_wrong_on_these_pages(trained, told, tab, scheme):
    tab.emulate_media(color_scheme=scheme)
    pages = [f"{told.url}/results?r={number}" for number in range(5)]
    for page in (f"{trained.url}/runs", f"{trained.url}/training", *pages):
        tab.goto(page)
        assert (page, findings(tab)) == (page, [])


def test_which_file_is_no_result_is_in_the_message(tmp_path):
    from layertap.view.results import read_result

    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(BadArgument, match=r"x\.json.*not one of sweep, audit"):
        read_result(tmp_path / "x.json")
