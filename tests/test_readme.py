"""What README.md shows is what happens."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
CHINESE = ROOT / "README.zh.md"
REPORTS = ROOT / "docs" / "reports.md"
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
    """Whether what was printed is what the page shows, where `…` represents anything.

    >>> matches("took … s\\n", "took 0.31 s\\n"), matches("took … s\\n", "took long\\n")
    (True, False)
    """
    pattern = ".*?".join(re.escape(part) for part in _tidy(shown).split("…"))
    return re.fullmatch(pattern, _tidy(printed), re.DOTALL) is not None


def _tidy(text):
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


@pytest.mark.parametrize(("page", "language"), [(README, "en"), (CHINESE, "zh"), (REPORTS, "en")])
def test_the_examples_run_and_print_what_the_page_shows(page, language, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LAYERTAP_LANG", language)
    namespace = {"__name__": "__readme__"}
    found = examples(page.read_text(encoding="utf-8"))
    assert found, f"{page.name} shows no example"
    for number, (code, shown) in enumerate(found, 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"{page.name}, python block {number}", "exec"), namespace)
        if shown is not None and not matches(shown, printed.getvalue()):
            pytest.fail(f"block {number} shows\n{shown}\nbut printed\n{printed.getvalue()}")


def test_f4_the_chinese_readme_is_the_same_page():
    """Section by section: the same code but for comments, the same commands, links and measured numbers."""
    english, chinese = (page.read_text(encoding="utf-8") for page in (README, CHINESE))
    assert len(re.findall("^## ", english, re.MULTILINE)) == len(re.findall("^## ", chinese, re.MULTILINE))
    for one, two in zip(_FENCE.finditer(english), _FENCE.finditer(chinese), strict=True):
        if one["language"] != "text":
            assert _code(one["body"]) == _code(two["body"])
    assert _links(english) - {"README.zh.md"} == _links(chinese) - {"README.md"}
    assert _measured(english) == _measured(chinese)


def _code(body):
    return [re.split(r"\s+#", line)[0] for line in body.splitlines() if re.split(r"\s+#", line)[0]]


def _links(page):
    return set(re.findall(r"\]\(([^)]*)\)", page))


def _measured(page):
    """The numbers and the scripts of the table of costs."""
    rows = [line.strip("|").split("|")[1:] for line in page.splitlines() if line.startswith("|")]
    return [(re.findall(r"[\d.]+", row[0]), row[1].strip()) for row in rows[2:]]


@pytest.mark.parametrize("page", [README, CHINESE, REPORTS])
def test_every_link_of_the_page_leads_somewhere(page):
    text = page.read_text(encoding="utf-8")
    found = _links(text) | set(re.findall(r'(?:src|srcset)="([^"]*)"', text))
    assert [link for link in found if "://" not in link and not (page.parent / link).exists()] == []


def test_the_readme_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150
