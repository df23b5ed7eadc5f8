"""A folder that vanishes, turns read-only or fills up: the user's program goes on, and the receipt and the log tell."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import layertap as lt
from layertap.capture.module_tap import ModuleTap
from layertap.errors import RunError
from layertap.store import Run

X = torch.ones(50, 50)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(50, 50), nn.ReLU())


def vanish(folder: Path, patch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(folder)


def become_a_file(folder: Path, patch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(folder)
    folder.write_text("mine")


def turn_read_only(folder: Path, patch: pytest.MonkeyPatch) -> None:
    opened, renamed = os.open, os.replace

    def refuse(path: object, flags: int, *rest: object, **more: object) -> int:
        if str(path).startswith(str(folder)) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, "Read-only file system")
        return opened(path, flags, *rest, **more)  # type: ignore[arg-type]

    def keep(source: object, target: object) -> None:
        if str(target).startswith(str(folder)):
            raise OSError(errno.EROFS, "Read-only file system")
        renamed(source, target)  # type: ignore[arg-type]

    def write_text(file: object, mode: str = "r", *rest: object, **more: object) -> object:
        if "w" in mode and str(file).startswith(str(folder)):
            raise OSError(errno.EROFS, "Read-only file system")
        return original(file, mode, *rest, **more)  # type: ignore[call-overload]

    original = open
    patch.setattr(os, "open", refuse)
    patch.setattr(os, "replace", keep)
    patch.setattr("builtins.open", write_text)


TROUBLES = {"vanishes": vanish, "becomes a file": become_a_file, "turns read-only": turn_read_only}


@pytest.mark.parametrize("keep", ["stats", "tensor"])
@pytest.mark.parametrize("committed", [False, True], ids=["nothing committed", "something committed"])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_leaving_never_raises(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    trouble: str,
    committed: bool,
    keep: str,
) -> None:
    folder, net = tmp_path / "run", model()
    with monkeypatch.context() as patch, lt.record(net, folder, keep=keep) as rec:
        net(X)
        rec.step()
        if committed:
            rec.flush()
        TROUBLES[trouble](folder, patch)
        expected = net(X)
    assert torch.equal(net(X), expected)
    receipt = rec.receipt
    assert receipt.error
    assert not receipt.complete
    assert receipt.lost > 0
    there = trouble == "turns read-only" and committed
    assert receipt.records == (4 if there else 0)
    assert receipt.lost + receipt.records == 8
    assert str(receipt.lost) in str(receipt)
    assert "layertap could not" in caplog.text
    if trouble == "turns read-only":
        assert Run(folder).partial
        assert Run(folder).count == receipt.records
    elif trouble == "becomes a file":
        assert folder.read_text() == "mine"


def test_strict_raises_at_the_end(tmp_path: Path) -> None:
    net = model()
    with pytest.raises(RunError, match=r"could not be written"), lt.record(net, tmp_path / "a", strict=True):
        net(X)
        shutil.rmtree(tmp_path / "a")


def test_what_was_stopped_by_an_error_is_not_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(tap: ModuleTap, direct: bool) -> None:
        raise RuntimeError("an error of layertap's own")

    net = model()
    monkeypatch.setattr(ModuleTap, "begin", broken)
    with lt.record(net, tmp_path / "a") as rec:
        net(X)
    run = Run(tmp_path / "a")
    assert run.info["status"] == "stopped"
    assert run.partial
    (problem,) = run.problems
    assert problem.endswith("RuntimeError: an error of layertap's own; later records may be missing")
    assert not rec.receipt.complete
    with lt.record(net) as memory:
        net(X)
    assert (memory.run.info["status"], memory.run.partial) == ("stopped", True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("mounting a small tmpfs needs root; tests/store/test_writer.py injects the same errors")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("keep", ["stats", "tensor"])
def test_a_full_disk_costs_the_last_part_only(small_disk: Path, keep: str) -> None:
    """Ten thousand records into one shard, on a disk that has room for a quarter of them."""
    net = nn.Sequential(*(nn.Tanh() for _ in range(50)))
    with lt.record(net, small_disk / "run", sites="*", keep=keep) as rec:
        for _ in range(120):
            net(torch.randn(300))
            rec.step()
    receipt, run = rec.receipt, Run(small_disk / "run")
    assert receipt.lost > 1000
    assert run.count == receipt.records > 1000
    assert receipt.records + receipt.lost == 120 * 51
    first = [record.step for record in run.records()][:1000]
    assert first == [row // 51 for row in range(1000)]
    if keep == "tensor":
        assert all(run[site].at(step=0).tensor().shape == (300,) for site in run.sites)
    assert len(rec._writer.problems) < 200
