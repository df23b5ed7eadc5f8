"""A tensor file that is no longer what was written: whatever was changed in it, nothing wrong is handed out."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import layertap as lt
import layertap.store.writer as writer_module
from layertap.errors import CorruptRun, NoTensor
from layertap.store import Run, RunWriter
from store.making import kept, record

ARRAYS = {
    "a": np.linspace(-1, 1, 40, dtype=np.float32).reshape(5, 8),
    "b": np.arange(7, dtype=np.int8),
    "c": np.arange(6, dtype=np.float64).reshape(2, 3),
    "cut": np.arange(3, dtype=np.float32),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(writer_module, "HEADER_BYTES", (500, 500))
    writer = RunWriter(tmp_path / "run", info={})
    for order, (name, array) in enumerate(ARRAYS.items()):
        level = "[:3]" if name == "cut" else "tensor"
        writer.add(*kept(array, name, 3, order=order, kept=level, kept_fingerprint=None, sketch=b""))
    writer.close()
    return tmp_path / "run"


def tensor_file(folder: Path) -> Path:
    (file,) = (folder / "tensors").iterdir()
    return file


def attempt(run: Run, name: str) -> np.ndarray | str:
    try:
        return run[name].numpy()
    except CorruptRun as error:
        return str(error)


def test_no_flipped_bit_of_a_tensor_file_is_handed_out(folder: Path) -> None:
    file = tensor_file(folder)
    whole = file.read_bytes()
    begin = len(whole) - sum(array.nbytes for array in ARRAYS.values())
    refused, run = 0, Run(folder)
    for place in range(len(whole)):
        for bit in range(8) if place >= begin else (0, random.Random(place).randrange(1, 8)):
            changed = bytearray(whole)
            changed[place] ^= 1 << bit
            file.write_bytes(changed)
            run._kept._headers.clear()
            told = 0
            for name, array in ARRAYS.items():
                found = attempt(run, name)
                if isinstance(found, str):
                    told += 1
                    assert file.name in found
                else:
                    assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())
            assert told == 1 or place < begin, (place, bit)
            refused += bool(told)
    assert refused >= 8 * (len(whole) - begin)


@pytest.mark.parametrize("compiled", [True, False])
def test_the_error_names_file_site_and_step_and_the_way_out(
    folder: Path, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr("layertap.measure.pair.native.available", lambda: False)
    file = tensor_file(folder)
    content = bytearray(file.read_bytes())
    content[-1] ^= 0x80  # the last value of "cut", which a reduction kept
    file.write_bytes(content)
    for read in (Run(folder)["cut"].tensor, Run(folder)["cut"].numpy, Run(folder)["cut"].verify):
        with pytest.raises(CorruptRun) as caught:
            read()
        text = re.sub("[0-9a-f]{16}", "X", str(caught.value))
        assert text == (
            f"{file}: the tensor of cut at step 3 is damaged: its bytes have fingerprint X, recorded was X. "
            f"Restore the file, or open the run with Run(path, verify=False) to read it as it is"
        ).replace(file.name, re.sub("[0-9a-f]{16}", "X", file.name))
    assert Run(folder, verify=False)["cut"].numpy().tolist() == [0, 1, -2]
    assert Run(folder)["cut"].tensor(verify=False).tolist() == [0, 1, -2]
    with pytest.raises(CorruptRun):
        Run(folder, verify=False)["cut"].numpy(verify=True)


def test_a_tensor_may_be_changed_and_changes_no_file(folder: Path) -> None:
    for name, array in ARRAYS.items():
        found = Run(folder)[name].tensor()
        assert (found.numpy() == array).all()
        found.zero_()
        assert (Run(folder)[name].numpy() == array).all()


def test_a_file_that_is_cut_after_reading_does_no_harm(folder: Path) -> None:
    tensors = {name: Run(folder)[name].tensor() for name in ARRAYS}
    with open(tensor_file(folder), "rb+") as file:
        file.truncate(8)
    assert all((tensors[name].numpy() == array).all() for name, array in ARRAYS.items())
    with pytest.raises(CorruptRun, match=r"truncated|cut"):
        Run(folder)["a"].tensor()


def test_a_file_that_is_cut_between_header_and_tensor(folder: Path) -> None:
    run = Run(folder)
    run["a"].numpy()  # the header is known now
    size = tensor_file(folder).stat().st_size
    with open(tensor_file(folder), "rb+") as file:
        file.truncate(size - 4)
    assert run["a"].numpy().shape == (5, 8)
    with pytest.raises(CorruptRun, match=f"{size - 4} bytes, expected at least {size}; it was cut"):
        run["cut"].tensor()


@pytest.mark.parametrize("case", ["missing", "empty", "zeros", "folder"])
def test_a_missing_or_empty_tensor_file_makes_a_run_partial(folder: Path, case: str) -> None:
    assert not Run(folder).partial
    file = tensor_file(folder)
    size = file.stat().st_size
    file.unlink()
    if case == "folder":
        file.mkdir()
    elif case != "missing":
        file.write_bytes(bytes(size if case == "zeros" else 0))
    run = Run(folder)
    what = {"missing": "missing", "folder": "not a regular file"}.get(case, "empty")
    assert run.problems == (f"{file}: {what}; the tensors of 4 record(s) are lost",)
    assert run.partial
    assert run.count == 4
    with pytest.raises(CorruptRun):
        run["a"].tensor()


def test_a_run_of_statistics_needs_no_tensor_file(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, info={})
    writer.add(record())
    writer.close()
    assert not Run(tmp_path).partial
    with pytest.raises(NoTensor):
        Run(tmp_path)["layers.0"].verify()


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture(params=["tensor", "[:2]"])
def runs(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path, Path]:
    """A run, the same again, and one in bfloat16."""
    torch.manual_seed(0)
    model, x = Deep(), torch.randn(3, 16)
    folders = tuple(tmp_path / name for name in ("reference", "same", "half"))
    for path in folders:
        if path.name == "half":
            model, x = model.bfloat16(), x.bfloat16()
        with torch.no_grad(), lt.record(model, path, sites="layers.*", keep=request.param):
            model(x)
    return folders  # type: ignore[return-value]


def flip(folder: Path, site: str) -> None:
    """Turns one bit of a site's first value into something huge, as a bad disk does."""
    run = Run(folder)
    raw = run.kept_bytes(run[site].record).tobytes()
    content = tensor_file(folder).read_bytes()
    place = content.index(raw) + len(raw) // 3 // 4 * 4 + 3
    changed = bytearray(content)
    changed[place] ^= 0x40
    tensor_file(folder).write_bytes(changed)


def test_diff_blames_the_file_and_no_layer(runs: tuple[Path, Path, Path]) -> None:
    reference, same, half = runs
    assert lt.diff(reference, same).verdict == "identical"
    before = lt.diff(reference, half).verdict
    assert before != "fault"
    copy = shutil.copytree(reference, reference.with_name("damaged"))
    flip(copy, "layers.2")
    for report in (lt.diff(copy, same), lt.diff(same, copy), lt.diff(copy, half), lt.diff(half, copy)):
        assert report.verdict == "inconclusive"
        row = next(row for row in report.rows if row.site == "layers.2")
        assert row.verdict == "inconclusive"
        assert f"{tensor_file(copy)}: the tensor of layers.2 at step 0 is damaged" in row.why
        assert [other.verdict for other in report.rows].count("fault") == 0
        assert "is damaged" in " ".join(str(report).split())  # whatever the width
    assert lt.diff(Run(copy, verify=False), Run(same, verify=False)).verdict in ("identical", "fault")


def test_a_pair_is_read_once(runs: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    reference, _, half = runs
    calls = []
    monkeypatch.setattr("layertap.store.kept.fingerprint", lambda *_: calls.append(1) or 0)
    lt.diff(reference, half)
    assert calls == []  # the pass over the pair makes both fingerprints


@pytest.mark.parametrize("name", ["sketch", "sketch_in_whole"])
def test_a_sketch_of_another_size_is_refused(tmp_path: Path, name: str) -> None:
    writer = RunWriter(tmp_path / "run", info={})
    writer.add(record("a", **{name: b"xyz"}))
    writer.close()
    run = Run(tmp_path / "run")
    assert list(run.records()) == []
    assert "a sketch of 3 bytes" in str(run.problems)
