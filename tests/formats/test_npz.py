"""E4: one layer's input and output in every mode in one .npz, as the users' script writes it, in and out."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from formats.foreign import bits, recorded, same
from layertap.errors import BadArgument, CorruptRun, RunExists
from layertap.formats import export, open_run, read_npz

MODES = ("fp32", "0", "2-1", "2_x")


def their_statistics(array: Any) -> dict[str, Any]:
    """Word for word what their script computes, six decimals."""
    numbers = {"mean": array.mean(), "std": array.std(), "min": array.min(), "max": array.max()}
    first = [round(float(value), 6) for value in array.flatten()[:10]]
    return {"shape": list(array.shape), "first_10": first, **{k: round(float(v), 6) for k, v in numbers.items()}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    statistics: dict[str, Any] = {"timestamp": "2025-01-10 16:00:00", "model": "quamba-130m-w8a8"}
    statistics |= {"pretrained_dir": "pretrained_models/pa-0.9999", "seq_len": 16, "modes": {}}
    for mode in MODES:
        pair = {role: random.normal(size=(1, 16, 8)).astype(np.float32) for role in ("output", "input")}
        arrays |= {f"mode_{mode}_{role}": array for role, array in pair.items()}
        statistics["modes"][mode] = {role: their_statistics(array) for role, array in pair.items()}
    path = tmp_path / "first_layer_io_all_modes.npz"
    np.savez_compressed(path, **arrays)
    path.with_name("first_layer_io_all_modes_stats.json").write_text(json.dumps(statistics, indent=4))
    return path


@pytest.mark.parametrize("mode", MODES)
def test_e4_each_mode_is_a_run(file: Path, mode: str) -> None:
    run = read_npz(file, mode)
    assert run.problems == ()
    assert [str(site) for site in run.sites] == ["layer_0:input", "layer_0"]
    with np.load(file) as arrays:
        assert np.array_equal(run["layer_0"].numpy(), arrays[f"mode_{mode}_output"])
        assert np.array_equal(run["layer_0:input"].tensor().numpy(), arrays[f"mode_{mode}_input"])
    assert run["layer_0"].verify()
    assert (run.info["mode"], run.info["model"], run.info["seq_len"]) == (mode, "quamba-130m-w8a8", 16)
    assert run.name == f"{file}#{mode}"


def test_e4_a_mode_is_chosen_in_the_spec(file: Path) -> None:
    run = open_run(f"{file}#2-1")
    assert bits(run["layer_0"].tensor()) == bits(read_npz(file, "2-1")["layer_0"].tensor())
    with pytest.raises(BadArgument, match=r"has 4 modes; choose one: .*npz#fp32, .*npz#0, .*npz#2-1, .*npz#2_x"):
        open_run(file)
    with pytest.raises(BadArgument, match=r"npz#9: no such mode; the file has modes fp32, 0, 2-1, 2_x"):
        open_run(f"{file}#9")


def test_e4_statistics_that_are_not_the_arrays_are_told(file: Path) -> None:
    path = file.with_name("first_layer_io_all_modes_stats.json")
    statistics = json.loads(path.read_text())
    statistics["modes"]["0"]["output"]["max"] = 99.0
    path.write_text(json.dumps(statistics))
    (problem,) = read_npz(file, "0").problems
    assert "_stats.json: mode 0, output differs from the array (max 99 there" in problem
    assert read_npz(file, "fp32").problems == ()
    path.write_text("{")
    (problem,) = read_npz(file, "0").problems
    assert "not JSON" in problem


def layer(dtype: torch.dtype, seed: int = 0) -> Any:
    return recorded(
        ["embed:input", "embed", "model.layers.0:input", "model.layers.0", "model.layers.1:input"],
        dtype=dtype,
        seed=seed,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.int8, torch.complex64])
def test_e4_round_trip(tmp_path: Path, dtype: torch.dtype) -> None:
    runs = {"fp32": layer(dtype), "2-1": layer(dtype, seed=1)}
    done = export(runs, tmp_path / "io.npz", "npz")
    assert done.files == ("io.npz", "io_stats.json")
    assert done.notes == ("run in memory: the layer is model.layers.0",), "the first block, not the embedding"
    assert {item.site for item in done.left_out} == {"embed:input", "embed", "model.layers.1:input"}
    for mode, run in runs.items():
        again = read_npz(tmp_path / "io.npz", mode)
        assert again.problems == ()
        same(run["model.layers.0"], again["layer_0"])
        same(run["model.layers.0:input"], again["layer_0:input"])
    with np.load(tmp_path / "io.npz") as arrays:
        assert arrays.files == ["mode_fp32_input", "mode_fp32_output", "mode_2-1_input", "mode_2-1_output"]
        expected = arrays["mode_2-1_output"]
    statistics = json.loads((tmp_path / "io_stats.json").read_text())
    assert list(statistics) == ["timestamp", "model", "pretrained_dir", "seq_len", "modes"]
    assert (statistics["model"], statistics["seq_len"]) == ("Toy", 5)
    found = statistics["modes"]["2-1"]["output"]
    assert list(found) == ["shape", "first_10", "mean", "std", "min", "max"]
    if dtype != torch.complex64:
        assert found["std"] == pytest.approx(expected.astype(np.float64).std(), rel=1e-12), "numpy's, ddof 0"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2])
def test_e4_what_numpy_has_not_is_widened_and_told(tmp_path: Path, dtype: torch.dtype) -> None:
    run = layer(dtype)
    done = export(run, tmp_path / "io.npz", "npz")
    name = str(dtype).removeprefix("torch.")
    assert done.notes[1] == f"mode reference, input: numpy has no {name}; widened to float32, exactly"
    again = open_run(tmp_path / "io.npz")
    assert torch.equal(again["layer_0"].tensor(), run["model.layers.0"].tensor().float())


def test_e4_nan_is_valid_json(tmp_path: Path) -> None:
    run = recorded({"a:input": torch.tensor([1.0, math.inf]), "a": torch.tensor([1.0, math.nan, -math.inf])})
    export(run, tmp_path / "io.npz", "npz", mode="fp32")

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    statistics = json.loads((tmp_path / "io_stats.json").read_text(), parse_constant=refuse)["modes"]["fp32"]
    assert statistics["output"]["mean"] == "NaN"
    assert statistics["output"]["first_10"] == [1.0, "NaN", "-Infinity"]
    assert (statistics["input"]["mean"], statistics["input"]["min"], statistics["input"]["max"]) == (
        *("Infinity", 1.0),
        "Infinity",
    )
    again = read_npz(tmp_path / "io.npz")
    assert again.problems == ()
    same(run["a"], again["layer_0"])


def test_e4_names_choose_another_layer(tmp_path: Path) -> None:
    run = recorded(["a:input", "a", "z:input", "z"])
    export(run, tmp_path / "io.npz", "npz", names={"z:input": "input", "z": "output"})
    same(run["z"], read_npz(tmp_path / "io.npz")["layer_0"])
    with pytest.raises(BadArgument, match="this layout has input and output"):
        export(run, tmp_path / "other.npz", "npz", names={"z": "result"})
    assert not (tmp_path / "other.npz").exists()


def test_e4_an_output_alone_is_told(tmp_path: Path) -> None:
    done = export(recorded(["a", "b"]), tmp_path / "out", "npz", mode="0")
    assert done.path == tmp_path / "out" / "first_layer_io_all_modes.npz"
    assert "no input was recorded; record with what=('input', 'output')" in str(done)
    assert [str(site) for site in open_run(f"{done.path}#0").sites] == ["layer_0"]


def test_e4_a_mode_keeps_its_name_on_the_way_through(file: Path, tmp_path: Path) -> None:
    export({mode: read_npz(file, mode) for mode in MODES}, tmp_path / "all.npz", "npz")
    with np.load(tmp_path / "all.npz") as arrays:
        assert {key for key in arrays.files if "2_x" in key} == {"mode_2_x_input", "mode_2_x_output"}
    done = export(read_npz(file, "2-1"), tmp_path / "one.npz", "npz")
    assert read_npz(done.path).info["mode"] == "2-1"


def test_e4_export_refuses_and_replaces(tmp_path: Path) -> None:
    export(recorded(["a"]), tmp_path / "io.npz", "npz")
    with pytest.raises(RunExists, match=r"io.npz already exists; exists='replace' \(--replace\) replaces it"):
        export(recorded(["a"]), tmp_path / "io.npz", "npz")
    export(recorded(["a"], seed=1), tmp_path / "io.npz", "npz", exists="replace")
    same(recorded(["a"], seed=1)["a"], read_npz(tmp_path / "io.npz")["layer_0"])
    for runs, told in [({}, "no run was given"), ({"a/b": recorded(["a"])}, "leave out slashes")]:
        with pytest.raises(BadArgument, match=told):
            export(runs, tmp_path / "no.npz", "npz")
    with pytest.raises(BadArgument, match="nothing to export: no input or output tensor was kept"):
        export(recorded(["a"], keep=False), tmp_path / "no.npz", "npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["io.npz", "io_stats.json"]


def test_any_other_npz_is_a_run_in_file_order(tmp_path: Path) -> None:
    fortran = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.savez(tmp_path / "x.npz", z=fortran, a=np.float32(3), big=np.arange(3, dtype=">i4"), **{"b:c": np.zeros((0, 2))})
    run = open_run(tmp_path / "x.npz")
    assert [site.path for site in run.sites] == ["z", "a", "big", "b:c"]
    assert run["z"].tensor().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert run["a"].record.shape == ()
    assert run["big"].tensor().tolist() == [0, 1, 2]
    assert run["b%3Ac"].tensor().shape == (0, 2)
    with pytest.raises(BadArgument, match="the file has no modes"):
        read_npz(tmp_path / "x.npz", "fp32")


def test_arrays_that_are_no_numbers_are_told(tmp_path: Path) -> None:
    objects = np.array([{}], dtype=object)
    np.savez(tmp_path / "x.npz", good=np.ones(2), text=np.array(["a"]), objects=objects)
    run = read_npz(tmp_path / "x.npz")
    assert run.sites == ("good",)
    assert "text contains <U1, expected numbers" in run.problems[0]
    assert "objects: damaged, or not numbers (it contains pickled objects" in run.problems[1]
    assert "allow_pickle" not in run.problems[1]


def test_a_damaged_npz_is_an_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.ones(1000))
    whole = (tmp_path / "x.npz").read_bytes()
    for data in (whole[:500], b"", b"PK not a zip", whole[:200] + bytes(300) + whole[500:]):
        (tmp_path / "x.npz").write_bytes(data)
        with pytest.raises(CorruptRun, match=r"x\.npz"):
            read_npz(tmp_path / "x.npz")
    with open(tmp_path / "x.npz", "wb") as raw:
        np.save(raw, np.ones(3))
    with pytest.raises(CorruptRun, match=r"not an \.npz"):
        read_npz(tmp_path / "x.npz")
