"""Tensors that a collective is still writing: they are waited for before anybody reads them.

A functional collective returns before its peers have sent their parts. Until `wait_tensor` the memory holds this rank's
partial result, or nothing. On a CPU the wait blocks the calling thread; on CUDA it makes the current stream wait. It
takes place in the thread that called the module: torch hands the pending work to whoever waits first, so a wait in
another thread would let the program itself go on too early.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch


def in_flight(kind: type[torch.Tensor]) -> bool:
    """Whether tensors of this class represent the result of a collective that may not be done."""
    return hasattr(kind, "trigger_wait")


def result_of(tensor: torch.Tensor, *, wait: bool) -> torch.Tensor:
    """The plain tensor behind such a one; complete, if it is waited for."""
    pending: Any = tensor
    if not wait:
        unread: torch.Tensor = pending.elem
        return unread
    with torch.no_grad():
        result: torch.Tensor = pending.trigger_wait()
    return result


def pending() -> bool:
    """Whether any collective of this process has not been waited for."""
    return (_registry_size or _find_registry())() > 0


_registry_size: Callable[[], int] | None = None


def _find_registry() -> Callable[[], int]:
    """What counts them; found once, as it is asked for every record."""
    global _registry_size
    work: Any = sys.modules.get("torch._C._distributed_c10d")
    if work is None:
        return lambda: 0  # it may still be imported
    _registry_size = getattr(work, "_get_work_registry_size", lambda: 0)
    return _registry_size


def complete(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor, complete: an operation of `torch.ops._c10d_functional` returns one that may still be pending."""
    if not pending() or not torch._C._has_storage(tensor):
        return tensor
    with torch.no_grad():
        result: torch.Tensor = torch.ops._c10d_functional.wait_tensor(tensor)
    return result
