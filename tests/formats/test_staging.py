"""An export takes the place of another as one, whenever the process is killed; nothing that waits there is followed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from layertap.formats import staging
from layertap.formats.staging import Staging

CONTENTS = {"a": "one", "b": "one", "c": "one"}

KILLED = """
import os, sys
from pathlib import Path
from layertap.formats import staging
from layertap.formats.staging import Staging

folder, left, can_swap = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "True"

def counted(function):
    def called(*arguments, **named):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return function(*arguments, **named)
    return called

def unable(*_):
    raise OSError("cannot")

staging.swap = counted(staging.swap) if can_swap else unable
for name in ("replace", "link", "unlink", "rename", "rmdir", "fsync"):
    setattr(os, name, counted(getattr(os, name)))
Path.unlink = lambda self, missing_ok=False: os.path.lexists(self) and os.unlink(self)
with Staging(folder, "layers") as out:
    for name in "bcd":
        with out.file(name) as file:
            file.write(b"two")
    out.commit(stale=["a", "b", "c"])
"""


def make(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, text in CONTENTS.items():
        (folder / name).write_text(text)
    (folder / "mine").write_text("mine")


def there(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("can_swap", [True, False])
def test_a_killed_replace_leaves_no_mix(tmp_path: Path, can_swap: bool) -> None:
    old, new = {**CONTENTS, "mine": "mine"}, {"b": "two", "c": "two", "d": "two", "mine": "mine"}
    seen = set()
    for left in range(40):
        folder = tmp_path / str(left) / "x"
        make(folder)
        environment = {**os.environ, "PYTHONPATH": str(Path(staging.__file__).parents[2])}
        command = [sys.executable, "-c", KILLED, str(folder), str(left), str(can_swap)]
        done = subprocess.run(command, env=environment, check=False)
        found = there(folder)
        assert found.pop("mine") == "mine"
        assert len(set(found.values())) <= 1, f"a mix after {left} operations: {found}"
        if can_swap:
            assert {**found, "mine": "mine"} in (old, new)
        seen.add(next(iter(found.values()), "none"))
        if done.returncode == 0:
            assert {**found, "mine": "mine"} == new
            assert [path.name for path in folder.parent.iterdir()] == ["x"], "nothing temporary is left"
            break
        assert done.returncode == 9
    else:
        pytest.fail("the export never came to its end")
    assert {"one", "two"} <= seen


def test_no_link_is_followed_and_no_name_can_be_guessed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / ".a.tmp").symlink_to(victim)
    (tmp_path / "x" / "a").symlink_to(victim)
    scratch_folders = set()
    for _ in range(3):
        with Staging(tmp_path / "x", "layers") as out:
            with out.file("a") as file:
                file.write(b"new")
            scratch_folders.add(out._scratch)
            assert out._scratch.stat().st_mode & 0o077 == 0
            out.commit()
    assert victim.read_text() == "precious"
    assert (tmp_path / "x" / "a").read_text() == "new"
    assert not (tmp_path / "x" / "a").is_symlink()
    assert len(scratch_folders) == 3


def test_what_else_a_folder_holds_stays(tmp_path: Path) -> None:
    make(tmp_path / "x")
    (tmp_path / "x" / "sub").mkdir()
    (tmp_path / "x" / "sub" / "deep").write_text("mine")
    (tmp_path / "x" / "link").symlink_to("nowhere")
    for with_folder in (True, False):
        with Staging(tmp_path / "x", "layers") as out:
            with out.file("d") as file:
                file.write(b"two")
            out.commit(stale=["a", "b", "c"])
        names = sorted(path.name for path in (tmp_path / "x").iterdir())
        assert names == ["d", "link", "mine", *(["sub"] if with_folder else [])]
        assert os.readlink(tmp_path / "x" / "link") == "nowhere"
        if with_folder:
            assert (tmp_path / "x" / "sub" / "deep").read_text() == "mine"
            shutil.rmtree(tmp_path / "x" / "sub")


def test_the_folder_may_be_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "x")
    monkeypatch.chdir(tmp_path / "x")
    with Staging(Path(), "layers") as out:
        with out.file("d") as file:
            file.write(b"two")
        out.commit(stale=["a", "b", "c"])
    assert there(tmp_path / "x") == {"d": "two", "mine": "mine"}


def test_a_file_that_comes_into_a_folder_of_others_leaves_their_folder_alone(tmp_path: Path) -> None:
    make(tmp_path / "x")
    inode = (tmp_path / "x").stat().st_ino
    with Staging(tmp_path / "x", "npz", whole=False) as out:
        with out.file("d") as file:
            file.write(b"two")
        assert out._scratch.parent == tmp_path / "x"
        out.commit()
    assert there(tmp_path / "x") == {**CONTENTS, "d": "two", "mine": "mine"}
    assert (tmp_path / "x").stat().st_ino == inode
