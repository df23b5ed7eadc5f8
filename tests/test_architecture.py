"""What docs/architecture.md and the packages' own lists name exists."""

import ast
import re
from pathlib import Path

import pytest

import layertap

ROOT = Path(__file__).parents[1]
SOURCE = Path(layertap.__file__).parent
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`((?:[\w.]+/)*[\w.]+\.(?:py|md|toml))(?::(\w+))?`")
FILES = re.compile(r"[a-z_]+(\.py)?(, [a-z_]+(\.py)?)*")
PLACES = sorted(set(NAMED.findall(TEXT)))


def names_in(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize(("file", "name"), PLACES, ids=[":".join(filter(None, place)) for place in PLACES])
def test_what_is_named_exists(file, name):
    path = next((base / file for base in (SOURCE, ROOT) if (base / file).is_file()), None)
    assert path is not None, f"{file} does not exist"
    assert not name or name in names_in(path), f"{file} has no {name}"


def test_the_walks_name_files_and_functions():
    assert len(PLACES) > 50
    assert sum(bool(name) for _, name in PLACES) > 40


def test_the_glossary_is_short():
    terms = re.findall(r"^\| ([^|]+) \|", TEXT.split("## Glossary")[1].split("## To add")[0], re.MULTILINE)
    terms = [term for term in terms if term not in ("word", "---")]
    assert 10 <= len(terms) <= 20
    assert len(set(terms)) == len(terms)


@pytest.mark.parametrize("package", ["capture", "compare", "fault", "judge", "measure", "measure/pair", "store"])
def test_a_package_lists_the_files_that_it_has(package):
    listed = ast.get_docstring(ast.parse((SOURCE / package / "__init__.py").read_text(encoding="utf-8"))) or ""
    there = {path.stem for path in (SOURCE / package).iterdir() if path.suffix == ".py" or path.is_dir()}
    missing = sorted(one for one in there - {"__init__", "__pycache__"} if not re.search(rf"\b{one}\b", listed))
    assert missing == []
    columns = (re.split(r"\s{2,}", line.strip())[0] for line in listed.splitlines() if re.search(r"\S\s{2,}\S", line))
    named = {
        one for column in columns if FILES.fullmatch(column) for one in re.split(r"\W+", column.replace(".py", ""))
    }
    functions = {name for path in (SOURCE / package).rglob("*.py") for name in names_in(path)}
    assert named
    assert sorted(named - there - functions) == []
