"""What a `.pt2` holds, from the JSON in its archive alone: nothing in it is deserialised or run.

torch's own deserialiser evaluates the expressions of dynamic shapes, compiles guards and unpickles sample inputs; to
name the modules, and what each of them computes, none of that is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from layertap.errors import TargetError
from layertap.messages import tr
from layertap.targets.archive import Archive
from layertap.targets.reader import Argument, ArtefactContents
from layertap.targets.scopes import Node, Scopes

_NAMES = (
    "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool bfloat16"  # from 1 on
)
_DTYPES = dict(enumerate(_NAMES.split(), start=1))
"""torch._export.serde.schema.ScalarType."""
NO_PATHS = "program.no_stack"


def program_contents(path: Path, name: str) -> ArtefactContents:
    """The modules of an exported program, its inputs, and what of it cannot be seen."""
    archive = Archive(path, name)
    (member, *_) = archive.find(r"models/.*\.json") or [""]
    if not member:
        raise TargetError(tr("program.none", name=name))
    try:
        return _contents(archive.json(member), name)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise TargetError(
            tr("program.other_form", name=name, member=member, name2=type(error).__name__, error=error)
        ) from error


def _contents(program: dict[str, Any], name: str) -> ArtefactContents:
    whole = program["graph_module"]
    graph, signature = whole["graph"], whole["signature"]
    weights = _weights(signature)
    kinds: dict[str, str] = {}
    nodes = []
    for node in graph["nodes"]:
        stack = list(_stack(node["metadata"].get("nn_module_stack", "")))
        for _, path, kind in stack:
            kinds.setdefault(path, kind.rpartition(".")[2])
        inputs = list(dict.fromkeys(found for given in node["inputs"] for found in _names(given["arg"])))
        calls = {path: int(key.partition("@")[2] or 0) for key, path, _ in stack if path}
        nodes.append(
            Node(
                scope=tuple(calls),
                inputs=inputs,
                outputs=list(_tensors(node["outputs"])),
                calls=calls,
                parameters=[weights[value] for value in inputs if value in weights],
            )
        )
    users = [value for spec in signature["input_specs"] if "user_input" in spec for value in _names(spec["user_input"])]
    ends = [value for spec in signature["output_specs"] for value in _names(spec)]
    scopes = Scopes(nodes, users, ends)
    modules = {}
    for entry in whole["module_call_graph"]:
        path = entry["fqn"].partition("@")[0]
        if path in kinds or not any(other.startswith(f"{path}.") for other in kinds):
            modules[path] = kinds.get(path, "Module")
    contents = ArtefactContents(
        kind=kinds.get("", "ExportedProgram"),
        modules={**modules, **kinds},
        arguments=tuple(_arguments(whole, users)),
    )
    scopes.fill(contents)
    if len(contents.paths) == 1 and len(nodes) > 1:
        raise TargetError(tr("program.of", name=name, why=tr(NO_PATHS)))
    return contents


def missing_operators(path: Path, name: str) -> list[str]:
    """The operators of a program that this process does not have, `namespace::operator`."""
    archive = Archive(path, name)
    found: dict[str, None] = {}
    for member in archive.find(r"models/.*\.json"):
        waiting: list[Any] = [archive.json(member)]
        while waiting:  # graphs within graphs too: loops and branches
            one = waiting.pop()
            if isinstance(one, list):
                waiting += one
            elif isinstance(one, dict):
                target = one.get("target")
                parts = target.split(".") if isinstance(target, str) and "metadata" in one else []
                if parts[:2] == ["torch", "ops"] and len(parts) >= 4 and not _registered(parts[2], parts[3]):
                    found[f"{parts[2]}::{parts[3]}"] = None
                waiting += one.values()
    return sorted(found)


def _registered(namespace: str, operator: str) -> bool:
    return namespace == "higher_order" or hasattr(getattr(torch.ops, namespace), operator)


def _weights(signature: dict[str, Any]) -> dict[str, str]:
    """The name of a value in the graph → the parameter or buffer that it is."""
    found = {}
    for spec in signature["input_specs"]:
        for kind in ("parameter", "buffer"):
            if kind in spec:
                found[spec[kind]["arg"]["name"]] = spec[kind][f"{kind}_name"]
    return found


def _stack(text: str) -> Iterator[tuple[str, str, str]]:
    """key, path and class of the modules that a node is in, outermost first.

    >>> list(_stack("L__self__,,nets.Net;L__self__head@1,head,torch.nn.modules.linear.Linear"))
    [('L__self__', '', 'nets.Net'), ('L__self__head@1', 'head', 'torch.nn.modules.linear.Linear')]
    """
    for item in text.split(";") if text else ():
        parts, depth, start = [], 0, 0
        for place, sign in enumerate(item):
            depth += (sign in "[(") - (sign in ")]")
            if sign == "," and not depth:
                parts.append(item[start:place])
                start = place + 1
        key, path, kind = [*parts, item[start:]]
        yield key, path, kind


def _names(value: Any) -> Iterator[str]:
    """The values that an argument refers to, however deep; a graph inside it has names of its own."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += reversed(one)
        elif isinstance(one, dict):
            for key, below in one.items():
                if key in ("name", "as_name") and isinstance(below, str):
                    yield below
                elif key != "as_graph":
                    waiting.append(below)


def _tensors(outputs: list[dict[str, Any]]) -> Iterator[str]:
    for output in outputs:
        for key, value in output.items():
            if "tensor" in key:
                yield from _names(value)


def _arguments(whole: dict[str, Any], users: list[str]) -> Iterator[Argument]:
    root: dict[str, Any] = next((entry for entry in whole["module_call_graph"] if entry["fqn"] == ""), {})
    names = ((root.get("signature") or {}).get("forward_arg_names")) or []
    values = whole["graph"]["tensor_values"]
    for place, name in enumerate(names):
        meta = values.get(users[place]) if place < len(users) else None
        if meta is None:
            yield Argument(name=name)
            continue
        sizes = tuple(size["as_int"] if "as_int" in size else _size(size) for size in meta["sizes"])
        yield Argument(name=name, dtype=_DTYPES.get(meta["dtype"], ""), shape=sizes)


def _size(size: dict[str, Any]) -> str:
    expression = size.get("as_expr")
    return str(expression["expr_str"]) if isinstance(expression, dict) else "?"
