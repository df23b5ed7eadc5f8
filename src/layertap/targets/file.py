"""`file.py:factory`: a model from the user's own code."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from layertap.errors import TargetError
from layertap.messages import tr
from layertap.result import Note
from layertap.targets.target import Inputs, Target, as_inputs, error_text

_count = itertools.count()


def open_file(path: Path, factory: str, name: str, arguments: Mapping[str, Any] | None = None) -> Target:
    """Imports the file in isolation and calls its factory with these arguments."""
    if not path.is_file():
        raise TargetError(tr("targets.no_file", name=name, path=path, cwd=Path.cwd()))
    path = path.resolve()
    with _own_imports(path.parent):
        module = _import(path, name)
        make = _factory(module, factory, path, name)
        # A module that the file made itself is taken as it is.
        if _is_model(make) and arguments:
            raise TargetError(tr("targets.no_arguments", name=name, arguments=", ".join(arguments)))
        made = make if _is_model(make) else _called(make, path, name, arguments or {})
    model, inputs = _parted(made, name)
    return Target(model=model, inputs=inputs, name=name)


def factories_in(path: Path) -> list[str]:
    """The functions and classes that a file defines at its top, without running it."""
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (SyntaxError, ValueError):
        return []
    defined = (ast.FunctionDef, ast.ClassDef)
    return [node.name for node in body if isinstance(node, defined) and not node.name.startswith("_")]


def _import(path: Path, name: str) -> ModuleType:
    # A name of its own for every opening: two targets called model.py must not see each other's code.
    spec = importlib.util.spec_from_file_location(f"_layertap_target_{next(_count)}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise TargetError(tr("targets.no_import", name=name, path=path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up by name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        raise TargetError(
            tr("targets.import_raised", name=name, name2=path.name, error=error_text(error, path))
        ) from error
    return module


def _factory(module: ModuleType, factory: str, path: Path, name: str) -> Callable[[], Any]:
    found: Any = getattr(module, factory, None) if factory else None
    if found is not None and callable(found):
        return cast("Callable[[], Any]", found)
    names = factories_in(path)
    near = get_close_matches(factory, names, n=1)
    what = (
        Note("targets.has_no", factory=factory)
        if found is None
        else Note("targets.has_other", factory=factory, name=type(found).__name__)
    )
    listed = ", ".join(names) or tr("targets.no_functions")
    if near:
        raise TargetError(tr("targets.factory_near", name=name, file=path.name, what=what, near=near[0], names=listed))
    raise TargetError(tr("targets.factory_has", name=name, file=path.name, what=what, names=listed))


def _called(make: Callable[..., Any], path: Path, name: str, arguments: Mapping[str, Any]) -> Any:
    try:
        return make(**arguments)
    except (Exception, SystemExit) as error:
        raise TargetError(tr("targets.raised", name=name, error=error_text(error, path))) from error


def _parted(made: Any, name: str) -> tuple[Any, Inputs | None]:
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not _is_model(model):
        shown = Note("targets.tuple_of", count=len(made)) if isinstance(made, tuple) else f"a {type(made).__name__}"
        raise TargetError(tr("targets.factory_returned", name=name, shown=shown))
    given = as_inputs(inputs)
    if inputs is not None and given is None:
        raise TargetError(tr("targets.factory_inputs", name=name, name2=type(inputs).__name__))
    return model, given


def _is_model(value: Any) -> bool:
    return hasattr(value, "named_modules") and not isinstance(value, type)


@contextlib.contextmanager
def _own_imports(folder: Path) -> Iterator[None]:
    """While this lasts, `import helper` finds the file beside the target, and no other; afterwards it is forgotten.

    A reference and a candidate often are two checkouts, each with its own `model.py`. If the second were served the
    first's module from `sys.modules`, the comparison would be of a model with itself.
    """
    before = dict(sys.modules)
    hidden = {name: module for name, module in before.items() if _beside(name, folder) and not _within(module, folder)}
    for name in hidden:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))
        for name, module in list(sys.modules.items()):
            if name not in before and _beside(name, folder) and _within(module, folder):
                del sys.modules[name]
        sys.modules.update(hidden)


def _beside(name: str, folder: Path) -> bool:
    top = name.partition(".")[0]
    if top == "layertap" or top in sys.stdlib_module_names:
        return False
    return (folder / f"{top}.py").is_file() or (folder / top / "__init__.py").is_file()


def _within(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and folder in Path(file).resolve().parents
