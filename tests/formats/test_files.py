"""What people already have: folders and files of tensors by any name, dicts, and the dumps of other tools."""

from __future__ import annotations

import base64
import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import layertap as lt
from layertap.errors import BadArgument, CorruptRun, NotARun
from layertap.formats import open_run
from literals import fixed_part

GENERATOR = torch.Generator().manual_seed(0)
VALUES = [torch.randn(1, 4, 8, generator=GENERATOR) for _ in range(12)]
NAMES = [f"layer_{n}" for n in range(12)]


def save(folder: Path, tensors: dict[str, Any], suffix: str = ".pt") -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    for name, tensor in tensors.items():
        if suffix == ".npy":
            np.save(folder / f"{name}.npy", tensor.numpy())
        elif suffix == ".safetensors":
            save_file({name: tensor}, folder / f"{name}.safetensors")
        else:
            torch.save(tensor, folder / f"{name}{suffix}")
    return folder


def layers(change: Any = None) -> dict[str, torch.Tensor]:
    found = dict(zip(NAMES, VALUES, strict=True))
    return found if change is None else found | {change: found[change] + 1}


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".npy", ".safetensors"])
def test_every_file_of_a_folder_is_read_in_the_order_of_the_layers(tmp_path: Path, suffix: str) -> None:
    ours = save(tmp_path / "a", {**layers(), "embedding": VALUES[0] + 3, "lm_head": VALUES[0] * 2}, suffix)
    run = open_run(ours)
    assert [str(site) for site in run.sites] == ["embedding", *NAMES, "lm_head"]
    assert torch.equal(run["layer_7"].tensor(), VALUES[7])
    theirs = save(tmp_path / "b", {**layers("layer_7"), "embedding": VALUES[0] + 3, "lm_head": VALUES[0] * 2}, suffix)
    report = lt.diff(ours, theirs)
    assert (report.verdict, str(report.first.site)) == ("fault", "layer_7")
    assert lt.diff(ours, ours).verdict == "identical"


def test_an_lm_head_does_not_hide_the_other_files(tmp_path: Path) -> None:
    ours = save(tmp_path / "a", {**layers(), "lm_head": VALUES[0]})
    theirs = save(tmp_path / "b", {**layers("layer_3"), "lm_head": VALUES[0]})
    report = lt.diff(ours, theirs)
    assert (report.verdict, str(report.first.site)) == ("fault", "layer_3")


@pytest.mark.parametrize("layout", ["layer_0_output.pt", "layer_0.pt", "epoch_1_batch_0_x.pt"])
def test_what_is_not_read_is_listed_and_the_verdict_is_not_identical(tmp_path: Path, layout: str) -> None:
    value: Any = VALUES[0]
    if layout.startswith("epoch"):
        value = {"epoch": 1, "batch_idx": 0, "layer": "x", "alias": "x", "output_shape": [1, 4, 8], "output": value}
    for side in "ab":
        save(tmp_path / side, {Path(layout).stem: value})
    assert lt.diff(tmp_path / "a", tmp_path / "b").verdict == "identical"
    (tmp_path / "b" / "notes.txt").write_text("seed 0")
    assert lt.diff(tmp_path / "a", tmp_path / "b").verdict == "identical"
    (tmp_path / "b" / "extra.bin").write_bytes(b"1234")
    (tmp_path / "b" / "sub").mkdir()
    report = lt.diff(tmp_path / "a", tmp_path / "b")
    assert report.verdict == "inconclusive"
    assert "2 files were not read: extra.bin, sub" in report.reasons[0]
    assert lt.diff(tmp_path / "a", tmp_path / "b", sites="**").verdict == "identical"


def test_a_damaged_file_or_one_with_code_is_no_agreement(tmp_path: Path) -> None:
    for side in "ab":
        save(tmp_path / side, layers())
    (tmp_path / "b" / "layer_99.pt").write_bytes(b"not a tensor")
    assert "layer_99.pt" in lt.diff(tmp_path / "a", tmp_path / "b").reasons[0]

    class Bomb:
        def __reduce__(self) -> Any:
            return Path.mkdir, (tmp_path / "executed",)

    (tmp_path / "b" / "layer_99.pt").write_bytes(pickle.dumps(Bomb()))
    np.save(tmp_path / "b" / "layer_98.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    torch.save({"layer_97": Bomb()}, tmp_path / "b" / "layer_97.pt")
    report = lt.diff(tmp_path / "a", tmp_path / "b")
    assert not (tmp_path / "executed").exists()
    assert report.verdict == "inconclusive"
    assert all(name in report.reasons[0] for name in ("layer_97.pt", "layer_98.npy", "layer_99.pt"))


def test_one_file_with_a_dict_a_nest_or_a_tuple(tmp_path: Path) -> None:
    flat = layers()
    torch.save(flat, tmp_path / "flat.pt")
    save_file(flat, tmp_path / "flat.safetensors")
    nested = {"layers": {str(n): {"output": value, "input": value - 1} for n, value in enumerate(VALUES)}}
    torch.save({"prompt": "Hello", "input_ids": torch.arange(4)[None], **nested}, tmp_path / "nested.pt")
    torch.save(tuple(VALUES), tmp_path / "states.pt")
    assert [str(site) for site in open_run(tmp_path / "flat.pt").sites] == NAMES
    assert [str(site) for site in open_run(tmp_path / "flat.safetensors").sites] == NAMES
    run = open_run(tmp_path / "nested.pt")
    assert {"layers.3", "layers.3:input"} <= {str(site) for site in run.sites}
    assert [record.site.leaf for record in run.inputs] == ["input_ids"]
    assert [str(site) for site in open_run(tmp_path / "states.pt").sites][:2] == ["hidden_states.0", "hidden_states.1"]
    assert lt.diff(tmp_path / "flat.pt", tmp_path / "flat.safetensors").verdict == "identical"
    assert lt.diff(flat, tmp_path / "flat.pt").verdict == "identical"
    report = lt.diff(tmp_path / "flat.pt", layers("layer_2"))
    assert (report.verdict, str(report.first.site)) == ("fault", "layer_2")


def test_dicts_of_tensors_and_arrays_in_memory() -> None:
    ours = {"layers.0": VALUES[0], "layers.1": (VALUES[1], None), "ids": [1, 2, 3], "note": "x"}
    theirs = {"layers.0": VALUES[0].numpy(), "layers.1": VALUES[1].bfloat16(), "ids": np.array([1, 2, 3])}
    report = lt.diff(ours, theirs)
    assert [row.verdict for row in report.rows] == ["identical", "noise", "identical"]
    assert lt.diff(VALUES, [*VALUES[:5], VALUES[5] * 2, *VALUES[6:]]).first.site == "hidden_states.5"
    for nothing in ({}, {"a": "text"}, [], {"a": object()}):
        with pytest.raises(BadArgument, match="no tensors in a"):
            lt.diff(nothing, theirs)
    assert "ids (list)" not in str(open_run(ours).info["unread"])
    assert lt.diff({"a": VALUES[0], "b": object()}, {"a": VALUES[0]}).verdict == "inconclusive"


def test_single_numbers_are_no_layers_but_do_not_differ_in_silence(tmp_path: Path) -> None:
    ours, theirs = ({"x": VALUES[0], "loss": loss, "about": {"step": 3}} for loss in (0.25, 0.5))
    torch.save(ours, tmp_path / "a.pt")
    torch.save(theirs, tmp_path / "b.pt")
    for one, other in ((ours, theirs), (tmp_path / "a.pt", tmp_path / "b.pt"), (ours, tmp_path / "b.pt")):
        report = lt.diff(one, other)
        assert (report.verdict, len(report.rows)) == ("identical", 1)
        assert [note for note in report.notes if "loss 0.25 / 0.5" in note], report.notes
    assert not any(fixed_part("comparable.numbers") in note for note in lt.diff(ours, tmp_path / "a.pt").notes)


@pytest.mark.parametrize("kind", ["sparse", "meta", "dtype"])
def test_values_that_cannot_be_measured_are_named(kind: str) -> None:
    values = {"sparse": VALUES[0][0].to_sparse(), "meta": torch.ones(2, device="meta"), "dtype": np.array(["a"])}
    with pytest.raises(BadArgument, match=r"the_value|no tensors"):
        lt.diff({"the_value": values[kind]}, {"the_value": VALUES[0]})
    report = lt.diff({"the_value": values[kind], "x": VALUES[0]}, {"the_value": VALUES[1], "x": VALUES[0]})
    assert report.verdict == "inconclusive"


def test_a_nest_that_multiplies_is_refused(tmp_path: Path) -> None:
    value: Any = [VALUES[0]] * 2 + ["x"]
    for _ in range(6):
        value = [value] * 30
    torch.save(value, tmp_path / "bomb.pt")
    with pytest.raises(CorruptRun, match="more than 10000 nested values"):
        open_run(tmp_path / "bomb.pt")


def encoded(array: Any) -> dict[str, str]:
    raw = io.BytesIO()
    np.save(raw, array)
    return {"array": base64.b64encode(raw.getvalue()).decode(), "polygraphy_class": "ndarray"}


def results(path: Path, *runners: dict[str, Any]) -> Path:
    """As Polygraphy writes the results of its runners."""
    data = [
        [
            f"runner-{number}",
            [
                {
                    "outputs": {
                        name: {"values": encoded(value), "polygraphy_class": "LazyArray"}
                        for name, value in step.items()
                    },
                    "runtime": 0.1,
                    "runner_name": f"runner-{number}",
                    "polygraphy_class": "IterationResult",
                }
                for step in (outputs, outputs)
            ],
        ]
        for number, outputs in enumerate(runners)
    ]
    path.write_text(json.dumps({"lst": data, "polygraphy_class": "RunResults"}))
    return path


def test_polygraphys_results_and_inputs(tmp_path: Path) -> None:
    arrays = {"/layer1/Conv_output_0": VALUES[0].numpy(), "logits": VALUES[1].numpy()}
    one = results(tmp_path / "one.json", arrays)
    two = results(tmp_path / "two.json", arrays, arrays | {"logits": VALUES[2].numpy()})
    run = open_run(one)
    assert ([str(site) for site in run.sites], len(run["logits"])) == (["/layer1/Conv_output_0", "logits"], 2)
    assert lt.diff(one, f"{two}#runner-0").verdict == "identical"
    report = lt.diff(one, f"{two}#runner-1")
    assert (report.verdict, str(report.first.site)) == ("fault", "logits")
    with pytest.raises(BadArgument, match=r"2 runners; choose one: .*two.json#runner-0"):
        open_run(two)
    with pytest.raises(NotARun, match="no such runner; the file has runner-0, runner-1"):
        open_run(f"{two}#runner-7")
    (tmp_path / "inputs.json").write_text(json.dumps([{"x": encoded(VALUES[0].numpy())}]))
    assert [str(site) for site in open_run(tmp_path / "inputs.json").sites] == ["x"]
    for text in ("{", "[]", '{"a": 1}', '{"lst": [3]}', '{"x": {"array": "@@"}}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(CorruptRun, match=r"bad\.json"):
            open_run(tmp_path / "bad.json")


def told(value: torch.Tensor, file: str) -> dict[str, Any]:
    """What dump.json says of a tensor."""
    numbers = {"Max": value.max(), "Min": value.min(), "Mean": value.mean(), "Norm": value.norm()}
    about = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(value.shape), "data_name": file}
    return about | {name: number.item() for name, number in numbers.items()}


def msprobe(folder: Path, change: float = 0.0, *, tensors: bool = True) -> Path:
    """As msprobe dumps modules: step0/rank0/dump.json and the tensors beside it."""
    place = folder / "step0" / "rank0"
    data = {}
    for n in (0, 10, 2):  # in order of execution, whatever the names say
        value = VALUES[n] + (change if n == 2 else 0)
        name = f"Module.layers.{n}.Linear.forward.0"
        data[name] = {
            "input_args": [told(VALUES[n] - 1, f"{name}.input.0.pt")],
            "input_kwargs": {},
            "output": [told(value, f"{name}.output.0.pt")],
        }
        if tensors:
            save(place / "dump_tensor_data", {f"{name}.input.0": VALUES[n] - 1, f"{name}.output.0": value})
    place.mkdir(parents=True, exist_ok=True)
    (place / "dump.json").write_text(json.dumps({"task": "tensor", "level": "L0", "data": data}))
    (place / "construct.json").write_text("{}")
    return folder


def test_msprobes_dump(tmp_path: Path) -> None:
    ours, theirs = msprobe(tmp_path / "a"), msprobe(tmp_path / "b", 0.5)
    run = open_run(ours)
    assert [str(site) for site in run.sites][:4] == ["layers.0:input", "layers.0", "layers.10:input", "layers.10"]
    assert (run["layers.2"].record.kind, run.info["unread"]) == ("Linear", [])
    report = lt.diff(ours, theirs)
    assert (report.verdict, str(report.first.site)) == ("fault", "layers.2")
    assert lt.diff(ours, ours / "step0").verdict == "identical"
    assert lt.diff(ours / "step0" / "rank0", ours).verdict == "identical"
    torch.save(VALUES[0], ours / "step0" / "rank0" / "dump_tensor_data" / "Functional.relu.0.forward.output.0.pt")
    assert "Functional.relu.0" in lt.diff(ours, ours / "step0").reasons[0]


def test_msprobes_tensor_that_is_not_what_its_statistics_say(tmp_path: Path) -> None:
    ours = msprobe(tmp_path / "a")
    assert not open_run(ours).problems
    torch.save(VALUES[0] * 1.5, ours / "step0/rank0/dump_tensor_data/Module.layers.2.Linear.forward.0.output.0.pt")
    (problem,) = open_run(ours).problems
    assert "layers.2 differs from the tensor in Module.layers.2.Linear.forward.0.output.0.pt (mean" in problem
    assert "norm" in problem


def test_msprobes_statistics_alone(tmp_path: Path) -> None:
    ours, theirs = msprobe(tmp_path / "a", tensors=False), msprobe(tmp_path / "b", 2.0, tensors=False)
    record = open_run(ours)["layers.2"].record
    assert record.kept == "stats"
    assert record.statistics.std == pytest.approx(VALUES[2].std(correction=0).item(), rel=1e-5)
    assert lt.diff(ours, ours).verdict == "inconclusive", "statistics prove no equality"
    assert str(lt.diff(ours, theirs).first.site) == "layers.2"


def dumper(folder: Path, change: float = 0.0) -> Path:
    folder.mkdir()
    tensors = [
        (f"name=attn_output___recompute_status=disabled___layer_id={n}", VALUES[n] + (change if n == 10 else 0))
        for n in (0, 10, 11)
    ]
    tensors += [("name=non_intrusive__model.norm.output", VALUES[3]), ("name=input_ids", torch.arange(4))]
    tensors += [("name=attn_output___recompute_status=disabled___layer_id=0", VALUES[4])]  # a second call
    for index, (tags, value) in enumerate(tensors, start=1):
        torch.save(
            {"value": value, "meta": {"world_rank": 0}}, folder / f"step=0___rank=0___dump_index={index}___{tags}.pt"
        )
    return folder


def test_sglangs_dumper(tmp_path: Path) -> None:
    ours, theirs = dumper(tmp_path / "a"), dumper(tmp_path / "b", 1.0)
    run = open_run(ours)
    names = [*(f"layers.{n}.attn_output" for n in (0, 10, 11)), "model.norm", "layers.0.attn_output@1"]
    assert [str(site) for site in run.sites] == names
    assert [record.site.leaf for record in run.inputs] == ["input_ids"]
    report = lt.diff(ours, theirs)
    assert (report.verdict, str(report.first.site)) == ("fault", "layers.10.attn_output")


def passes(folder: Path, change: float = 0.0) -> Path:
    """As SGLang's debug hook writes them: the head of a pass is in the file of the next one."""
    place = folder / "TP0_PP0_Rank0_pid17"
    first = {"model.layers.0.mlp": VALUES[0], "model.forward_batch_info.input_ids": torch.arange(4)}
    second = {
        "model.layers.0.mlp": VALUES[1],
        "lm_head": VALUES[2],
        "model.layers.1.mlp": [VALUES[3] + change, VALUES[4]],
    }
    return save(place, {"Pass00000": first, "Pass00001": second}).parent


def test_sglangs_passes(tmp_path: Path) -> None:
    ours, theirs = passes(tmp_path / "a"), passes(tmp_path / "b", 1.0)
    run = open_run(ours)
    assert [record.step for record in run["lm_head"]] == [0]
    assert [record.step for record in run["model.layers.0.mlp"]] == [0, 1]
    assert [record.site.leaf for record in run.inputs] == ["input_ids"]
    assert lt.diff(ours, ours / "TP0_PP0_Rank0_pid17").verdict == "identical"
    report = lt.diff(ours, theirs)
    assert (report.verdict, str(report.first.site)) == ("fault", "model.layers.1.mlp:output.0")


def test_a_file_is_loaded_once_for_all_of_its_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(layers(), tmp_path / "flat.pt")
    loads = []
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda *a, **k: loads.append(a) or load(*a, **k))
    lt.diff(tmp_path / "flat.pt", layers("layer_2"))
    assert len(loads) == 1
