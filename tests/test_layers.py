"""Imports go one way: those inside functions, and those made from a text, count like any other."""

import ast
import re
from pathlib import Path

import pytest

import layertap

tomllib = pytest.importorskip("tomllib")  # Python 3.11

SOURCE = Path(layertap.__file__).parent
PROJECT = Path(__file__).parents[1] / "pyproject.toml"
NAMED = re.compile(r"layertap(\.\w+)+(:\w+)?")
INDEX = "__init__.py"
"""The index card names every package; at run time it imports none until a name is used."""


def layers():
    contracts = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    (order,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return {name.strip("()"): height for height, name in enumerate(reversed(order))}


def imported(tree):
    """Every module of the package that a file names in an import, or in a text that is a module's name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, one.name) for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            yield from ((node.lineno, f"layertap.{one.name}" if base == "layertap" else base) for one in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and NAMED.fullmatch(node.value):
            yield node.lineno, node.value.partition(":")[0]


def upward(path, tree, height):
    own = height[path.parts[0].removesuffix(".py")]
    for line, module in imported(tree):
        package = module.split(".")[1] if module.startswith("layertap.") else ""
        if package in height and height[package] > own:
            yield f"{path}:{line} {module}"


def test_no_import_goes_up_wherever_it_stands():
    height = layers()
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE)
        if str(name) != INDEX:
            found += upward(name, ast.parse(path.read_text(encoding="utf-8")), height)
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "import layertap.report.diff",
        "def late():\n    from layertap.report import diff",
        "def late():\n    from layertap import report",
        "import_module('layertap.report.diff')",
        "register('Run', html='layertap.report.page:html_of')",
    ],
)
def test_an_import_that_goes_up_is_found(code):
    assert len(list(upward(Path("store/run.py"), ast.parse(code), layers()))) == 1
    assert list(upward(Path("cli/show.py"), ast.parse(code), layers())) == []


def test_no_contract_has_an_exception():
    contracts = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    assert not [one for contract in contracts for one in contract.get("ignore_imports", ())]
