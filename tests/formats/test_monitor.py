"""C7: `epoch_{e}_batch_{b}_{alias}.pt`, as the users' Monitor writes them, in and out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from formats.foreign import bits, recorded, same
from layertap.errors import BadArgument, CorruptRun, RunExists
from layertap.formats import export, open_run, read_monitor
from layertap.site import Record
from layertap.store import MemoryWriter, Run


def shape_of(output: Any) -> Any:
    if isinstance(output, tuple):
        return [None if item is None else list(item.shape) for item in output]
    return list(output.shape)


def write(folder: Path, epoch: int, batch: int | None, layer: str, alias: str, output: Any, /, **changed: Any) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"epoch_{epoch}_batch_{batch}_{alias}.pt"
    saved = {"epoch": epoch, "batch_idx": batch, "layer": layer, "alias": alias}
    torch.save({**saved, "output_shape": shape_of(output), "output": output, **changed}, path)
    return path


ATTENTION = "transformer.layers.0.self_attn"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Epochs 2 and 10, batches 0 and 3; a tuple whose second leaf is sometimes None, and an alias ending in _output."""
    torch.manual_seed(0)
    for epoch in (10, 2):
        for batch in (3, 0):
            weights = torch.randn(2, 3, 3) if batch else None
            write(tmp_path / "out", epoch, batch, ATTENTION, "attention_output", (torch.randn(2, 3, 4), weights))
            write(tmp_path / "out", epoch, batch, "head", "head", torch.randn(2, 5).bfloat16())
    return tmp_path / "out"


def test_c7_their_folder_reads_by_epoch_and_batch(folder: Path) -> None:
    run = open_run(folder)
    assert run.problems == ()
    assert [str(site) for site in run.sites] == ["head", f"{ATTENTION}:output.0", f"{ATTENTION}:output.1"]
    moments = [(record.step, record.epoch, record.batch) for record in run["head"]]
    assert moments == [(0, 2, 0), (1, 2, 3), (2, 10, 0), (3, 10, 3)], "epoch 10 comes after epoch 2"
    assert run[f"{ATTENTION}:output.1"].steps == (1, 3), "None leaves no record"
    saved = torch.load(folder / "epoch_10_batch_3_attention_output.pt")["output"]
    for leaf in (0, 1):
        found = run[f"{ATTENTION}:output.{leaf}"].at(epoch=10, batch=3)
        assert bits(found.tensor()) == bits(saved[leaf])
        assert found.verify()
    assert run.info["aliases"] == {ATTENTION: "attention_output", "head": "head"}


def test_c7_round_trip(folder: Path, tmp_path: Path) -> None:
    run = read_monitor(folder)
    done = export(run, tmp_path / "again", "monitor")
    assert done.left_out == done.notes == ()
    assert sorted(done.files) == sorted(path.name for path in folder.iterdir())
    for name in done.files:
        one, two = (torch.load(place / name) for place in (folder, tmp_path / "again"))
        assert list(one) == list(two)
        outputs = [value.pop("output") for value in (one, two)]
        assert one == two
        assert type(outputs[0]) is type(outputs[1])
        leaves = [output if isinstance(output, tuple) else (output,) for output in outputs]
        pairs = list(zip(*leaves, strict=True))
        assert all((a is None and b is None) or bits(a) == bits(b) for a, b in pairs)
    again = read_monitor(tmp_path / "again")
    assert again.sites == run.sites
    for record in run.records():
        same(run[record.site].at(step=record.step), again[record.site].at(step=record.step))


def test_c7_a_run_of_ours_exports_with_its_paths_as_aliases(tmp_path: Path) -> None:
    sites = ["model.layers.0:output.0", "model.layers.0:output.2", "fc", "fc@1", "fc:input"]
    run = recorded(sites, steps=2, moments=[(1, 5), (1, 9)], dtype=torch.bfloat16)
    done = export(run, tmp_path / "x", "monitor", names={"fc": "hidden"})
    assert done.files[:3] == (
        "epoch_1_batch_5_model.layers.0.pt",
        "epoch_1_batch_5_hidden.pt",
        "epoch_1_batch_5_hidden_call1.pt",
    )
    assert [item.site for item in done.left_out] == ["fc:input"]
    saved = torch.load(tmp_path / "x" / done.files[0])
    assert (saved["layer"], saved["alias"]) == ("model.layers.0", "model.layers.0")
    assert saved["output_shape"] == [[2, 5], None, [2, 5]]
    assert saved["output"][1] is None
    again = read_monitor(tmp_path / "x")
    for site in sites[:-1]:
        for batch in (5, 9):
            same(run[site].at(batch=batch), again[site].at(batch=batch))


def test_c7_steps_without_epochs_are_numbered_and_that_is_told(tmp_path: Path) -> None:
    done = export(recorded(["fc"], steps=2), tmp_path / "x", "monitor")
    assert done.files == ("epoch_1_batch_0_fc.pt", "epoch_1_batch_1_fc.pt")
    assert "epoch and batch not recorded" in str(done)


def test_c7_a_second_pass_in_one_batch_overwrites_nothing(tmp_path: Path) -> None:
    run = recorded(["fc"], steps=2, moments=[(1, 0), (1, 0)])
    done = export(run, tmp_path / "x", "monitor")
    assert len(set(done.files)) == 2
    assert "has that alias already" in str(done)
    again = read_monitor(tmp_path / "x")
    assert {bits(again[site].tensor()) for site in again.sites} == {bits(run["fc"].at(step=s).tensor()) for s in (0, 1)}


def test_c7_one_layer_under_two_aliases(tmp_path: Path) -> None:
    write(tmp_path / "x", 1, 0, "fc", "first", torch.zeros(2))
    write(tmp_path / "x", 1, 0, "fc", "second", torch.ones(2))
    write(tmp_path / "x", 2, 0, "fc", "second", torch.ones(3))
    run = read_monitor(tmp_path / "x")
    assert run.info["aliases"] == {"fc": "first", "fc@1": "second"}
    assert [record.shape for record in run["fc@1"]] == [(2,), (3,)]
    done = export(run, tmp_path / "y", "monitor")
    assert sorted(done.files) == sorted(path.name for path in (tmp_path / "x").iterdir())


def test_c7_an_epoch_as_a_whole_comes_after_its_batches(tmp_path: Path) -> None:
    write(tmp_path / "x", 1, None, "fc", "all", torch.ones(2))
    write(tmp_path / "x", 1, 7, "fc", "one", torch.ones(2))
    write(tmp_path / "x", 2, 0, "fc", "one", torch.ones(2))
    run = read_monitor(tmp_path / "x")
    assert [(record.epoch, record.batch, record.step) for record in run.records()] == [
        (1, 7, 0),
        (1, None, 1),
        (2, 0, 2),
    ]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"epoch": 4}, "epoch 3, batch 1 in the name, epoch 4, batch 1 in the file"),
        ({"output_shape": [9, 9]}, "output_shape is [9, 9], the output's shape is [2]"),
        ({"epoch": "three"}, "epoch 'three', batch_idx 1, layer 'fc'; expected two whole numbers and a string"),
        ({"output": "text"}, "its output contains a str, expected a tensor"),
        ({"output": (torch.ones(1), [7])}, "its output contains a int at '1.0', expected a tensor"),
        ({"output": (None, None)}, "its output contains no tensor"),
        ({"output": torch.eye(2).to_sparse()}, "its output contains layout sparse_coo"),
    ],
)
def test_c7_a_file_that_contradicts_itself_is_told(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    write(tmp_path / "x", 1, 0, "fc", "fc", torch.ones(2))
    write(tmp_path / "x", 3, 1, "fc", "fc", torch.ones(2), **changed)
    run = read_monitor(tmp_path / "x")
    (problem,) = run.problems
    assert told in problem
    assert "epoch_3_batch_1_fc.pt" in problem


def test_c7_files_of_another_kind_are_told(tmp_path: Path) -> None:
    write(tmp_path / "x", 1, 0, "fc", "fc", torch.ones(2))
    torch.save(torch.ones(2), tmp_path / "x" / "epoch_1_batch_1_fc.pt")
    torch.save({"epoch": 1}, tmp_path / "x" / "epoch_1_batch_2_fc.pt")
    problems = read_monitor(tmp_path / "x").problems
    assert "contains a Tensor, expected a dict with epoch, batch_idx, layer, alias, output_shape, output" in problems[0]
    assert "has no batch_idx, layer, output" in problems[1]
    for path in (tmp_path / "x").glob("*_batch_0_*"):
        path.unlink()
    with pytest.raises(CorruptRun, match="nothing in it could be read"):
        read_monitor(tmp_path / "x")


def test_c7_an_alias_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    done = export(recorded(["a/../../b"]), tmp_path / "x", "monitor")
    assert done.files == ("epoch_1_batch_0_a_.._.._b.pt",)
    assert [str(site) for site in read_monitor(tmp_path / "x").sites] == ["a/../../b"]


def test_c7_without_tensors_there_is_nothing_to_export(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="no output tensor was kept; record with keep='tensor'"):
        export(recorded(["fc"], keep=False), tmp_path / "x", "monitor")


def test_c7_export_refuses_a_folder_in_use(tmp_path: Path) -> None:
    export(recorded(["fc"]), tmp_path / "x", "monitor")
    with pytest.raises(RunExists, match=r"already contains 1 file\(s\) of the monitor layout"):
        export(recorded(["fc"]), tmp_path / "x", "monitor")
    export(recorded(["gc"]), tmp_path / "x", "monitor", exists="replace")
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["epoch_1_batch_0_gc.pt"]


def test_c6_a_leaf_that_was_not_kept_is_none_and_told(tmp_path: Path) -> None:
    source = recorded(["fc:output.0", "fc:output.1"])
    records: list[Record] = list(source.records())
    writer = MemoryWriter(info={})
    writer.add(records[0], source["fc:output.0"].tensor().numpy())
    writer.add(records[1])
    writer.close()
    done = export(Run(writer), tmp_path / "x", "monitor")
    assert [item.site for item in done.left_out] == ["fc:output.1"]
    assert len(torch.load(tmp_path / "x" / done.files[0])["output"]) == 1
