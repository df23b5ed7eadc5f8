"""What README.md shows is what happens."""

import contextlib
import io
import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(markdown):
    """Each ```python block with the ```text block that directly follows it, or None.

    >>> examples("```python\\nprint(1)\\n```\\n\\n```text\\n1\\n```\\n")
    [('print(1)\\n', '1\\n')]
    """
    blocks = list(_FENCE.finditer(markdown))
    found = []
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if block["language"] == "python":
            shown = following if following is not None and following["language"] == "text" else None
            found.append((block["body"], shown["body"] if shown else None))
    return found


def matches(shown, printed):
    """Whether what was printed is what the page shows, where `…` stands for anything.

    >>> matches("took … s\\n", "took 0.31 s\\n"), matches("took … s\\n", "took long\\n")
    (True, False)
    """
    pattern = ".*?".join(re.escape(part) for part in _tidy(shown).split("…"))
    return re.fullmatch(pattern, _tidy(printed), re.DOTALL) is not None


def _tidy(text):
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def test_the_examples_run_and_print_what_the_page_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    namespace = {"__name__": "__readme__"}
    found = examples(README.read_text(encoding="utf-8"))
    assert found, "README.md shows no example"
    for number, (code, shown) in enumerate(found, 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"README.md, python block {number}", "exec"), namespace)
        if shown is not None and not matches(shown, printed.getvalue()):
            pytest.fail(f"block {number} shows\n{shown}\nbut printed\n{printed.getvalue()}")


def test_the_readme_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150
