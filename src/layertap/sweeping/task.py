"""A worker's task, as JSON; and the hash by which a finished mode is known to be still what is asked for."""

from __future__ import annotations

import ast
import hashlib
import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from layertap.durable import replacing
from layertap.sweeping.definition import Definition, ModeDefinition

TASK_FORMAT = 2
_HASHED = 1 << 30
"""A larger file is known by its size and time alone."""
_FOR_PEOPLE = ("name", "about", "timeout")


def task_of(definition: Definition, mode: ModeDefinition, folder: Path, threads: int) -> dict[str, Any]:
    """The task of recording one mode into a folder."""
    return {
        "kind": "record",
        "folder": str(folder),
        "mode": asdict(mode),
        "target": target_of(definition, mode),
        "input": _absolute_input(definition),
        "sites": None if definition.sites is None else list(definition.sites),
        "exclude": list(definition.exclude),
        "what": list(definition.what),
        "keep": definition.keep,
        "seed": definition.seed,
        "threads": mode.threads or threads,
        "top_k": definition.top_k,
        "sys_path": [path for path in sys.path if path],
        "hash": hash_of(definition, mode, threads),
    }


def target_of(definition: Definition, mode: ModeDefinition) -> str:
    """The mode's target with its path made absolute: from the definition's folder, or else from the working one."""
    text = mode.target or definition.target
    prefix = "hf:" if text.startswith("hf:") else ""
    body = text.removeprefix("hf:")
    name, colon, factory = body.rpartition(":")
    if not prefix and colon and name.endswith(".py"):
        return f"{_absolute(definition, name)}:{factory}"
    return f"{prefix}{_absolute(definition, body)}"


def hash_of(definition: Definition, mode: ModeDefinition, threads: int) -> str:
    """Changes when anything that may change the mode's numbers does: its definition, its input, its files, torch."""
    own = {name: value for name, value in asdict(mode).items() if name not in _FOR_PEOPLE}
    target = target_of(definition, mode)
    input_file = _absolute_input(definition).get("file")
    # Of all that a mode names, whatever is a file counts with its contents.
    named = [str(value) for value in (*mode.env.values(), *mode.arguments.values())]
    named += list(command_words(mode)) + ([input_file] if input_file else [])
    files = {one: _state(Path(definition.folder, one)) for one in named if len(one) < 500}
    parts = {
        "format": TASK_FORMAT,
        "mode": own,
        "target": target,
        "sources": dict(_sources(target)),
        "files": {name: state for name, state in files.items() if state},
        "input": dict(definition.input),
        "sites": definition.sites,
        "exclude": definition.exclude,
        "what": definition.what,
        "keep": definition.keep,
        "seed": definition.seed,
        "threads": mode.threads or threads,
        "top_k": definition.top_k,
        "torch": _version("torch"),
        "torchao": _version("torchao") if mode.quantize else "",
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def command_words(mode: ModeDefinition) -> tuple[str, ...]:
    """A command as words; a string is cut as a shell would, and is not given to one."""
    return tuple(shlex.split(mode.command)) if isinstance(mode.command, str) else mode.command


def _absolute_input(definition: Definition) -> dict[str, Any]:
    given = dict(definition.input)
    if "file" in given:
        given["file"] = _absolute(definition, str(given["file"]))
    return given


def _absolute(definition: Definition, name: str) -> str:
    path = Path(name).expanduser()
    if path.is_absolute():
        return str(path)
    beside = Path(definition.folder, path)
    return str(beside if beside.exists() or not path.exists() else path.resolve())


def _sources(target: str) -> Iterator[tuple[str, str]]:
    """The files that make the target, each with its state."""
    body = target.removeprefix("hf:")
    name, colon, _ = body.rpartition(":")
    if colon and name.endswith(".py"):
        for path in imported(Path(name)):
            yield str(path), _state(path)
    else:
        yield body, _state(Path(body))


def imported(path: Path) -> list[Path]:
    """A Python file and the files beside it that it imports, and so on; found without running them."""
    found: list[Path] = []
    waiting = [path]
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file():
            continue
        found.append(path)
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError, OSError):
            continue
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                names = [module, *(f"{module}.{alias.name}".lstrip(".") for alias in node.names)]
            for name in names:
                stem = path.parent.joinpath(*name.split(".")) if name else path.parent
                waiting += [stem.with_suffix(".py") if name else stem / "__init__.py", stem / "__init__.py"]
    return found


def _state(path: Path) -> str:
    """The contents of a file, or the names, sizes and times of a folder's files; empty where there is nothing."""
    try:
        if path.is_file():
            stat = path.stat()
            if stat.st_size > _HASHED:
                return f"{stat.st_size} bytes at {stat.st_mtime_ns}"
            return digest_of(path)
        if path.is_dir():
            files = [one for one in sorted(path.iterdir()) if one.is_file()]
            return ", ".join(f"{one.name} {one.stat().st_size} {one.stat().st_mtime_ns}" for one in files)
    except OSError:
        return "unreadable"
    return ""


def digest_of(path: Path) -> str:
    """The hash of a file's contents, read block by block."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Writes a file under its name only when it is whole."""
    with replacing(path) as file:
        file.write(json.dumps(data, ensure_ascii=False, default=str).encode())
