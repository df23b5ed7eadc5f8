"""F3: whatever it is, `open_run` opens it: one file at a time, running nothing of it, and says what it cannot open."""

from __future__ import annotations

import gc
import os
import pickle
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from formats.foreign import bits, recorded
from layertap.errors import BadArgument, CorruptRun, NotARun
from layertap.formats import export, open_run, read_layers, read_monitor
from layertap.store import MemoryWriter, Run, RunWriter
from store.making import kept


class Bomb:
    """What a hostile file does when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_f3_everything_opens(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", info={})
    writer.add(*kept(np.ones((2, 2)), "h.0"))
    writer.close()
    run = open_run(tmp_path / "run")
    assert run.path == tmp_path / "run"
    assert open_run(run) is run
    memory = MemoryWriter(info={})
    memory.close()
    assert open_run(memory).count == 0
    for layout, name in (("layers", "layer_1"), ("monitor", "h.0"), ("npz", "layer_0")):
        done = export(recorded(["h.0"]), tmp_path / layout, layout)  # type: ignore[arg-type]
        opened = open_run(str(done.path))
        assert (opened.info["layout"], [str(site) for site in opened.sites]) == (layout, [name])
        assert opened.name == str(done.path)
        assert str(opened).startswith(str(done.path))


def test_f3_what_is_no_run_is_said_with_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.bin").write_text("")
    (tmp_path / "other" / "x.npz").write_text("")
    for name, told in [
        ("nowhere", "nowhere does not exist. layertap opens a run's folder"),
        ("nowhere#0", "nowhere does not exist"),
        ("empty", "empty is empty, so it is not a run"),
        ("other", r"contains model\.bin, x\.npz, so it is not a run\. Give the file itself: .*x\.npz\. layertap opens"),
        ("other/model.bin", r"a single \.bin; give the folder it is in"),
    ]:
        with pytest.raises(NotARun, match=told):
            open_run(tmp_path / name)
    for read in (read_layers, read_monitor):
        with pytest.raises(NotARun, match="No such file or directory; expected a folder"):
            read(tmp_path / "nowhere")


def test_f3_two_layouts_in_one_folder_are_not_guessed_at(tmp_path: Path) -> None:
    export(recorded(["fc"]), tmp_path / "x", "monitor")
    torch.save(torch.ones(2), tmp_path / "x" / "layer_1_output.pt")
    with pytest.raises(BadArgument, match="contains files of two layouts, layers and monitor"):
        open_run(tmp_path / "x")
    assert read_layers(tmp_path / "x").sites == ("layer_1",)


@pytest.mark.parametrize("wrap", [lambda bomb: bomb, lambda bomb: {"output": bomb}, lambda bomb: [torch.ones(1), bomb]])
def test_f3_a_pickle_with_code_is_refused_and_never_runs(tmp_path: Path, wrap: Any) -> None:
    export(recorded(["h.0", "h.1"]), tmp_path / "x")
    mark = tmp_path / "executed"
    for name in ("layer_2_output.pt", "metadata.pt"):
        torch.save(wrap(Bomb(mark)), tmp_path / "x" / name)
    (tmp_path / "x" / "layer_3_output.pt").write_bytes(pickle.dumps(wrap(Bomb(mark))))
    run = open_run(tmp_path / "x")
    assert not mark.exists()
    told = "\n".join(run.problems)
    assert "layer_2_output.pt: refused: it needs" in told
    assert "layertap runs no code from a file" in told
    assert "metadata.pt: refused" in told
    assert "layer_3_output.pt" in told
    assert "weights_only" not in told, "torch's advice would run the file"
    assert bits(run["layer_1"].tensor()) == bits(recorded(["h.0"])["h.0"].tensor()), "the rest is readable"
    assert run["layer_2"].record.kept == "stats", "its statistics are still known"


def test_f3_damaged_files_cost_only_themselves(tmp_path: Path) -> None:
    export(recorded([f"h.{number}" for number in range(6)]), tmp_path / "x")
    (tmp_path / "x" / "statistics.pt").unlink()
    (tmp_path / "x" / "metadata.pt").unlink()
    whole = (tmp_path / "x" / "layer_2_output.pt").read_bytes()
    (tmp_path / "x" / "layer_2_output.pt").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "x" / "layer_3_output.pt").write_bytes(b"")
    torch.save("a text", tmp_path / "x" / "layer_4_output.pt")
    torch.save(None, tmp_path / "x" / "layer_5_output.pt")
    (tmp_path / "x" / "layer_6_output.pt").unlink()
    os.mkfifo(tmp_path / "x" / "layer_6_output.pt")
    (tmp_path / "x" / "layer_7_output.pt").symlink_to(tmp_path / "gone")
    run = open_run(tmp_path / "x")
    assert run.sites == ("layer_1",)
    assert run.partial
    expected = ["2_output.pt: damaged", "3_output.pt: damaged", "4_output.pt: contains a str, expected a tensor"]
    expected += ["5_output.pt: contains no tensor", "6_output.pt: not a regular file", "7_output.pt: cannot be read"]
    assert len(run.problems) == 6
    for problem, told in zip(run.problems, expected, strict=True):
        assert f"{tmp_path}/x/layer_{told}" in problem


def test_f3_statistics_of_the_wrong_type_are_told(tmp_path: Path) -> None:
    torch.save(torch.ones(2), tmp_path / "layer_1_output.pt")
    torch.save([1], tmp_path / "statistics.pt")
    torch.save({"input_ids": [1, 2], "attention_mask": None}, tmp_path / "metadata.pt")
    problems = read_layers(tmp_path).problems
    assert any("statistics.pt: contains a list, expected a dict" in problem for problem in problems)
    assert any("metadata.pt: input_ids is a list, expected a tensor" in problem for problem in problems)
    torch.save({"layer_1": 3, "layer_2": {"mean": 1.0}}, tmp_path / "statistics.pt")
    problems = read_layers(tmp_path).problems
    assert any("layer_1 is a int, expected a dict" in problem for problem in problems)
    assert any("layer_2 has no shape" in problem for problem in problems)


@pytest.mark.parametrize("layout", ["layers", "monitor"])
def test_f3_opening_loads_each_file_once_and_holds_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Any
) -> None:
    export(recorded([f"h.{number}" for number in range(20)]), tmp_path / "x", layout)
    original, loads = torch.load, []
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    most = 0

    def count(path: Path, **options: Any) -> Any:
        nonlocal most
        gc.collect()
        most = max(most, len(alive))
        loads.append(Path(path).name)
        value = original(path, **options)
        found = [value] if isinstance(value, torch.Tensor) else list(value.values())
        alive.update(item for item in found if isinstance(item, torch.Tensor))
        return value

    monkeypatch.setattr(torch, "load", count)
    run = open_run(tmp_path / "x")
    assert len(run.sites) == 20
    files = sorted(path.name for path in (tmp_path / "x").iterdir())
    assert sorted(loads) == files, "once each"
    assert most <= 1, "one file at a time"
    loads.clear()
    run[run.sites[7]].tensor()
    assert len(loads) == 1
    gc.collect()
    assert len(alive) == 0, "nothing is held"
    _ = [run[site].statistics for site in run.sites]
    assert len(loads) == 1, "statistics were measured at opening"


def test_f3_a_file_that_changes_under_the_run_is_told(tmp_path: Path) -> None:
    export(recorded(["h.0"]), tmp_path / "x")
    run = open_run(tmp_path / "x")
    torch.save(torch.zeros(2, 5), tmp_path / "x" / "layer_1_output.pt")
    with pytest.raises(
        CorruptRun, match="changed since it was opened; layer_1 is no longer the tensor that was measured"
    ):
        run["layer_1"].tensor()
    (tmp_path / "x" / "layer_1_output.pt").unlink()
    with pytest.raises(CorruptRun, match="cannot be read"):
        run["layer_1"].tensor()


def test_f3_a_foreign_run_can_be_written_as_our_own(tmp_path: Path) -> None:
    export(recorded(["h.0", "h.1"], dtype=torch.bfloat16), tmp_path / "x")
    run = open_run(tmp_path / "x")
    writer = RunWriter(tmp_path / "run", info=run.info)
    for record in run.records():
        writer.add(record, run.kept_bytes(record))
    writer.close()
    ours = Run(tmp_path / "run")
    assert ours.sites == run.sites
    assert ours["layer_2"].verify()


def test_memory_takes_what_it_is_given_and_gives_copies() -> None:
    record, data = kept(np.arange(4.0), "a")
    data = data.copy()
    writer = MemoryWriter(info={})
    writer.add(record, data)
    writer.close()
    run = Run(writer)
    run["a"].tensor().zero_()
    assert run["a"].tensor().tolist() == [0, 1, 2, 3], "what a reader does does not reach the run"
    data.view(np.float64)[0] = 9
    assert run["a"].tensor()[0] == 9, "the bytes were taken over, not copied"


def test_memory_asks_a_function_each_time() -> None:
    record, data = kept(np.arange(4.0), "a")
    asked = []
    writer = MemoryWriter(info={}, name="files")
    writer.add(record, lambda: asked.append(1) or data.copy())
    writer.problems.append("one file is missing")
    writer.close()
    run = Run(writer)
    assert asked == []
    assert (writer.bytes, run.problems) == (32, ("one file is missing",))
    assert str(run) == "files: 1 sites, 1 records, step 0, partial (1 problem(s), see .problems)"
    for _ in range(2):
        assert run["a"].tensor().tolist() == [0, 1, 2, 3]
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"layout": "hdf5"}, "layout='hdf5': expected 'layers', 'monitor', 'npz'"),
        ({"exists": "append"}, "exists='append': expected 'error' or 'replace'"),
        ({"run": {"a": None}}, "the layers layout takes one run, 1 were given; only npz takes several"),
    ],
)
def test_f3_arguments_that_cannot_be(tmp_path: Path, arguments: dict[str, Any], told: str) -> None:
    given = {"run": recorded(["h.0"]), "path": tmp_path / "x", **arguments}
    with pytest.raises(BadArgument, match=told):
        export(**given)
    assert not (tmp_path / "x").exists()


def test_f3_export_never_mixes_with_a_run_of_ours(tmp_path: Path) -> None:
    RunWriter(tmp_path / "run", info={}).close()
    from layertap.errors import RunExists

    with pytest.raises(RunExists, match="contains a run of layertap, which an export would mix with its own"):
        export(recorded(["h.0"]), tmp_path / "run", exists="replace")


def test_f3_progress_counts_files(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    export(recorded(["h.0", "h.1"]), tmp_path / "x", progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_a_flipped_bit_of_a_saved_tensor_is_never_handed_out(tmp_path: Path) -> None:
    """torch.load passes it on: it does not look at the archive's checksums."""
    tensor = torch.arange(300.0)
    torch.save(tensor, tmp_path / "layer_1_output.pt")
    content = (tmp_path / "layer_1_output.pt").read_bytes()
    begin = content.index(tensor.numpy().tobytes())
    for place in range(begin, begin + 1200, 97):
        changed = bytearray(content)
        changed[place] ^= 0x40
        (tmp_path / "layer_1_output.pt").write_bytes(changed)
        assert not torch.equal(torch.load(tmp_path / "layer_1_output.pt"), tensor)
        with pytest.raises(CorruptRun, match=r"layer_1_output\.pt: damaged, .*Bad CRC-32"):
            read_layers(tmp_path)
    torch.serialization.set_crc32_options(False)  # such a file has zeros for checksums, and is not damaged
    try:
        torch.save(tensor, tmp_path / "layer_1_output.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert torch.equal(read_layers(tmp_path)["layer_1"].tensor(), tensor)


@pytest.mark.parametrize("name", ["model.pt2", "model.onnx", "model.vmfb"])
def test_a_model_in_place_of_a_run_says_that_it_has_to_be_recorded(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK")
    with pytest.raises(NotARun, match=f"{name}: a model, not a run of it; record it first: layertap record "):
        open_run(tmp_path / name)
