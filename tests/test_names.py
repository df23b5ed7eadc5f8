"""One name, one thing: no two classes of the package are called alike, with or without an underscore."""

import ast
from collections import defaultdict
from pathlib import Path

import layertap

SOURCE = Path(layertap.__file__).parent
ONE_FOR_EACH_LIBRARY = {"MonitorCallback"}
"""Each is imported from the package that is named after its library."""


def classes():
    found = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].append(f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}")
    return found


def test_a_class_name_means_one_thing():
    found = classes()
    assert len(found) > 300
    assert {name: where for name, where in found.items() if len(where) > 1 and name not in ONE_FOR_EACH_LIBRARY} == {}


def test_no_file_of_the_package_is_long():
    long = {
        str(path.relative_to(SOURCE)): len(path.read_text(encoding="utf-8").splitlines())
        for path in SOURCE.rglob("*.py")
    }
    assert {name: lines for name, lines in long.items() if lines > 400} == {}
