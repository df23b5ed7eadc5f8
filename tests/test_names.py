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


MOST_PARAMETERS = 7
PUBLIC = {
    "capture/recording.py:record",
    "compare/__init__.py:diff",
    "formats/export.py:export",
    "monitor/monitor.py:Monitor.__init__",
    "sweeping/running.py:sweep",
    "view/__init__.py:serve",
    "weights/knockout.py:knockout",
}
"""Their keywords are the API."""
BY_NAME = {"site.py:Statistics.of"}
"""Makes a dataclass from the eleven sums of one pass, each by its name."""


def long_parameter_lists(tree, name, owner=""):
    """Functions with more parameters than are read at a glance; those that Triton compiles take what a kernel takes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            given = node.args
            every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
            counted = [one for one in every if one is not None and one.arg not in ("self", "cls")]
            compiled = any(ast.unparse(one).endswith("jit") for one in node.decorator_list)
            if len(counted) > MOST_PARAMETERS and not compiled:
                yield f"{name}:{owner}{node.name}"
        inside = f"{owner}{node.name}." if isinstance(node, ast.ClassDef) else owner
        yield from long_parameter_lists(node, name, inside)


def test_no_function_has_many_parameters_but_the_api_and_the_command_line():
    found = {
        function
        for path in SOURCE.rglob("*.py")
        if path.parent.name != "cli"  # a command's parameters are its options
        for function in long_parameter_lists(
            ast.parse(path.read_text(encoding="utf-8")), path.relative_to(SOURCE).as_posix()
        )
    }
    assert found >= PUBLIC
    assert found - PUBLIC - BY_NAME == set()
