"""Who is trained: the modules behind an optimizer's parameters, out of whatever wraps them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer

_WRAPPERS = ("DistributedDataParallel", "DataParallel")


def unwrap(model: nn.Module) -> tuple[nn.Module, nn.Module | None]:
    """The model itself, and the torch.compile wrapper around it if there is one."""
    compiled: nn.Module | None = None
    while True:
        kind = type(model).__name__
        if kind == "OptimizedModule":
            compiled, model = (model if compiled is None else compiled), model._orig_mod  # type: ignore[assignment]
        elif _wraps(model):
            model = model.module  # type: ignore[assignment]
        else:
            return model, compiled


def _wraps(model: nn.Module) -> bool:
    """Whether it is DDP or the like, or of a class made from it."""
    names = {base.__name__ for base in type(model).__mro__}
    return not names.isdisjoint(_WRAPPERS) and isinstance(getattr(model, "module", None), nn.Module)


def compiled_wrapper(model: nn.Module) -> nn.Module | None:
    """The torch.compile wrapper of a model that was given bare."""
    if "torch._dynamo" not in sys.modules:
        return None
    wrappers = (module for module in _modules() if type(module).__name__ == "OptimizedModule")
    return next((wrapper for wrapper in wrappers if unwrap(wrapper)[0] is model), None)


def models_of(optimizer: Optimizer, named: str = "") -> list[nn.Module]:
    """The models that an optimizer trains, outermost modules first; `named` is a class or a variable of the script."""
    wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    modules = _modules()
    if named:
        by_class = [m for m in modules if named in (type(m).__name__, type(m).__qualname__) and _trains(m, wanted)]
        inner = {id(child) for module in by_class for child in module.modules() if child is not module}
        found = [module for module in by_class if id(module) not in inner]
        return found or [module for module in _variables(named) if _trains(module, wanted)][:1]
    children = {id(child) for module in modules for child in module._modules.values() if child is not None}
    tops = [module for module in modules if id(module) not in children and _trains(module, wanted)]
    tops.sort(key=lambda module: (-_count(module, wanted), sum(1 for _ in module.modules())))
    chosen: list[nn.Module] = []
    left = set(wanted)
    for module in tops:  # a wrapper beside the model itself brings nothing new
        here = {id(parameter) for parameter in module.parameters()}
        if here & left:
            chosen.append(module)
            left -= here
    return chosen


def _modules() -> list[nn.Module]:
    # `type`, not isinstance: a proxy among all the objects of a process may do anything when it is asked for its class.
    return [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module) and "_modules" in thing.__dict__]


def _trains(module: nn.Module, wanted: set[int]) -> bool:
    return any(id(parameter) in wanted for parameter in module.parameters())


def _count(module: nn.Module, wanted: set[int]) -> int:
    return sum(id(parameter) in wanted for parameter in module.parameters())


def _variables(name: str) -> Iterator[nn.Module]:
    """What a variable (or `object.attribute`) of that name means, from here outwards."""
    first, *rest = name.split(".")
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        for scope in (frame.f_locals, frame.f_globals):
            value: Any = scope.get(first)
            for part in rest:
                value = getattr(value, part, None)
            if isinstance(value, nn.Module):
                yield value
        frame = frame.f_back
