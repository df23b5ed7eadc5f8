"""The tap that writes the reference's trace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from layertap.capture import taps
from layertap.capture.leaves import Leaf, leaves
from layertap.fault.call_stack import CallStack
from layertap.fault.model_runner import autocast_now
from layertap.fault.reference_trace import ReferenceTrace
from layertap.fault.tensor_swap import BACK, Nudge, Swaps, arriving, flows, gate, in_objects, swap
from layertap.site import Site


class RecordTap:
    def __init__(self, stack: CallStack, trace: ReferenceTrace, path: str, names: tuple[str, ...]) -> None:
        self._stack, self._trace, self._path = stack, trace, path
        self._names = names

    def enter(self, args: taps.Args, kwargs: taps.Kwargs, direct: bool) -> tuple[taps.Args, taps.Kwargs, Any]:
        call, again = self._stack.enter(self._path)
        if not again:
            self._trace.calls[self._path] += 1
            self._trace.casts[self._path] = autocast_now()
        swaps = self._write(call, again, "input", arriving(self._names, args, kwargs))
        args, kwargs = swap((args, kwargs), swaps)
        return args, kwargs, (call, again, args, kwargs)

    def leave(self, token: tuple[int, bool, taps.Args, taps.Kwargs], output: Any) -> Any:
        call, again, args, kwargs = token
        self._stack.leave(self._path, call)
        self._write(call, again, "state", in_objects(self._names, args, kwargs))
        return swap(output, self._write(call, again, "output", leaves(output)))

    def _write(self, call: int, again: bool, end: str, found: Iterable[Leaf]) -> Swaps:
        swaps: Swaps = {}
        for leaf in found:
            if leaf.tensor is None:
                continue
            slot = None
            if not again:
                slot = self._trace.cache.put(leaf.tensor)
                self._trace.slots[self._trace.site(self._path, call, end, leaf.path)] = slot
            if flows(leaf.tensor) and end in BACK:
                passed = gate(leaf.tensor, None, self._back(call, end, leaf.path))
                swaps[id(leaf.tensor)] = leaf.tensor, passed
                if slot is not None:
                    self._trace.cache.remember(passed, slot)  # or what reads it would be kept once more
        return swaps

    def _back(self, call: int, end: str, leaf: str) -> Nudge:
        def back(grad: torch.Tensor) -> torch.Tensor:
            self._trace.slots[Site(path=self._path, call=call, role=BACK[end], leaf=leaf)] = self._trace.cache.put(grad)
            return grad

        return back
