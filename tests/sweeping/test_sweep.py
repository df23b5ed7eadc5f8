"""The whole of a sweep: every mode in a process of its own, the rest of them unharmed by any."""

import json
import math
import pickle

import numpy as np
import pytest
from typer.testing import CliRunner

import layertap as lt
from layertap import cli
from layertap.errors import BadArgument
from layertap.sweeping import Sweep, read_sweep
from sweeping.nets import write


def test_e7_bit_identical_modes_are_grouped_and_the_first_line_says_so(swept):
    _, result = swept
    assert result.groups == (("fp32", "0", "after"), ("2-1",), ("vandal",))
    first = str(result).splitlines()[0]
    assert "fp32 = 0 = after" in first
    assert "the reference does not compute in the precision of its name" in first
    assert {note.values["mode"] for note in result.notes if note.code == "sweep.no_effect"} == {"0"}


def test_e7_a_mode_that_fails_or_records_nothing_is_told_and_stops_no_other(swept):
    _, result = swept
    assert "unexpected keyword argument 'nothing'" in result.modes["wrong"].error
    assert "mute" in [mode.name for mode in result.failed]
    assert result.modes["mute"].run is None
    assert result.modes["fp32"].run.sites
    assert result.verdict == "inconclusive"
    assert result.exit_code == 3
    assert "wrong has no run" in str(result)


def test_e7_a_mode_that_patches_torch_and_sets_variables_changes_no_other(swept, tmp_path, monkeypatch):
    monkeypatch.setenv("SEEN", "1")  # nor does the caller's own environment
    monkeypatch.setenv("SCAN", "torch")
    _, result = swept
    path = write(tmp_path)
    other = lt.sweep(path, tmp_path / "runs", ["vandal", "after"], changes={"reference": "after"}, jobs=1)
    for name in ("vandal", "after"):
        one, two = (side.modes[name].run for side in (result, other))
        assert [str(site) for site in one.sites] == [str(site) for site in two.sites]
        assert all(one[site].fingerprint == two[site].fingerprint for site in one.sites)


def test_e6_the_same_input_is_proven_and_every_leaf_of_a_block_is_there(swept):
    _, result = swept
    run = result.modes["2-1"].run
    assert [str(site) for site in run.sites] == [
        *("layers.0:input", "layers.0:output.0", "layers.0:output.1"),
        *("layers.2:input", "layers.2:output.0", "layers.2:output.1"),
    ]
    assert len({record.fingerprint for mode in ("fp32", "2-1") for record in result.modes[mode].run.inputs}) == 1


def test_the_matrix_holds_every_pair_at_every_site_both_ways(swept):
    _, result = swept
    a, b = (result.modes[name].run["layers.2:output.1"].numpy().astype(np.float64) for name in ("fp32", "2-1"))
    error = np.linalg.norm(b - a)
    assert result.matrix["fp32"]["2-1"]["layers.2:output.1"] == pytest.approx(error / np.linalg.norm(a), rel=1e-6)
    assert result.matrix["2-1", "fp32", "layers.2:output.1"] == pytest.approx(error / np.linalg.norm(b), rel=1e-6)
    assert set(result.matrix["fp32", "0"].values()) == {0.0}
    assert "wrong" not in result.matrix


def test_e7_what_a_mode_computes_in_is_known_by_evidence(swept):
    _, result = swept
    assert result.modes["2-1"].bits == 8
    assert "round" in result.modes["2-1"].dtypes["int8"]
    assert result.modes["fp32"].bits == 0
    assert "kernels" in result.modes["fp32"].dtypes["float32"]


def test_e5_every_metric_of_the_difference_is_numpys(swept):
    _, result = swept
    row = next(row for row in result.modes["2-1"].rows if row.site == "layers.2:output.0")
    a, b = (result.modes[name].run["layers.2:output.0"].numpy().astype(np.float64) for name in ("fp32", "2-1"))
    d = b - a
    expected = {
        "mse": (d**2).mean(),
        "mae": np.abs(d).mean(),
        "rmse": math.sqrt((d**2).mean()),
        "relative_mse": (d**2).mean() / (a**2).mean(),
        "relative_mae": np.abs(d).mean() / np.abs(a).mean(),
        "pearson": np.corrcoef(a.ravel(), b.ravel())[0, 1],
        "max": np.abs(d).max(),
    }
    assert {name: row.metrics[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    for place in (50, 90, 95, 99):
        assert row.metrics[f"p{place}"] == pytest.approx(np.percentile(np.abs(d), place), rel=0.01)
    assert row.sqnr == pytest.approx(-10 * math.log10((d**2).sum() / (a**2).sum()), rel=1e-6)
    inner = next(row for row in result.modes["2-1"].rows if row.site == "layers.2:output.1")
    assert 0 < inner.ideal_sqnr - inner.sqnr < 6, "the grid's own noise, and what the layers before it have added"


def test_e8_questions_are_answered(swept):
    _, result = swept
    cost, same = result.answers
    assert (cost.reference, cost.candidate, cost.before) == ("fp32", "2-1", 0.0)
    assert cost.first_site == "layers.0:output.0"
    assert same.error == 0
    text = str(result)
    assert "what the grid costs: 2-1 against fp32: relative error " in text
    assert "is 0 the reference: 0 is bit-identical to fp32" in text


def test_a_result_is_data(swept, tmp_path):
    _, result = swept
    assert str(pickle.loads(pickle.dumps(result))) == str(result)
    result.to_json(tmp_path / "result.json")
    text = (tmp_path / "result.json").read_text(encoding="utf-8")
    data = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    again = Sweep.from_dict(data)
    assert again.to_dict() == result.to_dict()
    assert str(read_sweep(result.folder)) == str(result)
    result.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "fp32 = 0 = after" in page
    assert "fp32 = 0 = after" in result._repr_html_()


def test_identical_tensors_are_on_the_disk_once(swept):
    _, result = swept
    files = {
        name: {path.stat().st_ino for path in (result.modes[name].run.path / "tensors").iterdir()}
        for name in ("fp32", "0", "2-1")
    }
    assert files["0"] == files["fp32"], "a bit-identical mode has no file of its own"
    assert files["fp32"] < files["2-1"], "what it shares is linked, what differs is its own"
    for name in files:
        run = result.modes[name].run
        assert not run.problems
        assert all(run[site].verify() for site in run.sites)
    residual = [
        record.key
        for record in result.modes["fp32"].run.records()
        if str(record.site) in ("layers.0:output.0", "layers.2:input")
    ]
    assert len(residual) == 2


def test_a_finished_mode_is_kept_and_a_changed_one_is_run_again(tmp_path):
    path = write(tmp_path)
    modes = ["fp32", "2-1"]
    first = lt.sweep(path, tmp_path / "runs", modes)
    assert not any(mode.resumed for mode in first.modes.values())
    again = lt.sweep(path, tmp_path / "runs", "essential")
    assert all(mode.resumed for mode in again.modes.values())
    assert again.matrix["fp32", "2-1"] == first.matrix["fp32", "2-1"]
    path.write_text(path.read_text().replace('SCAN = "torch"', 'SCAN = "torch", MORE = "1"'))
    changed = lt.sweep(path, tmp_path / "runs", modes)
    assert [changed.modes[name].resumed for name in modes] == [True, False]
    helper = tmp_path / "helper.py"  # a file that the target's file imports
    helper.write_text(helper.read_text().replace("x + h", "x + 2 * h"))
    rerun = lt.sweep(path, tmp_path / "runs", ["fp32"])
    assert not rerun.modes["fp32"].resumed
    assert rerun.groups == (("fp32",),)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[modes.fp32]", "[modes.fp23]"), "the reference 'fp32' is not a mode; did you mean 'fp23'"),
        (('env = { UNUSED = "1" }', 'envs = { UNUSED = "1" }'), "there is no key 'envs'; did you mean 'env'"),
        (("random = [2, 32]", "random = [0]"), "must be a shape of whole numbers above 0"),
        (('essential = ["fp32", "2-1"]', 'essential = ["fp32", "2_1"]'), "there is no mode '2_1'; did you mean '2-1'"),
        (("[presets]", "[presets"), "is not valid TOML"),
    ],
)
def test_a_wrong_definition_says_what_where_and_the_nearest(tmp_path, change, said):
    path = write(tmp_path)
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(BadArgument) as raised:
        lt.sweep(path, tmp_path / "runs")
    assert said in str(raised.value)
    assert not (tmp_path / "runs").exists()


def test_e1_e3_the_command_line_prints_and_leaves_with_the_verdict(swept):
    path, result = swept
    done = CliRunner().invoke(cli.app, ["sweep", str(path), "-o", result.folder, "--preset", "essential"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("2 modes, no two of them bit-identical: fp32, 2-1\nNOISE: ")
    done = CliRunner().invoke(cli.app, ["sweep", str(path), "-o", result.folder, "--modes", "fp32,0", "--json"])
    assert done.exit_code == 3, done.output
    assert json.loads(done.stdout)["groups"] == [["fp32", "0"]]
    assert json.loads(done.stdout)["verdict"] == "inconclusive"
    done = CliRunner().invoke(cli.app, ["sweep", str(path), "-o", result.folder, "--modes", "fp32,0"])
    assert "INCONCLUSIVE: 1 against fp32: 1 identical, 1 whose settings changed nothing" in done.output
    # Nothing is set in `after`: it may be the same.
    done = CliRunner().invoke(cli.app, ["sweep", str(path), "-o", result.folder, "--modes", "fp32,after"])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(cli.app, ["sweep", str(path), "-o", result.folder, "--modes", "fp32", "--screen"])
    assert "MODE fp32\n" in done.output
    assert "INPUT (Shape: [2, 32, 32]):\n  First 10 values: ['" in done.output


def test_e4_one_layer_of_every_mode_as_npz_json_and_png(swept, tmp_path):
    _, result = swept
    result.to_npz(tmp_path / "first_layer_io_all_modes.npz")
    arrays = np.load(tmp_path / "first_layer_io_all_modes.npz")
    modes = [name for name, mode in result.modes.items() if mode.run is not None]
    assert sorted(arrays.files) == sorted(f"mode_{name}_{role}" for name in modes for role in ("input", "output"))
    run = result.modes["2-1"].run
    assert np.array_equal(arrays["mode_2-1_output"], run["layers.0:output.0"].numpy())
    stats = json.loads((tmp_path / "first_layer_io_all_modes_stats.json").read_text(), parse_constant=pytest.fail)
    entry = stats["modes"]["2-1"]["output"]
    assert set(entry) == {"shape", "first_10", "mean", "std", "min", "max"}
    assert entry["shape"] == [2, 32, 32]
    result.to_png(tmp_path / "first_layer_output_diff.png")
    assert (tmp_path / "first_layer_output_diff.png").read_bytes().startswith(b"\x89PNG")
