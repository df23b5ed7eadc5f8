"""What docs/training.md shows of Monitor is what happens."""

import contextlib
import io
from pathlib import Path

from test_readme import examples, matches

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def test_the_example_prints_what_the_page_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    section = PAGE.read_text(encoding="utf-8").partition("\n## Monitor\n")[2].partition("\n## ")[0]
    found = examples(section)
    assert found, "the section shows no example"
    for code, shown in found:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "docs/training.md", "exec"), {"__name__": "__docs__"})
        assert matches(shown, printed.getvalue()), printed.getvalue()
