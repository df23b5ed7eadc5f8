"""What a TorchScript file holds, from the text of its code alone: nothing in it is loaded or run.

Each class of the file is written out as source, with the types of its attributes and the bodies of its methods. That
is enough to name every module, and to follow `(self.block).forward(x)` from the root to know which of them are called.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

from layertap.errors import TargetError
from layertap.messages import tr
from layertap.result import Note
from layertap.targets.archive import Archive, first_class
from layertap.targets.opaque import foreign_device, frozen_torchscript
from layertap.targets.reader import Argument, ArtefactContents
from layertap.targets.shadow import CONTAINERS
from layertap.targets.torchscript import FORWARD

DEEPEST = 200
"""Levels of modules; deeper is a file that contains itself."""


@dataclass(slots=True)
class _ScriptClass:
    name: str
    types: dict[str, str] = field(default_factory=dict)
    """Attribute → its type, as written."""
    methods: dict[str, ast.FunctionDef] = field(default_factory=dict)
    parameters: bool = False


def script_contents(path: Path, name: str) -> ArtefactContents:
    """The modules of a TorchScript file, and which of them its code calls."""
    archive = Archive(path, name)
    classes = _classes(archive, name)
    try:
        root = first_class(archive.read("data.pkl")) if "data.pkl" in archive.members else ""
    except TargetError as error:
        raise TargetError(tr("script.data", name=name, error=error)) from error
    foreign = next((kind for one in classes.values() for kind in one.types.values() if "torch.classes." in kind), "")
    if root not in classes:
        raise foreign_device(name, root) or TargetError(
            tr("script.no_class", name=name, root=root or tr("script.for_root"))
        )
    modules: dict[str, str] = {}
    _walk(classes, root, "", modules)
    called = _Called(classes, modules)
    called.follow("", "forward")
    own = classes[root]
    constants = any(member.startswith("constants/") for member in archive.members)
    if not called.kinds and not any(classes[kind].parameters for kind in modules.values()) and constants:
        raise frozen_torchscript(name)
    lost: dict[str, str] = {}
    for below, kind in modules.items():
        short = _short(kind)
        if below and below not in called.kinds:
            container = Note("select.container", kind=short)
            lost[below] = container if short in CONTAINERS else Note("script.not_called")
        elif below and called.kinds[below] == "NoneType":
            lost[below] = Note("script.no_value", short=short)
    remarks: list[str] = [Note("script.foreign", name=name, foreign=foreign)] if foreign else []
    return ArtefactContents(
        kind=_short(root),
        modules={below: _short(kind) for below, kind in modules.items()},
        lost=lost,
        arguments=tuple(Argument(name=argument.arg) for argument in own.methods["forward"].args.args[1:])
        if "forward" in own.methods
        else (),
        remarks=remarks,
    )


def _short(kind: str) -> str:
    return kind.rpartition(".")[2]


def _classes(archive: Archive, name: str) -> dict[str, _ScriptClass]:
    found: dict[str, _ScriptClass] = {}
    for member in archive.find(r"code/.*\.py"):
        package = member.removeprefix("code/").removesuffix(".py").replace("/", ".")
        try:
            tree = ast.parse(archive.text(member))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise TargetError(tr("script.not_script", name=name, member=member, error=error)) from error
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found[f"{package}.{node.name}"] = _read(f"{package}.{node.name}", node)
    return found


def _read(name: str, node: ast.ClassDef) -> _ScriptClass:
    found = _ScriptClass(name)
    for line in node.body:
        if isinstance(line, ast.FunctionDef):
            found.methods[line.name] = line
        elif isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            found.types[line.target.id] = ast.unparse(line.annotation)
        elif isinstance(line, ast.Assign):
            target, value = line.targets[0], line.value
            if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                found.types[str(target.slice.value)] = ast.unparse(value)  # a name that is a number
            elif isinstance(target, ast.Name) and target.id == "__parameters__" and isinstance(value, ast.List):
                found.parameters = bool(value.elts)
    return found


def _walk(classes: dict[str, _ScriptClass], kind: str, path: str, modules: dict[str, str]) -> None:
    if path.count(".") > DEEPEST:
        raise TargetError(tr("script.recursive", path=path[:80]))
    modules[path] = kind
    for attribute, below in classes[kind].types.items():
        if below in classes and not re.match(r"Optional|List|Dict", below):
            _walk(classes, below, f"{path}.{attribute}" if path else attribute, modules)


class _Called:
    """Which modules the code calls, found without running it."""

    def __init__(self, classes: dict[str, _ScriptClass], modules: dict[str, str]) -> None:
        self._classes, self._modules = classes, modules
        self._seen: set[tuple[str, str]] = set()
        self.kinds: dict[str, str] = {}
        """Path → what its first call returns, as written."""

    def follow(self, path: str, method: str) -> None:
        """Notes what a method of the module at `path` calls, and what that calls."""
        code = self._classes[self._modules[path]].methods.get(method)
        if code is None or (path, method) in self._seen:
            return
        self._seen.add((path, method))
        own = code.args.args[0].arg if code.args.args else "self"
        names: dict[str, ast.expr] = {}
        for node in ast.walk(code):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                names[node.targets[0].id] = node.value
        for node in ast.walk(code):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            below = _place(node.func.value, own, names)
            if below is None:
                continue
            called = ".".join(part for part in (path, below) if part)
            callee = (
                self._classes[self._modules[called]].methods.get(node.func.attr) if called in self._modules else None
            )
            if callee is None:
                continue
            if below and FORWARD.fullmatch(node.func.attr):
                returns = ast.unparse(callee.returns) if callee.returns is not None else ""
                self.kinds.setdefault(called, returns)
            self.follow(called, node.func.attr)


def _place(value: ast.expr, own: str, names: dict[str, ast.expr]) -> str | None:
    """The path below `self` that an expression represents: `self.blocks`, `getattr(blocks, "0")`; None for others."""
    parts: list[str] = []
    for _ in range(DEEPEST):
        if isinstance(value, ast.Name) and value.id == own:
            return ".".join(reversed(parts))
        if isinstance(value, ast.Name) and value.id in names:
            value = names[value.id]
        elif isinstance(value, ast.Attribute):
            parts.append(value.attr)
            value = value.value
        elif _is_getattr(value) and isinstance(value, ast.Call) and isinstance(value.args[1], ast.Constant):
            parts.append(str(value.args[1].value))
            value = value.args[0]
        else:
            return None
    return None


def _is_getattr(value: ast.expr) -> bool:
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id == "getattr"
        and len(value.args) == 2
    )
