"""Which branches are to be skipped: as a mapping of paths, or as text such as `attention[:3] mlp[n//2:]`."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.select.collapse import collapse
from layertap.weights.branches import ATTENTION, MLP, MODULE, Branch

_TERM = re.compile(r"(?P<kind>[a-z_]+)(?:\[(?P<which>[^\]]*)\])?")
_KINDS = {"attention": (ATTENTION,), "attn": (ATTENTION,), "mlp": (MLP,), "block": (ATTENTION, MLP)}
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Branches to skip, in order of layers."""

    branches: tuple[Branch, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(branch.path for branch in self.branches)

    def to_dict(self) -> dict[str, str]:
        """As a plan that `prune` takes."""
        return dict.fromkeys(self.paths, "skip")

    def __str__(self) -> str:
        return tr("pruning.skip", paths=", ".join(collapse(self.paths)) or tr("pruning.nothing"))


def named_modules(plan: Any, model: Any) -> list[Branch]:
    """For a model without known branches: the modules that a mapping names by their paths."""
    found = []
    for layer, path in enumerate(plan if isinstance(plan, Mapping) else ()):
        if str(path) in dict(model.named_modules()):
            block = str(path).rpartition(".")[0]
            found.append(Branch(kind=MODULE, layer=layer, block=block, path=str(path), members=(str(path),)))
    return found


def read_plan(plan: Any, branches: Sequence[Branch]) -> Plan:
    """The plan for a model with these branches.

    >>> kinds = [(layer, kind) for layer in range(4) for kind in (ATTENTION, MLP)]
    >>> parts = [Branch(kind=k, layer=i, block=f"{i}", path=f"{i}.{k}", members=(f"{i}.{k}",)) for i, k in kinds]
    >>> print(read_plan("attention[:1] mlp[n//2:]", parts))
    skip 0.attention, [2-3].mlp
    >>> print(read_plan({"1.mlp": "skip"}, parts))
    skip 1.mlp
    """
    if isinstance(plan, Plan):
        return plan
    if isinstance(plan, str):
        chosen = set(_of_text(plan, branches))
    elif isinstance(plan, Mapping):
        chosen = set(_of_mapping(plan, branches))
    else:
        raise BadArgument(tr("pruning.plan_type", type=type(plan).__name__))
    if not chosen:
        raise BadArgument(tr("pruning.empty"))
    return Plan(branches=tuple(branch for branch in branches if branch.path in chosen))


def _of_text(text: str, branches: Sequence[Branch]) -> Iterator[str]:
    layers = 1 + max(branch.layer for branch in branches)
    for term in (
        text.replace(",", " ").split() if "[" not in text else re.findall(r"[^\s,\[]+(?:\[[^\]]*(?:\]|$))?", text)
    ):
        match = _TERM.fullmatch(term)
        if match is None or match["kind"] not in _KINDS:
            raise BadArgument(tr("pruning.term", term=repr(term), kinds=", ".join(_KINDS)))
        wanted = _layers(match["which"], layers, term)
        for branch in branches:
            if branch.kind in _KINDS[match["kind"]] and branch.layer in wanted:
                yield branch.path


def _layers(text: str | None, count: int, term: str) -> set[int]:
    """Indices of layers: `:3`, `n//2:`, `0,5,7`; without brackets all."""
    if text is None:
        return set(range(count))
    found: set[int] = set()
    for part in text.split(","):
        ends = part.split(":")
        try:
            numbers = [_number(end, count) if end.strip() else None for end in ends]
            ranged = range(count)[slice(*numbers)] if len(ends) > 1 else range(0)
        except (ValueError, TypeError, SyntaxError, ArithmeticError, RecursionError, MemoryError):
            known = {"term": repr(term), "part": repr(part), "count": count}
            raise BadArgument(tr("pruning.range", **known)) from None
        if len(ends) == 1 and numbers[0] is not None:
            if not -count <= numbers[0] < count:
                raise BadArgument(tr("pruning.no_layer", term=repr(term), layer=numbers[0], count=count))
            found.add(numbers[0] % count)
        else:
            found |= set(ranged)
    return found


def _number(text: str, count: int) -> int:
    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name) and node.id == "n":
            return count
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return int(_OPERATORS[type(node.op)](value(node.left), value(node.right)))
        raise ValueError(text)

    return value(ast.parse(text.strip(), mode="eval").body)


def _of_mapping(plan: Mapping[Any, Any], branches: Sequence[Branch]) -> Iterator[str]:
    for pattern, wish in plan.items():
        if wish != "skip":
            raise BadArgument(tr("pruning.wish", pattern=pattern, wish=repr(wish)))
        hits = [
            branch.path
            for branch in branches
            if any(fnmatchcase(name, str(pattern)) for name in (branch.path, branch.block, *branch.members))
        ]
        if not hits:
            near = ", ".join(collapse(branch.path for branch in branches))
            raise BadArgument(tr("pruning.no_branch", pattern=repr(pattern), near=near))
        yield from hits
