"""What docs/sweep.md shows is what happens."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from layertap import cli
from layertap.sweeping import definition
from test_readme import matches

PAGE = (Path(__file__).parents[2] / "docs" / "sweep.md").read_text(encoding="utf-8")


def block(first_line):
    """The body of the block that begins with this line."""
    return re.search(rf"^```\w*\n({re.escape(first_line)}.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]


@pytest.mark.slow
def test_the_example_prints_what_the_page_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    (tmp_path / "net.py").write_text(block("# net.py\n"))
    (tmp_path / "modes.toml").write_text(block("# modes.toml\n"))
    done = CliRunner().invoke(cli.app, block("layertap sweep").split("#")[0].split()[1:])
    assert done.exit_code == 3, done.output
    shown = block("fp32 = 0: bit-identical")
    assert matches(re.sub(r"\b\d\.\d+\b|\b\d\d\.\d\d\b", "…", shown) + "…", done.output), done.output
    names = {"__name__": "__docs__"}
    exec(compile(block("import layertap"), "docs/sweep.md", "exec"), names)
    assert names["sweep"].groups == (("fp32", "0"), ("2-1",))
    assert all(mode.resumed for mode in names["sweep"].modes.values())
    assert 0 < names["sweep"].matrix["fp32", "2-1", "layers.3"] < 0.05


def test_every_key_is_on_the_page():
    keys = {name for kind in (definition.Definition, definition.ModeDefinition) for name in kind.__slots__}
    missing = {key for key in keys - {"name", "folder", "modes"} if f"`{key}`" not in PAGE}
    assert not missing
