"""Everything that a user reads comes from one catalogue, in English and in Chinese (F4)."""

import ast
import re
import string
from importlib import import_module

import pytest
import torch
from torch import nn

import layertap as lt
from layertap.messages import language
from literals import SOURCE, sentences

PACKAGES = sorted(path.stem for path in (SOURCE / "messages" / "en").glob("*.py") if path.stem != "__init__")
CHINESE = re.compile(r"[\u4e00-\u9fff]")


def catalogue(language, package):
    return import_module(f"layertap.messages.{language}.{package}").MESSAGES


def fields(template):
    parsed = [part for _, name, spec, _ in string.Formatter().parse(template) if name for part in (name, spec)]
    return set(parsed) - {""}


@pytest.mark.parametrize("package", PACKAGES)
def test_f4_both_languages_have_the_same_codes_and_values(package):
    english, chinese = catalogue("en", package), catalogue("zh", package)
    assert english.keys() == chinese.keys()
    assert {code: fields(text) for code, text in english.items()} == {
        code: fields(text) for code, text in chinese.items()
    }
    assert {code.partition(".")[0] for code in english} == {package}


def test_f4_a_sentence_has_a_translation():
    same = [
        code
        for package in PACKAGES
        for code, text in catalogue("en", package).items()
        if len(re.findall(r"[a-z]{2,}", re.sub(r"\{[^}]*\}|<[^>]*>", "", text))) > 4
        and not CHINESE.search(catalogue("zh", package)[code])
    ]
    assert not same


def test_f4_no_sentence_stands_outside_the_catalogue():
    found = {
        (str(path.relative_to(SOURCE)), text)
        for path in SOURCE.rglob("*.py")
        if "messages" not in path.parts
        for _, text in sentences(path)
    }
    starts = [start for reason in NOT_READ.values() for start in reason]
    assert not {(name, text) for name, text in found if not text.startswith(tuple(starts))}
    assert not [start for start in starts if not any(text.startswith(start) for _, text in found)]


def test_every_code_that_is_named_is_in_the_catalogue():
    codes = {code for package in PACKAGES for code in catalogue("en", package)}
    missing = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("tr", "Note")
            if called and node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value not in codes:
                missing.append(f"{path.name}: {node.args[0].value}")
    assert not missing


def test_every_code_in_the_catalogue_is_named_by_some_code():
    texts, names, patterns = set(), set(), set()
    for path in sorted(SOURCE.rglob("*.py")):
        if path.parts[-2] in ("en", "zh"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
            elif isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else None for part in node.values)
                patterns.add("".join("(.+)" if part is None else re.escape(str(part)) for part in parts))
            elif isinstance(node, ast.BinOp) and isinstance(node.left, ast.Constant):  # "view.tab_" + name
                patterns.add(re.escape(str(node.left.value)) + "(.+)")
    patterns = {pattern for pattern in patterns if pattern.partition("\\.")[0] in PACKAGES}

    def named(code):
        found = [re.fullmatch(pattern, code) for pattern in patterns]
        return code in texts or any(one and set(one.groups()) <= texts | names for one in found)

    assert not [code for package in PACKAGES for code in catalogue("en", package) if not named(code)]


def test_the_finder_sees_a_sentence_and_leaves_what_is_not_read(tmp_path):
    source = tmp_path / "x.py"
    source.write_text(
        '"""A docstring is read by developers."""\n'
        'raise BadArgument(f"{path}: cannot be opened")\n'
        'notes.append("nothing was recorded")\n'
        'print(f"opening {path}")\n'
        'raise BadArgument(tr("store.missing"))\n'
        'assert found, "this is for developers"\n'
        "page = f\"<div class='a b'>{text}</div>\"\n"
    )
    assert [line for line, _ in sentences(source)] == [2, 3, 4]


def test_f4_the_verdict_and_the_receipt_speak_chinese(monkeypatch):
    monkeypatch.setenv("LAYERTAP_LANG", "zh")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with lt.record(model, sites="*", keep="tensor") as first:
        model(torch.ones(2, 4))
    with torch.no_grad():
        model[1].weight.mul_(2)
    with lt.record(model, sites="*", keep="tensor") as second:
        model(torch.ones(2, 4))
    assert "已记录 3 个张量" in str(first.receipt)
    text = str(lt.diff(first.run, second.run))
    assert text.startswith("存在错误：")
    assert "首个偏离：1（Linear）" in text


def test_the_locale_is_heard(monkeypatch):
    monkeypatch.delenv("LAYERTAP_LANG", raising=False)
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert language() == "zh"
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    assert language() == "en"


NOT_READ = {
    "source code that layertap writes or runs": (
        '"""Shows one module\'s fault again',
        "import json, sys; sys.path",
        "\n>>> ",
        "lambda m, name: ",
        "  torchao: quantize_(",
        "{x}(Tensor tensor) -> Tensor",
        "pip install ",
    ),
    "names of styles, headers and types": (
        "bold red",
        "lt-layer lt-open",
        "plain pairs",
        "plain words",
        "token errors",
        "text/plain; charset",
        "default-src 'none'",
        "Mapping[str, int]",
        "dict[str, str]",
        "uint8 int8 int16",
        "txt md rst log",
        '<text x="{x}" y="{x}">head {x}',
    ),
    "names of rules, keys and metrics, which are data": (
        "left over",
        "not transposed",
        "rows permuted",
        "axes permuted",
        "weight norm",
        "layertap fingerprints",
        "max rel",
        "mean rel",
        "max ulp",
        "{x} bytes at {x}",
        "value {x}",
        "grad {x}",
        "output {x}",
    ),
    "a name of this program, of an option or of a place, before what is wrong with it": (
        "layertap {x}",
        "layertap: {x}",
        "layertap sweep: {x}",
        "layertap doctor",
        "mapping {x}: {x}",
        "rules: {x}: {x}",
        "watch {x}",
        "watch: {x}",
        "device {x}: {x}",
        "part {x}",
        "rank {x}",
        "dtype {x}",
    ),
    "raised and caught in the same file": ("no renameat2 here", "the folders cannot be exchanged"),
    "printed where layertap itself could not be imported": ("layertap: this Python cannot be watched",),
}
"""Literals that look like sentences and are not, by the reason."""
