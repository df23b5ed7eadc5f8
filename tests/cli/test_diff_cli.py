"""`layertap diff` on what people already have: patterns, tolerances, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from layertap.cli import app

VALUES = [torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(6)]


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["diff", *map(str, arguments)])
    return done.exit_code, done.output


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """One counts from 0 and has a final norm, the other from 1; layer 3 is off by 0.01."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder, first in ((ours, 0), (theirs, 1)):
        folder.mkdir()
        for n, value in enumerate(VALUES):
            torch.save(value + (0.01 if first and n == 3 else 0), folder / f"layer_{n + first}.pt")
    torch.save(VALUES[0], ours / "final_norm.pt")
    return ours, theirs


def test_a_fault_is_named_by_its_own_layer(folders: tuple[Path, Path]) -> None:
    code, text = run(*folders)
    assert code == 1
    assert "first departure: layer_3 ~ layer_4, relative error" in text


def test_patterns_and_tolerances(folders: tuple[Path, Path]) -> None:
    assert run(*folders, "--atol", 0.02)[0] == 3, "the final norm is on one side only"
    code, text = run(*folders, "--atol", 0.02, "--sites", "layer_*")
    assert code == 0
    assert "judged by the tolerances that were given (rtol=0, atol=0.02)" in text
    assert run(*folders, "--sites", "layer_1", "--sites", "layer_2")[0] == 0
    code, text = run(*folders, "--sites", "layer_*", "--json")
    report = json.loads(text)
    assert (code, report["first"], report["tolerance"], len(report["rows"])) == (1, "layer_3", "", 6)
