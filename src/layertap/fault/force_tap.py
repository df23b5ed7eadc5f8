"""The tap that measures a module against the trace and exchanges what it is asked to."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from layertap.capture import taps
from layertap.capture.leaves import Leaf, leaves, map_tensors
from layertap.fault.model_runner import autocast_now, version
from layertap.fault.reference_trace import ModuleCall, call_of
from layertap.fault.replay_measure import Replay
from layertap.fault.tensor_swap import BACK, Nudge, Swaps, arriving, as_given, flows, gate, in_objects, swap, tensors_in
from layertap.fault.value_layouts import masklike, maybe_mask
from layertap.measure.dense import dense
from layertap.site import Site

_Token = tuple[int, bool, ModuleCall | None]


class ForceTap:
    def __init__(self, task: Replay, path: str, names: tuple[str, ...], module: nn.Module) -> None:
        self._task, self._path, self._names, self._module = task, path, names, module

    def enter(self, args: taps.Args, kwargs: taps.Kwargs, direct: bool) -> tuple[taps.Args, taps.Kwargs, Any]:
        task, path, stack = self._task, self._path, self._task.stack
        call, again = stack.enter(path)
        token = call, again, stack.caller
        if not again:
            task.callers[path, call] = stack.caller
            if not torch.is_grad_enabled():
                task.without_grad.add((path, call))
        stack.measuring = True
        task.replayed.casts[path] = autocast_now()
        if path in task.trace.calls:
            given = arriving(self._names, args, kwargs)
            self._look_at_masks(token, given)
            swaps = self._compare(token, "input", given)
            args, kwargs = swap((args, kwargs), swaps, task.into)
        if task.keep and any(call_of(key) == (path, call) for key in task.keep):
            task.replayed.arguments[path] = _copied((args, kwargs))
        stack.measuring = False
        before = [(tensor, version(tensor)) for tensor in tensors_in(args, kwargs)]
        return args, kwargs, (token, args, kwargs, before)

    def leave(self, token: tuple[_Token, taps.Args, taps.Kwargs, list[tuple[torch.Tensor, int]]], output: Any) -> Any:
        begun, args, kwargs, given = token
        stack = self._task.stack
        stack.measuring = True
        self._task.writes.note(given, (self._path, begun[0]))
        if self._path in self._task.trace.calls:
            if written := in_objects(self._names, args, kwargs):
                swap((args, kwargs), self._compare(begun, "state", written), self._task.into)
            output = swap(output, self._compare(begun, "output", leaves(output)), self._task.into)
        stack.leave(self._path, begun[0])
        stack.measuring = False
        return output

    def _look_at_masks(self, token: _Token, given: Iterable[Leaf]) -> None:
        call, again, caller = token
        if again or not self._task.force or not self._task.judge:
            return
        trace = self._task.trace
        found = {leaf.path: leaf.tensor for leaf in given if _mask(leaf.path, leaf.tensor)}
        right = trace.masks_at(self._path, call)
        if not found and not right:
            return
        names = self._names_of(call, "input", list(found), list(right))
        for name in dict.fromkeys((*right, *(names.get(path, path) for path in found))):
            mine = next((tensor for path, tensor in found.items() if names.get(path, path) == name), None)
            self._task.masks.meet((self._path, call), caller, name, right.get(name), mine, self._module)

    def _compare(self, token: _Token, end: str, found: Iterable[Leaf]) -> Swaps:
        call, again, caller = token
        task = self._task
        swaps: Swaps = {}
        tensors = [(leaf.path, leaf.tensor) for leaf in found if leaf.tensor is not None]
        names = self._names_of(call, end, [path for path, _ in tensors])
        nudge = task.nudge if end == "input" else None
        for path, tensor in tensors:
            if id(tensor) in swaps:
                continue
            key = task.trace.site(self._path, call, end, names.get(path, path))
            # A value that a neighbour has spoilt is the neighbour's doing, not the caller's.
            maker = (task.writes.writer(tensor) if end == "input" else None) or caller
            value = self._again(key, tensor) if again else task.measure(key, maker, tensor)
            given = value if value is not None and task.forces(key) else tensor
            if nudge is not None:
                slot = task.trace.slots.get(key) if given is value else None
                given = task.moved.of(given, nudge, once=not flows(tensor), slot=slot)
            if flows(tensor) and end in BACK:
                site = replace(key, role=BACK[end])
                task.flowing.add(site)
                if task.parts is not None and not task.whole:
                    slot = task.trace.slots.get(key)
                    task.parts.note_layout(site, None if slot is None else tuple(slot.get().shape), tensor)
                back = self._back(site, caller)
                swaps[id(tensor)] = tensor, gate(tensor, None if given is tensor else given, back)
            elif given is not tensor:
                swaps[id(tensor)] = tensor, given
        return swaps

    def _names_of(self, call: int, end: str, paths: list[str], theirs: list[str] | None = None) -> dict[str, str]:
        """Of a value that has no namesake: where each side has one such, whatever it is wrapped in, they are paired."""
        theirs = self._task.trace.leaves(self._path, call, end) if theirs is None else theirs
        if paths == theirs:
            return {}
        left, right = [path for path in paths if path not in theirs], [name for name in theirs if name not in paths]
        return {left[0]: right[0]} if len(left) == len(right) == 1 else {}

    def _again(self, key: Site, found: torch.Tensor) -> torch.Tensor | None:
        slot = self._task.trace.slots.get(key)
        return None if slot is None else as_given(slot.get(), found)

    def _back(self, site: Site, caller: ModuleCall | None) -> Nudge:
        of_output = site.role == "grad_output"

        def back(grad: torch.Tensor) -> torch.Tensor:
            right = self._task.measure(site, caller, grad)
            if right is None or not self._task.forces(site):
                return grad
            return self._task.nudge(right) if self._task.nudge is not None and of_output else right

        return back


def _mask(name: str, tensor: torch.Tensor | None) -> bool:
    """Whether a value is a mask."""
    return tensor is not None and maybe_mask(name, tensor) and dense(tensor) is tensor and masklike(tensor)


def _copied(call: tuple[Any, Any]) -> tuple[Any, Any]:
    """As it is now: a cache is written into later."""
    plain: tuple[Any, Any] = map_tensors(call, lambda tensor: tensor.detach().clone())
    try:
        copied: tuple[Any, Any] = copy.deepcopy(plain)
    except (RuntimeError, TypeError):  # something in it refuses: then it is handed on as it is
        return plain
    return copied
