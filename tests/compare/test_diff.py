"""Two runs, one verdict: the cases that the tool was made for."""

import copy
import json
import re

import pytest
import torch
from torch import nn

import layertap as lt
import models
from layertap.errors import BadArgument
from layertap.report.diff import report_text

LAYERS = ["model.embed_tokens", "model.layers.*", "model.norm", "lm_head"]


def recorded(model, inputs, path=None, **options):
    options = {"sites": LAYERS, "keep": "tensor"} | options
    with torch.no_grad(), lt.record(model, path, **options) as rec:
        models.run(model, inputs)
    return rec.run


@pytest.fixture(scope="module")
def minimax():
    """Tiny MiniMax-M2 with 62 layers: in float32, in bfloat16, and in bfloat16 with one weight row of a layer gone."""
    model, inputs = models.minimax_m2(layers=62)
    low = copy.deepcopy(model).bfloat16()
    broken = copy.deepcopy(low)
    with torch.no_grad():
        broken.model.layers[30].self_attn.o_proj.weight[5] = 0
    return {"fp32": recorded(model, inputs), "bf16": recorded(low, inputs), "broken": recorded(broken, inputs)}


def test_f1_other_precision_is_noise_beside_a_measured_floor(minimax):
    report = lt.diff(minimax["fp32"], minimax["bf16"], floor=minimax["bf16"])
    assert (report.verdict, report.exit_code, report.first) == ("noise", 0, None)
    assert len(report.rows) == 65
    assert not report.unmatched


def test_a3_b7_f1_a_zeroed_weight_row_is_a_fault_and_its_layer_comes_first(minimax):
    report = lt.diff(minimax["fp32"], minimax["broken"], floor=minimax["bf16"])
    assert (report.verdict, report.exit_code) == ("fault", 1)
    assert report.first.site == "model.layers.30"
    assert "channel 5" in report.first.why
    assert report.first.floor_kind == "measured"


def test_without_a_measured_floor_other_precision_is_noise_and_the_fault_is_no_noise(minimax):
    assert lt.diff(minimax["fp32"], minimax["bf16"]).verdict == "noise"
    report = lt.diff(minimax["fp32"], minimax["broken"])
    assert report.verdict in ("fault", "inconclusive")
    assert report.worst.site == "model.layers.30"
    assert "floor=" in str(report)


def test_from_statistics_alone_sketches_find_the_same_layer():
    model, inputs = models.qwen3()
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.model.layers[1].mlp.down_proj.weight.mul_(1.25)
    report = lt.diff(recorded(model, inputs, keep="stats"), recorded(broken, inputs, keep="stats"))
    assert report.verdict == "fault"
    assert report.first.site == "model.layers.1"
    assert report.first.estimated
    assert "≈" in str(report)
    assert [row.verdict for row in report.rows[:2]] == ["identical", "identical"]


def test_other_prompts_are_inconclusive_and_said():
    model, inputs = models.qwen3()
    other = {"input_ids": (inputs["input_ids"] + 1) % models.VOCAB}
    report = lt.diff(recorded(model, inputs), recorded(model, other))
    assert (report.verdict, report.exit_code) == ("inconclusive", 3)
    assert "input_ids" in report.reasons[0]


def test_e7_identical_runs_are_called_a_placebo(tmp_path):
    model, inputs = models.qwen3()
    first = recorded(model, inputs, tmp_path / "fp32")
    second = recorded(model, inputs, tmp_path / "int8")
    report = lt.diff(first, second)
    assert (report.verdict, report.placebo) == ("identical", True)
    assert "the candidate is the reference" in str(report)


def test_b_trap_two_folders_with_shifted_numbers_are_aligned_by_content(tmp_path):
    model, inputs = models.minimax_m2(layers=12)
    run = recorded(model, inputs)
    names = ["model.embed_tokens", *(f"model.layers.{i}" for i in range(12))]
    compiled, gpu = tmp_path / "compiled", tmp_path / "gpu"
    for folder in (compiled, gpu):
        folder.mkdir()
    for number, name in enumerate(names):
        tensor = run[name].tensor()
        torch.save(tensor, compiled / ("embedding_output.pt" if number == 0 else f"layer_{number}_output.pt"))
        if number:
            torch.save(tensor, gpu / f"layer_{number - 1}_output.pt")
    report = lt.diff(gpu, compiled)
    assert {(str(row.site), str(row.candidate_site)) for row in report.rows} == {
        (f"layer_{i}", f"layer_{i + 1}") for i in range(12)
    }
    assert all(row.verdict == "identical" for row in report.rows)
    assert any("layer" in note for note in report.notes), report.notes


def test_one_dead_token_in_4096_is_not_noise():
    class Passing(nn.Module):
        def __init__(self, dead):
            super().__init__()
            self.inner = nn.Identity()
            self.dead = dead

        def forward(self, x):
            x = x + 0
            if self.dead:
                x[2048] = 0
            return self.inner(x)

    x = torch.randn(4096, 64, generator=torch.Generator().manual_seed(0))
    whole = recorded(Passing(False), (x,), sites="inner")
    for low in (x, x.bfloat16()):
        dead = recorded(Passing(True), (low,), sites="inner")
        rows = lt.diff(whole, dead).rows
        assert rows[0].verdict == "fault"
        assert rows[0].difference.row.index == (2048,)


def test_nan_on_one_side_is_a_fault_and_other_shapes_are_not_judged():
    class Giver(nn.Module):
        def __init__(self, value):
            super().__init__()
            self.value = value
            self.inner = nn.Identity()

        def forward(self, x):
            return self.inner(self.value)

    def run(value):
        return recorded(Giver(value), (torch.ones(1),), sites="inner")

    good = torch.randn(3, 4)
    bad = good.clone()
    bad[1, 2] = float("nan")
    report = lt.diff(run(good), run(bad))
    assert report.first.why == "1 NaN on one side only"
    report = lt.diff(run(good), run(good.t().contiguous()))
    assert (report.verdict, report.first) == ("inconclusive", None)
    assert "shapes differ: 3×4 against 4×3" in report.reasons[0]
    assert "a mapping with a layout" in report.reasons[0]
    ids = torch.tensor([1, 2, 3])
    assert "integers must be equal" in lt.diff(run(ids), run(ids + torch.tensor([0, 0, 1]))).first.why


def test_unmatched_sites_count():
    model, inputs = models.qwen3()
    report = lt.diff(recorded(model, inputs), recorded(model, inputs, sites="model.layers.*"))
    assert report.verdict == "inconclusive"
    assert ("reference", "lm_head") in report.unmatched
    assert "only in the reference" in str(report)


def test_padding_is_trimmed_when_ids_prove_it():
    model, inputs = models.qwen3()
    ids = inputs["input_ids"]
    padded = torch.cat([ids, torch.zeros(ids.shape[0], 7, dtype=ids.dtype)], dim=1)
    mask = torch.cat([torch.ones_like(ids), torch.zeros(ids.shape[0], 7, dtype=ids.dtype)], dim=1)
    report = lt.diff(recorded(model, inputs), recorded(model, {"input_ids": padded, "attention_mask": mask}))
    assert report.verdict in ("noise", "identical")
    assert any("padding" in note for note in report.notes)


def test_a_floor_on_another_input_is_refused():
    model, inputs = models.qwen3()
    other = {"input_ids": (inputs["input_ids"] + 1) % models.VOCAB}
    run = recorded(model, inputs)
    with pytest.raises(BadArgument, match="floor"):
        lt.diff(run, run, floor=recorded(model, other))


def test_e5_f2_json_holds_every_metric_and_keeps_infinities(minimax, tmp_path):
    report = lt.diff(minimax["fp32"], minimax["broken"], floor=minimax["bf16"])
    report.to_json(tmp_path / "report.json")
    data = json.loads((tmp_path / "report.json").read_text())
    assert (data["verdict"], data["first"]) == ("fault", "model.layers.30")
    row = data["rows"][31]
    assert set(row["metrics"]) >= {"max_abs", "median_relative", "relative_mse", "pearson", "sqnr", "max_ulp", "close"}
    assert row["metrics"]["column"]["index"] == [5]
    assert data["rows"][0]["jump"] == "Infinity"


def test_the_page_shows_the_verdict_and_needs_nothing_else(minimax, tmp_path):
    report = lt.diff(minimax["fp32"], minimax["broken"], floor=minimax["bf16"])
    report.to_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "FAULT" in page
    assert page.count("data-state='fault'") == sum(row.verdict == "fault" for row in report.rows)
    assert "http" not in page


def test_the_first_three_lines_say_it(minimax):
    lines = str(lt.diff(minimax["fp32"], minimax["broken"], floor=minimax["bf16"])).splitlines()
    assert lines[0].startswith("FAULT: run in memory against run in memory: ")
    assert lines[1].startswith("first departure: model.layers.30 (MiniMaxM2DecoderLayer), relative error 0.0")
    assert lines[2].startswith("how sure: ")


def test_a_long_table_is_folded_and_nothing_that_departs_is_hidden(tmp_path):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4)) for _ in range(120)])
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken[60][0].weight[1] = 9
    runs = []
    for net in (model, broken):
        with lt.record(net, sites="**", keep="tensor") as rec:
            net(torch.ones(2, 4))
        runs.append(rec.run)
    report = lt.diff(*runs)
    text = str(report)
    assert len(report.rows) == 241
    assert len(text.splitlines()) < 100
    assert re.search(r"^\S+ … \S+ \(120\) +identical +0 +0$", text, re.MULTILINE), "what is equal is one line"
    assert re.search(r"^60\.0 +fault", text, re.MULTILINE)
    assert "all 241 rows: -v" in text
    assert len(report_text(report, verbose=True).splitlines()) > 241
    report.to_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.count("data-site=") == 241
    assert page.count(" data-first") == 1


def test_a_report_makes_its_folder_or_says_that_it_cannot(tmp_path):
    with lt.record(nn.Linear(2, 2), sites="") as rec:
        rec.model(torch.ones(1, 2))
    report = lt.diff(rec.run, rec.run)
    report.to_html(tmp_path / "new" / "report.html")
    with pytest.raises(BadArgument, match=r"report\.html.x: no report can be written here"):
        report.to_json(tmp_path / "new" / "report.html" / "x")


def test_rows_of_several_steps_are_told_apart():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).eval()
    broken = copy.deepcopy(model)

    def run(net, steps):
        with torch.no_grad(), lt.record(net, keep="tensor") as recorder:
            for step in range(steps):
                if net is broken and step == 2:
                    net[1].weight.zero_()
                net(torch.full((2, 8), 0.5))
                recorder.step()
        return recorder.run

    lines = str(lt.diff(run(model, 4), run(broken, 4))).splitlines()
    assert any(line.startswith("first departure: 1 at step 2") for line in lines), lines
    header = next(line.split() for line in lines if line.startswith("site"))
    row = next(line.split() for line in lines if line.startswith("1 ") and "fault" in line)
    assert header[:3] == ["site", "step", "verdict"]
    assert row[:3] == ["1", "2", "fault"]
    alone = str(lt.diff(run(model, 1), run(copy.deepcopy(model), 1)))
    assert "step" not in alone.splitlines()[3].split()
