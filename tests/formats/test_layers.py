"""B4: folders of `layer_{n}_output.pt`, as the users' scripts write them, in and out."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from formats.foreign import bits, recorded, same
from layertap.errors import BadArgument, CorruptRun, NoTensor, RunError, RunExists
from layertap.formats import export, open_run, read_layers
from layertap.formats.naming import layer_names
from layertap.site import Site
from layertap.store import MemoryWriter, Run


def their_statistics(tensor: torch.Tensor) -> dict[str, Any]:
    """Word for word what their script computes."""
    return {
        "shape": tensor.shape,
        "dtype": str(tensor.dtype),
        "mean": tensor.float().mean().item(),
        "std": tensor.float().std().item(),
        "min": tensor.float().min().item(),
        "max": tensor.float().max().item(),
        "has_nan": torch.isnan(tensor).any().item(),
        "has_inf": torch.isinf(tensor).any().item(),
    }


def write(
    folder: Path, names: list[str], seed: int = 0, dtype: torch.dtype = torch.bfloat16
) -> dict[str, torch.Tensor]:
    folder.mkdir()
    torch.manual_seed(seed)
    tensors = {name: torch.randn(1, 32, 48, dtype=dtype) for name in names}
    for name, tensor in tensors.items():
        torch.save(tensor, folder / f"{name}_output.pt")
    statistics = {name: their_statistics(tensor) for name, tensor in tensors.items()}
    torch.save(statistics, folder / "statistics.pt")
    ids = torch.arange(32)[None]
    metadata = {"prompt": "你好", "input_ids": ids, "attention_mask": torch.ones_like(ids), "statistics": statistics}
    torch.save(metadata, folder / "metadata.pt")
    return tensors


COMPILED = ["embedding", *(f"layer_{number}" for number in range(1, 13))]
GPU = [*(f"layer_{number}" for number in range(12)), "final_norm", "logits"]


@pytest.mark.parametrize("names", [COMPILED, GPU], ids=["compiled", "gpu"])
def test_b4_their_folder_reads_in_natural_order(tmp_path: Path, names: list[str]) -> None:
    tensors = write(tmp_path / "full_model", names)
    run = read_layers(tmp_path / "full_model")
    assert [str(site) for site in run.sites] == names, "layer_10 comes after layer_9"
    assert run.problems == ()
    for name, tensor in tensors.items():
        found = run[name].tensor()
        assert found.dtype == torch.bfloat16
        assert bits(found) == bits(tensor)
        assert run[name].verify()
    assert run.info["prompt"] == "你好"
    assert [str(record.site) for record in run.inputs] == [":input.input_ids", ":input.attention_mask"]
    assert run[":input.input_ids"].tensor().tolist() == [list(range(32))]
    assert [record.order for record in run.records()] == sorted(record.order for record in run.records())


def test_b4_what_is_inside_a_layer_comes_before_it(tmp_path: Path) -> None:
    write(tmp_path / "x", ["logits", "layer_2", "layer_10_mlp", "odd", "layer_10", "final_norm", "layer_2_mlp"])
    torch.save(torch.ones(2), tmp_path / "x" / "lm_head.pt")
    names = [str(site) for site in read_layers(tmp_path / "x").sites]
    expected = ["layer_2_mlp", "layer_2", "layer_10_mlp", "layer_10", "odd", "final_norm", "lm_head", "logits"]
    assert names == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_b4_statistics_taken_in_the_tensors_own_dtype_pass(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = write(tmp_path / "x", COMPILED[:4], dtype=dtype)
    naive = {
        name: {"mean": tensor.mean(), "std": tensor.std(), "min": tensor.min(), "max": tensor.max()}
        for name, tensor in tensors.items()
    }
    torch.save(naive, tmp_path / "x" / "statistics.pt")
    assert read_layers(tmp_path / "x").problems == ()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"mean": 0.5}, "mean 0.5 there"),
        ({"std": 0.9}, "std 0.9 there"),
        ({"max": 3.0}, "max 3 there"),
        ({"min": math.nan}, "min nan there"),
        ({"shape": [1, 32, 47]}, r"shape \[1, 32, 47\] there, \[1, 32, 48\] in the tensor"),
        ({"dtype": "torch.float32"}, "dtype float32 there, bfloat16 in the tensor"),
        ({"has_nan": True}, "has_nan True there, False in the tensor"),
        ({"has_inf": True}, "has_inf True there, False in the tensor"),
    ],
)
def test_b4_statistics_that_are_not_the_tensors_are_told(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    write(tmp_path / "x", COMPILED)
    statistics = torch.load(tmp_path / "x" / "statistics.pt")
    statistics["layer_3"].update(change)
    torch.save(statistics, tmp_path / "x" / "statistics.pt")
    run = read_layers(tmp_path / "x")
    (problem,) = run.problems
    assert "statistics.pt: layer_3 differs from the tensor in layer_3_output.pt" in problem
    assert re.search(told, problem), problem
    assert len(run.sites) == 13


def test_b4_a_stale_layer_of_another_run_is_told(tmp_path: Path) -> None:
    write(tmp_path / "old", COMPILED, seed=1)
    write(tmp_path / "x", COMPILED)
    (tmp_path / "old" / "layer_7_output.pt").replace(tmp_path / "x" / "layer_7_output.pt")
    (problem,) = read_layers(tmp_path / "x").problems
    assert "layer_7 differs from the tensor in layer_7_output.pt" in problem


def test_b4_statistics_alone_are_a_run_without_tensors(tmp_path: Path) -> None:
    tensors = write(tmp_path / "x", COMPILED)
    for file in (tmp_path / "x").glob("*_output.pt"):
        file.unlink()
    run = open_run(tmp_path / "x")
    assert [str(site) for site in run.sites] == COMPILED
    record = run["layer_2"].record
    assert (record.fingerprint, record.sketch, record.kept) == (0, b"", "stats")
    assert (record.shape, record.dtype) == ((1, 32, 48), "bfloat16")
    wide = tensors["layer_2"].double()
    assert record.statistics.std == pytest.approx(wide.std(correction=0).item(), rel=1e-6), "theirs is ddof 1"
    assert record.statistics.l2 == pytest.approx(wide.norm().item(), rel=1e-6)
    assert math.isnan(record.statistics.abs_mean)
    (problem,) = run.problems
    assert "statistics.pt: every layer is known from its statistics alone: no tensor, fingerprint or sketch" in problem
    with pytest.raises(NoTensor):
        run["layer_2"].tensor()


def test_b4_statistics_in_metadata_serve_when_the_file_is_gone(tmp_path: Path) -> None:
    write(tmp_path / "x", COMPILED)
    (tmp_path / "x" / "statistics.pt").unlink()
    (tmp_path / "x" / "layer_4_output.pt").unlink()
    run = read_layers(tmp_path / "x")
    assert [str(site) for site in run.sites] == COMPILED
    assert run["layer_4"].record.kept == "stats"
    (problem,) = run.problems
    assert "layer_4 has no file that can be read" in problem


def test_b4_the_guide_calls_the_embedding_layer_0(tmp_path: Path) -> None:
    write(tmp_path / "x", COMPILED)
    statistics = torch.load(tmp_path / "x" / "statistics.pt")
    statistics = {("layer_0" if name == "embedding" else f"{name}_output"): entry for name, entry in statistics.items()}
    statistics["layer_0"]["max"] = 99.0
    torch.save(statistics, tmp_path / "x" / "statistics.pt")
    run = read_layers(tmp_path / "x")
    assert [str(site) for site in run.sites] == COMPILED
    assert "embedding differs from the tensor in embedding_output.pt (max 99 there" in run.problems[0]


def test_b4_a_layer_may_hold_a_tuple(tmp_path: Path) -> None:
    tmp_path.joinpath("x").mkdir()
    torch.save((torch.ones(2), None, torch.zeros(3)), tmp_path / "x" / "layer_1_output.pt")
    run = read_layers(tmp_path / "x")
    assert [str(site) for site in run.sites] == ["layer_1:output.0", "layer_1:output.2"]
    assert run["layer_1:output.2"].tensor().tolist() == [0, 0, 0]


BLOCKS = ["model.embed_tokens", *(f"model.layers.{number}" for number in range(12)), "model.norm", "lm_head"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int64])
def test_b4_round_trip(tmp_path: Path, dtype: torch.dtype) -> None:
    run = recorded(BLOCKS, dtype=dtype, info={"prompt": "Hello"}, input_ids=torch.tensor([[1, 2]]))
    done = export(run, tmp_path / "x", "layers")
    assert done.left_out == ()
    assert done.files[0] == "embedding_output.pt"
    assert done.files[-4:] == ("final_norm_output.pt", "logits_output.pt", "statistics.pt", "metadata.pt")
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == sorted(done.files)
    again = read_layers(tmp_path / "x")
    assert again.problems == ()
    assert again.info["prompt"] == "Hello"
    assert again[":input.input_ids"].tensor().tolist() == [[1, 2]]
    names = ["embedding", *(f"layer_{number}" for number in range(1, 13)), "final_norm", "logits"]
    assert [str(site) for site in again.sites] == names
    for path, name in zip(BLOCKS, names, strict=True):
        same(run[path], again[name])
    export(again, tmp_path / "y", "layers")
    for name in (*done.files[:-2],):
        assert bits(torch.load(tmp_path / "x" / name)) == bits(torch.load(tmp_path / "y" / name))


def test_b4_exported_statistics_are_what_their_script_computes(tmp_path: Path) -> None:
    values = {
        "layers.0": torch.tensor([1.0, 2.0, 4.0]),
        "layers.1": torch.tensor([1.0, math.nan, 4.0]),
        "layers.2": torch.tensor([1.0, math.inf, 4.0]),
        "layers.3": torch.tensor([-math.inf, math.inf, 4.0]),
        "layers.4": torch.tensor([-math.inf, -math.inf]),
    }
    export(recorded(values), tmp_path / "x")
    saved = torch.load(tmp_path / "x" / "statistics.pt")
    for number, tensor in enumerate(values.values(), 1):
        expected = their_statistics(tensor)
        found = saved[f"layer_{number}"]
        assert list(found) == list(expected)
        for key in ("mean", "std", "min", "max"):
            assert found[key] == pytest.approx(expected[key], nan_ok=True), (number, key)
        assert (found["has_nan"], found["has_inf"]) == (expected["has_nan"], expected["has_inf"])
        assert (tuple(found["shape"]), found["dtype"]) == (tuple(expected["shape"]), expected["dtype"])
    assert read_layers(tmp_path / "x").problems == ()


def test_b5_only_some_layers_keep_their_true_names(tmp_path: Path) -> None:
    done = export(recorded(["h.0", "h.30", "h.61"]), tmp_path / "x")
    assert done.files[:3] == ("layer_1_output.pt", "layer_31_output.pt", "layer_62_output.pt")


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["0", "1", "2"], {"0": "layer_1", "1": "layer_2", "2": "layer_3"}),
        (["a.2", "a.0", "a.1"], {"a.2": "layer_1", "a.0": "layer_2", "a.1": "layer_3"}),
        (
            [
                "v.embeddings.patch_embeddings",
                "v.embeddings",
                "v.layer.0.mlp.experts.0",
                "v.layer.0.mlp.experts.1",
                "v.layer.0",
            ],
            {"v.embeddings": "embedding", "v.layer.0": "layer_1"},
        ),
        (
            ["d.embed_tokens", "d.embed_positions", "d.layers.0"],
            {"d.embed_tokens": "embedding", "d.layers.0": "layer_1"},
        ),
        (["embed", "relu"], {}),
        (["lm_head"], {"lm_head": "lm_head"}),
        ([], {}),
    ],
)
def test_b4_names_of_layers(paths: list[str], expected: dict[str, str]) -> None:
    assert layer_names(paths) == expected


def test_b4_what_has_no_place_is_told(tmp_path: Path) -> None:
    run = recorded(["wte", *BLOCKS, "model.layers.0.mlp", "model.layers.1:output.1", "model.layers.2@1", "x:input"])
    done = export(run, tmp_path / "x")
    reasons = {item.site: item.why for item in done.left_out}
    assert set(reasons) == {"wte", "model.layers.0.mlp", "model.layers.1:output.1", "model.layers.2@1", "x:input"}
    assert "names={path: name}" in reasons["wte"]
    assert "one tensor per layer" in reasons["model.layers.2@1"]
    assert "left out: x:input: the layout has a place for output tensors only" in str(done)
    given = export(run, tmp_path / "y", names={"wte": "embedding", "lm_head": "head"})
    assert {"embedding_output.pt", "head_output.pt"} <= set(given.files)
    assert bits(torch.load(tmp_path / "y" / "embedding_output.pt")) == bits(run["wte"].tensor())
    assert "model.embed_tokens" in {item.site for item in given.left_out}, "one name, one site: the given one"


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ({"model.layer.0": "layer_1"}, "the run has no 'model.layer.0'; nearest: model.layers.0"),
        ({"lm_head": "../head"}, r"'lm_head' cannot be called '../head'"),
        ({"lm_head": "a", "model.norm": "a"}, "'a' is given to more than one site"),
    ],
)
def test_b4_names_that_cannot_be(tmp_path: Path, names: dict[str, str], told: str) -> None:
    with pytest.raises(BadArgument, match=told):
        export(recorded(BLOCKS), tmp_path / "x", names=names)
    assert list((tmp_path / "x").iterdir()) == []


def test_b4_one_step_is_exported_and_the_others_are_told(tmp_path: Path) -> None:
    run = recorded(["h.0", "h.1"], steps=3)
    done = export(run, tmp_path / "x")
    assert [item.site for item in done.left_out] == ["step 1", "step 2"]
    export(run, tmp_path / "y", step=2)
    assert bits(torch.load(tmp_path / "y" / "layer_1_output.pt")) == bits(run["h.0"].at(step=2).tensor())
    with pytest.raises(BadArgument, match="step=7: the run has steps 0, 1, 2"):
        export(run, tmp_path / "z", step=7)


def test_b4_statistics_only_runs_export_their_statistics(tmp_path: Path) -> None:
    done = export(recorded(["h.0", "h.1"], keep=False), tmp_path / "x")
    assert done.files == ("statistics.pt", "metadata.pt")
    assert "its tensor was not kept; record with keep='tensor'; its statistics are written" in str(done)
    again = open_run(tmp_path / "x")
    assert [str(site) for site in again.sites] == ["layer_1", "layer_2"]
    expected = recorded(["h.0", "h.1"], keep=False)["h.1"].statistics
    assert again["layer_2"].statistics.std == pytest.approx(expected.std, rel=1e-12)


def test_b4_export_refuses_and_replaces(tmp_path: Path) -> None:
    export(recorded([f"h.{number}" for number in range(5)]), tmp_path / "x")
    (tmp_path / "x" / "notes.txt").write_text("mine")
    with pytest.raises(RunExists, match=r"already contains 7 file\(s\) of the layers layout"):
        export(recorded(["h.0"]), tmp_path / "x")
    export(recorded(["h.0"]), tmp_path / "x", exists="replace")
    there = sorted(path.name for path in (tmp_path / "x").iterdir())
    assert there == ["layer_1_output.pt", "metadata.pt", "notes.txt", "statistics.pt"], (
        "no layer of the older export stays"
    )
    with pytest.raises(RunExists, match="contains files of the layers layout"):
        export(recorded(["h.0"]), tmp_path / "x", "monitor", exists="replace")


def test_b4_export_onto_itself(tmp_path: Path) -> None:
    tensors = write(tmp_path / "x", COMPILED)
    export(read_layers(tmp_path / "x"), tmp_path / "x", exists="replace")
    run = read_layers(tmp_path / "x")
    assert run.problems == ()
    assert all(bits(run[name].tensor()) == bits(tensor) for name, tensor in tensors.items())


def test_b4_a_failed_export_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(recorded(["h.0", "h.1"]), tmp_path / "x")
    before = {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()}
    assert len(before) == 4
    original, count = torch.save, iter(range(10))

    def full(*arguments: Any) -> None:
        original(*arguments)
        if next(count) == 1:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(RunError, match=r"No space left on device\); nothing was exported"):
        export(recorded(["h.0", "h.1"], seed=1), tmp_path / "x", exists="replace")
    assert {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()} == before


def test_b4_nothing_to_export_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="no numbered blocks among embed, relu; name them"):
        export(recorded(["embed", "relu"]), tmp_path / "x")


def test_an_empty_folder_of_layers_is_an_error(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "statistics.pt")
    with pytest.raises(CorruptRun, match="nothing in it could be read: it contains no tensors and no statistics"):
        read_layers(tmp_path)


def test_ranks_have_no_place(tmp_path: Path) -> None:
    source = recorded(["h.0"])
    writer = MemoryWriter(info={})
    for rank in (0, 1):
        writer.add(replace(source["h.0"].record, rank=rank), source["h.0"].tensor().numpy())
    writer.close()
    done = export(Run(writer), tmp_path / "x")
    assert [(item.site, item.why) for item in done.left_out] == [
        ("rank 1", "the layout has no ranks; rank 0 is exported")
    ]
    assert Site(path="layer_1") in read_layers(tmp_path / "x").sites
