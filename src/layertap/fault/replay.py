"""Runs of a model with every module watched: the reference is written down, the candidate is forced to it.

Held means teacher-forced: what arrives at a module is measured against what arrived there in the reference, then
replaced by it; what the module returns is measured, then replaced too. So each module computes from right values: what
is measured at its exit is its own error, what is measured at a child's entry is its caller's. Where gradients flow, the
same happens to them on the way back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from layertap.capture.leaves import map_tensors
from layertap.fault.call_stack import CallStack
from layertap.fault.force_tap import ForceTap
from layertap.fault.local import unwrapped
from layertap.fault.model_runner import ModelRunner
from layertap.fault.record_tap import RecordTap
from layertap.fault.reference_trace import ReferenceTrace, ReplayResult
from layertap.fault.replay_measure import Replay, ReplayOptions
from layertap.fault.sharded_replay import RankParts
from layertap.fault.tensor_cache import TensorCache
from layertap.site import Site

Names = Mapping[str, tuple[str, ...]]
"""The parameters of a module's `forward`, by path: a value given by position is known when the other side gives it by
name."""


def write_down(
    side: ModelRunner, modules: Mapping[str, nn.Module], cache: TensorCache, names: Names, seeded: bool = False
) -> ReferenceTrace:
    """Runs the reference and keeps a copy of everything that goes in and out of its modules."""
    trace = ReferenceTrace(cache)
    stack = CallStack(seeded)
    output = side.run({module: RecordTap(stack, trace, path, names[path]) for path, module in modules.items()})
    trace.output = map_tensors(output, cache.kept)  # not twice
    trace.parameters = {(path, name) for path, module in modules.items() for name in module._parameters}
    for path, name, grad in _gradients(modules):
        trace.slots[Site(path=path, role="param_grad", leaf=name)] = cache.put(grad)
    return trace


def play(
    side: ModelRunner,
    modules: Mapping[str, nn.Module],
    trace: ReferenceTrace,
    names: Names,
    options: ReplayOptions,
    within: Callable[[CallStack], Any] | None = None,
) -> ReplayResult:
    """Runs a model against the trace; `within` makes a context to run it in. `names` are the reference's."""
    stack = CallStack(options.seeded)
    task = Replay.of(options, stack, trace)
    trace.cache.rewind(task.asked_for(modules))
    replayed, judge, parts = task.replayed, options.judge, options.parts
    watchers = {module: ForceTap(task, path, names.get(path, ()), module) for path, module in modules.items()}
    replayed.output = side.run(watchers, within(stack) if within is not None else None)
    for path, name, grad in _gradients(modules):
        task.measure(Site(path=path, role="param_grad", leaf=name), (path, 0), _own_share(grad, parts, options.whole))
    if judge and parts is not None:
        parts.add_summands(task)
    if judge:
        task.note_lost_gradients(modules)
    settled = task.settled() if judge else []
    replayed.events = [event for _, event in settled]
    replayed.calls, replayed.masks = stack.calls, task.masks.other
    return replayed if parts is None else parts.merged(replayed, trace, settled)


def _own_share(grad: torch.Tensor, parts: RankParts | None, whole: bool) -> torch.Tensor:
    """The gradient of a parameter as it is measured: plain, and of the reference averaged where the trace's are."""
    if parts is None:
        return grad
    if whole and parts.own_grads:
        return parts.mean(grad)
    return unwrapped(grad)


def _gradients(modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, str, torch.Tensor]]:
    for path, module in modules.items():
        if all(own is None or own.grad is None for own in module._parameters.values()):
            continue  # of most, and to be named by torch takes longer
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.grad is not None:
                yield path, name, parameter.grad


def all_parameter_names(modules: Mapping[str, nn.Module]) -> Names:
    """The names by path. A class is looked at once: that takes as long as running a small module."""
    known: dict[Any, tuple[str, ...]] = {}
    found = {}
    for path, module in modules.items():
        code = type(module) if "forward" not in vars(module) else module
        if code not in known:
            known[code] = parameter_names(module)
        found[path] = known[code]
    return found


def parameter_names(module: nn.Module) -> tuple[str, ...]:
    """The names that a module's `forward` gives to positional arguments.

    >>> parameter_names(nn.Linear(1, 1))
    ('input',)
    """
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(parameter.name for parameter in parameters if parameter.kind in kinds)
