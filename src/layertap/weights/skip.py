"""What runs in place of a branch that is skipped: zeros to add, and a cache that still counts its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from layertap.messages import tr


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """What a skipped module returns."""

    leaf: int | None
    """Which item of a tuple is the tensor; None where it returns the tensor itself."""
    length: int
    passes: bool = False
    """Whether it hands on its input: a part of a branch before the one whose output is added."""
    layer: int | None = None
    """Its place in the cache, for attention."""
    heads: int = 1
    head_dim: int = 1

    def output(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Zeros of the shape of its input, in the structure of the branch's output."""
        given = next(
            (v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor) and v.is_floating_point()), None
        )
        if given is None:
            raise ValueError(tr("pruning.no_tensor"))
        if self.passes:
            return given
        if self.layer is not None:
            self._count(given, args, kwargs)
        zeros = torch.zeros_like(given)
        if self.leaf is None:
            return zeros
        return tuple(zeros if index == self.leaf else None for index in range(self.length))

    def _count(self, given: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The cache's length is asked of its first layer; without these tokens the next get wrong positions."""
        for value in (*args, *kwargs.values()):
            if hasattr(value, "update") and hasattr(value, "get_seq_length"):
                empty = given.new_zeros((given.shape[0], self.heads, given.shape[1], self.head_dim))
                value.update(empty, empty, self.layer)
                return


class SkippedBranch(nn.Module):
    """Stands where a branch was removed."""

    pruned_branch = True

    def __init__(self, skip: Skip, removed: nn.Module) -> None:
        super().__init__()
        self.skip = skip
        for name, value in vars(removed).items():  # what its caller asks of it: torch's own layers do before they run
            if not name.startswith("_") and isinstance(value, (bool, int, float, str)) and name not in vars(self):
                setattr(self, name, value)
        for name in removed._parameters:
            self.register_parameter(name, None)
        self.register_forward_pre_hook(seen)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.skip.output(args, kwargs)

    def extra_repr(self) -> str:
        return "removed"


def seen(_: nn.Module, __: Any) -> None:
    """Does nothing: a module with a hook is called by torch's encoder, which otherwise reads its parameters alone."""


def bypass(module: nn.Module, skip: Skip) -> None:
    """The module's calls return what `skip` says; its parameters stay. Its class is exchanged, which Dynamo guards."""
    module.__dict__["_layertap_skip"] = skip
    module.__dict__["_layertap_hook"] = module.register_forward_pre_hook(seen)
    cls: Any = type(module)
    module.__class__ = _bypassed(cls)


def restore(module: nn.Module) -> None:
    """The module is as it was; one whose class somebody else has changed since is left alone."""
    if is_bypassed(module):
        module.__class__ = type(module).__mro__[1]
    module.__dict__.pop("_layertap_skip", None)
    hook = module.__dict__.pop("_layertap_hook", None)
    if hook is not None:
        hook.remove()


def is_bypassed(module: nn.Module) -> bool:
    return "_layertap_bypassed" in type(module).__dict__


@cache
def _bypassed(cls: Any) -> Any:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._layertap_skip.output(args, kwargs)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:  # noqa: N807
        return _again, (cls,), self.__dict__

    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    methods = {"forward": forward, "__reduce_ex__": __reduce_ex__, "_layertap_bypassed": True}
    return type(cls.__name__, (cls,), {**names, **methods})


def _again(cls: Any) -> Any:
    """A copy of a bypassed module is bypassed too."""
    bypassed = _bypassed(cls)
    return bypassed.__new__(bypassed)
