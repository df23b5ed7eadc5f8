"""A file takes another's place in one step, or leaves it as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from layertap.durable import replacing


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced_as_a_whole(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "run.json"
    path.write_text("old")
    with replacing(path, durable=durable) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["run.json"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_leaves_what_was_there_and_nothing_else(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "run.json"
    path.write_text("old")
    with pytest.raises(error), replacing(path) as file:
        file.write(b"half")
        raise error
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["run.json"]


def test_a_rename_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.json").mkdir()
    with pytest.raises(OSError, match=r"run\.json"), replacing(tmp_path / "run.json") as file:
        file.write(b"new")
    assert os.listdir(tmp_path) == ["run.json"]
