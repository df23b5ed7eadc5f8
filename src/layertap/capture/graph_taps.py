"""Taps that a compiler sees: the tapped class of a module puts tensors among the values of the graph.

The taps of taps.py look at data as it flows, and stand aside while a graph is being made. In a graph no Python runs
later: what is to be seen must be a value of the graph. So a tap, as its module is called, puts tensors into a
dictionary; whoever called the graph finds them there, since a compiler returns what a traced function leaves in one.

The class is what Dynamo guards of a module, while hooks that come late are ignored: exchanged, the graph without taps
no longer fits and one with taps is made; exchanged back, the first one fits again, without another compilation.
Everything here is traced: constants, tuples, lists and dictionaries, no generators, no sets of identities.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch import nn

from layertap.capture import graph_ops
from layertap.capture.classes import LEFT_OUT, Kind, asks_own_type, class_of, put_off, put_on
from layertap.capture.keep import STATS, Keeper, Level
from layertap.capture.leaves import DEPTH, no_leaf
from layertap.measure import portable
from layertap.result import Note
from layertap.select import Choice

Key = tuple[str, str, str, int]
"""Path (from the values's owner), role, leaf, call."""

_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """What a values holds of one tensor, with what a statistic alone would not tell."""

    value: torch.Tensor
    measured: bool
    """Whether the value is a slab (measure/slab.py) in place of the tensor."""
    level: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class Values:
    """Where the taps of one model, or of one compiled part of it, leave what they see during one call."""

    def __init__(self) -> None:
        self.on = False
        self.found: dict[Key, tuple[Any, ...]] = {}
        self.calls: dict[str, int] = {}
        self.skipped: dict[Key, str] = {}
        self.inside: dict[str, bool] = {}
        self.outside: dict[str, bool] = {}
        """Paths whose call no graph was made of: Python ran it."""

    def clear(self) -> None:
        self.found.clear()
        self.calls.clear()
        self.skipped.clear()
        self.inside.clear()
        self.outside.clear()

    def taken(self) -> dict[Key, Taken]:
        """What is in it, in the order of execution."""
        return {key: Taken(*found) for key, found in self.found.items()}


@dataclasses.dataclass(eq=False)
class GraphTap:
    """What one module puts into its values. Dynamo guards the strings: equal modules share a graph."""

    values: Values
    path: str
    plan: str
    """A key of `_plans`."""
    way: str
    """How a level becomes a value of the graph, see `_value`."""
    levels: dict[str, Callable[[torch.Tensor], torch.Tensor]]
    """Name of a level → its reduction."""
    lasting: bool
    """Whether it goes along with copies of the module; a recording's does not."""

    @classmethod
    def of(cls, choice: Choice, keeper: Keeper, *, values: Values, path: str, way: str, lasting: bool) -> GraphTap:
        rules = keeper.rules(choice.path)
        reductions = {level.name: level.reduce for _, level in rules if level.reduce}
        return cls(values, path, _planned(choice, rules), way, reductions, lasting)


def attach(module: nn.Module, tap: GraphTap) -> str:
    """From now on the module's calls pass the tap; returns why they cannot."""
    if asks_own_type(class_of(module)):
        return Note("capture.compares_type", name=class_of(module).__name__)
    module.__dict__[_NAME] = tap
    return put_on(module, GRAPH)


def detach(module: nn.Module) -> None:
    """The module is as it was; a class that somebody else has given it meanwhile stays."""
    put_off(module, GRAPH)
    module.__dict__.pop(_NAME, None)


def tapped(module: nn.Module) -> bool:
    """Whether it has a tap that a compiler sees."""
    return _NAME in module.__dict__


_NAME = "_layertap_tap"


def _methods(cls: Any) -> dict[str, Any]:
    """What a tapped subclass of `cls` has of its own. Dynamo traces it."""

    def _call_impl(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _NAME not in self.__dict__:  # a copy that was made by hand
            return cls._call_impl(self, *args, **kwargs)
        return _pass(self._layertap_tap, functools.partial(cls._call_impl, self), args, kwargs)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        own = functools.partial(cls.forward, self)
        if _NAME not in self.__dict__ or self._layertap_tap.values.inside.get(self._layertap_tap.path, False):
            return own(*args, **kwargs)  # within its own call
        return _pass(self._layertap_tap, own, args, kwargs)

    methods = {"_call_impl": _call_impl}
    if isinstance(inspect.getattr_static(cls, "forward", None), FunctionType):
        methods["forward"] = functools.wraps(cls.forward)(forward)
    return methods


def _stored(item: tuple[str, Any]) -> tuple[str, Any]:
    return item[0], LEFT_OUT if item[0] == _NAME else item[1]


def _lasting(module: Any) -> bool:
    tap = module.__dict__.get(_NAME)
    return tap is not None and bool(tap.lasting)


GRAPH = Kind("graph", _methods, traced=True, stored=_stored, lasting=_lasting)


def _pass(tap: GraphTap, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    values, path = tap.values, tap.path
    if not values.on:
        return call(*args, **kwargs)
    number = values.calls.get(path, 0)
    values.calls[path] = number + 1
    if not torch.compiler.is_dynamo_compiling():
        values.outside[path] = True
    if _asks(tap.plan, "input"):
        for leaf, value in walk_call(args, kwargs):
            _take(tap, "input", leaf, value, number)
    outer = values.inside.get(path, False)
    values.inside[path] = True
    output = call(*args, **kwargs)
    values.inside[path] = outer
    if _asks(tap.plan, "output"):
        for leaf, value in walk(output, "", 0):
            _take(tap, "output", leaf, value, number)
    return output


def _take(tap: GraphTap, role: str, leaf: str, value: Any, number: int) -> None:
    key = (tap.path, role, leaf, number)
    if not isinstance(value, torch.Tensor):
        tap.values.skipped[key] = _reason(value)
        return
    level = _level(tap.plan, role, leaf)
    if not level:
        return
    if value.layout is not torch.strided:
        tap.values.skipped[key] = Note("capture.sparse")
        return
    plain = value.detach()
    if hasattr(plain, "placements"):  # a DTensor, which an operation of our own cannot take; it is taken apart later
        tap.values.found[key] = (plain.clone(), False, level, plain.dtype, tuple(plain.shape))
        return
    measured = tap.way == "ops" and level == STATS.name and _kernel_reads(str(plain.dtype), plain.device.type)
    held = graph_ops.measure(plain) if measured else _value(tap, plain, level)
    tap.values.found[key] = (held, measured, level, plain.dtype, tuple(plain.shape))


def _value(tap: GraphTap, tensor: torch.Tensor, level: str) -> torch.Tensor:
    """The value of the graph that represents a tensor at its level.

    `portable`: with operations that every compiler has. `ops`: through layertap's own, for torch's compilers: one
    kernel for the statistics, and an event that says when a copy is ready. `plain`: the tensor, measured later.
    """
    if tap.way == "portable":
        if level == STATS.name:
            return portable.reduce(tensor)
        return (tap.levels[level](tensor) if level in tap.levels else tensor).clone()
    return graph_ops.keep(tensor) if tap.way == "ops" else tensor.clone()


def walk(value: Any, path: str, depth: int) -> list[tuple[str, Any]]:
    """`leaves` in a form that Dynamo can trace: the same names, a non-tensor as it is."""
    if value is None or isinstance(value, (torch.Tensor, *_PLAIN)) or depth >= DEPTH:
        return [(path, value)]
    found: list[tuple[str, Any]] = []
    for name, child in children(value):
        found += walk(child, f"{path}.{name}" if path else name, depth + 1)
    return found or [(path, value)]


def walk_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """`call_leaves`, likewise."""
    if len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor):
        return [("", args[0])]
    found: list[tuple[str, Any]] = []
    for index, value in enumerate(args):
        found += walk(value, str(index), 1)
    for name in kwargs:
        found += walk(kwargs[name], name, 1)
    return found


def children(value: Any) -> list[tuple[str, Any]]:
    """The parts of a container, by name."""
    if isinstance(value, Mapping):
        return [(str(key), value[key]) for key in value]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(name, getattr(value, name)) for name in value._fields]
    if isinstance(value, (tuple, list)):
        return [(str(index), item) for index, item in enumerate(value)]
    if dataclasses.is_dataclass(value):
        return [(each.name, getattr(value, each.name)) for each in dataclasses.fields(value)]
    if isinstance(value, (nn.Module, type)) or callable(value):
        return []
    return _attributes(value)


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """Of a cache and its like: those attributes in which a tensor can be."""
    found = []
    for name, item in getattr(value, "__dict__", {}).items():
        if isinstance(item, (torch.Tensor, list, tuple, dict)) or hasattr(item, "__dict__"):
            found.append((name, item))
    return found


# What the taps ask while they are traced; the answers are constants of the graph.

_plans: dict[str, tuple[Choice, list[tuple[Choice | None, Level]]]] = {}


def _planned(choice: Choice, rules: list[tuple[Choice | None, Level]]) -> str:
    """The name of a plan. It says all that the plan depends on, and nothing about where the module is."""
    wishes = [(c and (c.roles, c.leaves, c.without), level.name) for c, level in rules]
    name = repr((choice.roles, choice.leaves, choice.without, wishes))
    _plans[name] = (choice, rules)
    return name


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _asks(plan: str, role: str) -> bool:
    return role in _plans[plan][0].roles


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _level(plan: str, role: str, leaf: str) -> str:
    """The name of the level at which a leaf is taken; empty if it is not."""
    choice, rules = _plans[plan]
    if not choice.wants(role, leaf):
        return ""
    fitting = [level for rule, level in rules if rule is None or rule.wants(role, leaf)]
    return fitting[-1].name if fitting else STATS.name


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _kernel_reads(dtype: str, device: str) -> bool:
    return graph_ops.kernel_reads(dtype, device)


def _reason(value: Any) -> str:
    if value is None:
        return "None"
    return type(value).__name__ if isinstance(value, _PLAIN) else no_leaf("record.without_tensors", value)
