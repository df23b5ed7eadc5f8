"""One module, watched for one recorder: which tensors of a call are taken, and how they are named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from layertap.capture.leaves import Leaf, call_leaves, leaves, map_tensors, parts
from layertap.capture.parcel import Tally
from layertap.capture.sharding import marked
from layertap.capture.taps import Args, Kwargs
from layertap.measure import supported

if TYPE_CHECKING:
    from layertap.capture.compiled import Region
    from layertap.capture.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Moment:
    """When a call happened."""

    call: int
    step: int
    epoch: int | None
    batch: int | None
    phase: str
    recomputed: bool


@dataclass(frozen=True, slots=True)
class Call:
    """One call under way."""

    args: Args
    kwargs: Kwargs
    moment: Moment


UNWANTED = object()
"""What `Recorder.seen` returns for a call whose output is not to be recorded."""


class ModuleTap:
    """Sees every call of its module; takes what its roles ask for."""

    def __init__(self, recorder: Recorder, module: nn.Module, path: str, roles: tuple[str, ...]) -> None:
        self.module = module
        self.path = path
        self.kind = type(module).__name__
        self.tallies = {role: Tally() for role in roles}
        self.total = 0
        """Calls seen in all, recomputation included."""
        self.differentiable = 0
        """Tensors seen through which a gradient could come."""
        self.region: Region | None = None
        """The compiled part that it lies in."""
        self.refused = ""
        """Why its calls cannot be seen."""
        self._recorder = recorder
        self._step = -1
        self._calls: Counter[str] = Counter()
        self._recomputed: Counter[str] = Counter()
        self._unasked = Tally()

    @property
    def idle(self) -> bool:
        """Whether it takes nothing, and is there to count calls for the receipt."""
        return not self.tallies

    def enter(self, args: Args, kwargs: Kwargs, direct: bool) -> tuple[Args, Kwargs, Call | None]:
        recorder = self._recorder
        moment: Moment | None = None
        if not self.tallies and self.path:
            self.total += 1  # watched only so that the receipt can say who called whom
        elif recorder.live:
            with recorder.inside(self.path):
                moment = self.begin(direct)
                if not moment.recomputed:
                    self._take_input(args, kwargs, moment)
                    self.take_parameters(moment)
                if "grad_input" in self.tallies and torch.is_grad_enabled():
                    args, kwargs = self._watch_inputs(args, kwargs, moment)
        return args, kwargs, None if moment is None else Call(args, kwargs, moment)

    def leave(self, token: Call | None, output: Any) -> Any:
        recorder = self._recorder
        if token is not None and self.tallies and recorder.live:
            moment = token.moment
            with recorder.inside(self.path):
                if "output" in self.tallies and not moment.recomputed:
                    seen = recorder.seen(self, token, output)
                    if seen is not UNWANTED:
                        self._take("output", leaves(seen), moment)
                        if self.tallies["output"].fired == 1:
                            recorder.parts.unknown(self.path, self.module, leaves(seen))
                if "grad_output" in self.tallies:
                    for leaf in leaves(output):
                        if leaf.tensor is not None and leaf.tensor.requires_grad:
                            self._watch(leaf.tensor, "grad_output", leaf.path, moment)
        return output

    def watch_parameter_gradients(self) -> Iterator[Any]:
        """Hooks that see each gradient as it is accumulated (also under FSDP2, where tensor hooks never fire)."""
        if "param_grad" not in self.tallies:
            return
        for name, parameter in self._parameters():
            if parameter.requires_grad and parameter.is_leaf:
                self.differentiable += 1
                seen = self._gradient_hook(name)
                yield parameter.register_post_accumulate_grad_hook(seen)

    def begin(self, direct: bool) -> Moment:
        """Counts a call."""
        recorder = self._recorder
        if self._step != recorder.step_number:
            self._step = recorder.step_number
            self._calls.clear()
            self._recomputed.clear()
        self.total += 1
        # A forward inside a backward pass is activation checkpointing at work: the same values once more. Where the
        # first forward ran without autograd (reentrant checkpointing), the gradients pass here, last call first.
        recomputed = torch._C._current_graph_task_id() != -1
        phase = recorder.phase  # a validation pass between two steps must not number the calls of the next
        if recomputed:
            self._recomputed[phase] += 1
            call = max(self._calls[phase] - self._recomputed[phase], 0)
        else:
            call = self._calls[phase]
            self._calls[phase] += 1
        for tally in self.tallies.values():
            tally.recomputed += recomputed
            tally.direct += direct
        return Moment(call, self._step, recorder.epoch, recorder.batch, phase, recomputed)

    def _take_input(self, args: Args, kwargs: Kwargs, moment: Moment) -> None:
        if "input" in self.tallies:
            self._take("input", call_leaves(args, kwargs), moment)
        elif not self.path:
            for leaf in call_leaves(args, kwargs):
                self.put("input", leaf, moment, self._unasked)

    def take_parameters(self, moment: Moment) -> None:
        """Takes the parameters, if they are asked for, once a step."""
        if "param" in self.tallies and moment.call == 0:
            self._take("param", (Leaf(name, parameter) for name, parameter in self._parameters()), moment)

    def _take(self, role: str, found: Iterator[Leaf], moment: Moment) -> None:
        tally = self.tallies[role]
        tally.fired += 1
        for leaf in found:
            self.put(role, leaf, moment, tally)

    def put(self, role: str, leaf: Leaf, moment: Moment, tally: Tally) -> None:
        """Takes one leaf of a call."""
        recorder = self._recorder
        if leaf.tensor is None:
            tally.skip(leaf.reason)
            return
        asked = tally is not self._unasked
        if asked and not recorder.selection.wants(self.path, role, leaf.path):
            return
        known = marked(leaf.tensor)
        for below, part, sharding in parts(leaf.tensor.detach()):
            reason = supported(part)
            if reason:
                tally.skip(reason)
                continue
            name = f"{leaf.path}.{below}" if leaf.path and below else leaf.path or below
            recorder.put(self, role, name, part.resolve_conj().resolve_neg(), moment, tally, sharding or known, asked)

    def _watch_inputs(self, args: Args, kwargs: Kwargs, moment: Moment) -> tuple[Args, Kwargs]:
        # The gradient of an input tensor also holds what flows around this module. A view of it, handed to this module
        # alone, receives this module's share; the same tensor given twice stays the same tensor.
        names = {id(leaf.tensor): leaf.path for leaf in call_leaves(args, kwargs) if leaf.tensor is not None}
        views: dict[int, torch.Tensor] = {}

        def view(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.requires_grad or isinstance(tensor, nn.Parameter):
                return tensor
            if id(tensor) not in views:
                views[id(tensor)] = tensor.view_as(tensor)
                self._watch(views[id(tensor)], "grad_input", names[id(tensor)], moment)
            return views[id(tensor)]

        return map_tensors(args, view), map_tensors(kwargs, view)

    def _watch(self, tensor: torch.Tensor, role: str, leaf: str, moment: Moment) -> None:
        self.differentiable += 1
        tensor.register_hook(lambda grad: self._take_gradient(role, leaf, grad, moment))

    def _take_gradient(self, role: str, leaf: str, gradient: torch.Tensor | None, moment: Moment) -> None:
        recorder = self._recorder
        if recorder.live:
            with recorder.inside(self.path):
                self._take(role, iter([Leaf(leaf, gradient, "None")]), moment)

    def _gradient_hook(self, name: str) -> Callable[[torch.Tensor], None]:
        seen = [-1, 0]

        def hook(parameter: torch.Tensor) -> None:
            recorder = self._recorder
            if seen[0] != recorder.step_number:
                seen[:] = [recorder.step_number, 0]
            moment = Moment(seen[1], seen[0], recorder.epoch, recorder.batch, recorder.phase, False)
            seen[1] += 1
            self._take_gradient("param_grad", name, parameter.grad, moment)

        return hook

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters at or below this module, each taken by the lowest watched module that has it."""
        below = [
            name
            for name, _ in self.module.named_modules()
            if name and self._recorder.watches(f"{self.path}.{name}" if self.path else name, "param", "param_grad")
        ]
        for name, parameter in self.module.named_parameters():
            if not any(name.startswith(f"{other}.") for other in below):
                yield name, parameter
