"""One module, watched for one recorder: which tensors of a call are taken, and how they are named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from layertap.capture import short_way
from layertap.capture.leaves import Leaf, call_leaves, given_directly, leaves
from layertap.capture.own_share import OwnShare
from layertap.capture.quick import QuickWay
from layertap.capture.sharding import marks
from layertap.capture.site_counts import SiteCounts
from layertap.capture.taps import Args, Kwargs, names_for_calls
from layertap.result import Note
from layertap.site import UNCHANGED

if TYPE_CHECKING:
    from layertap.capture.compiled import Region
    from layertap.capture.recorder import Recorder


class CallMoment(NamedTuple):
    """When a call happened. A tuple, as a call of every module makes one."""

    call: int
    step: int
    epoch: int | None
    batch: int | None
    phase: str
    recomputed: bool


class Call(NamedTuple):
    """One call under way."""

    args: Args
    kwargs: Kwargs
    moment: CallMoment
    share: OwnShare | None = None
    """What it sends back to its inputs, where that is asked for."""


_graph_task: Any = torch._C._current_graph_task_id

ALREADY_RECORDED = "capture.known"
"""Why a tensor of a shared object, a cache for instance, is not recorded again."""

PRESENT = torch.ones((), dtype=torch.int64)
"""The value of the record that says so of an object (`UNCHANGED`)."""

UNWANTED = object()
"""What `Recorder.seen` returns for a call whose output is not to be recorded."""


class ModuleTap(short_way.TapBase):
    """Sees every call of its module; takes what its roles ask for.

    `enter` and `leave` are those of tap.c. What is not simple comes to `begin_call` and `end_call`: arguments and
    gradients that are recorded, backward passes, outputs of more than a tensor.
    """

    total: int
    """Calls seen in all, recomputation included."""
    forwards: int
    """Calls outside of any backward pass."""

    def __init__(self, recorder: Recorder, module: nn.Module, path: str, roles: tuple[str, ...]) -> None:
        super().__init__()
        self.module = module
        self.path = path
        self.kind = type(module).__name__
        self.counts_by_role = {role: SiteCounts() for role in roles}
        """The roles that are recorded, and what has come in each."""
        self.total = self.forwards = 0
        self.differentiable = 0
        """Tensors seen through which a gradient could come."""
        self.region: Region | None = None
        """The compiled part that it is in."""
        self.refused = ""
        """Why its calls cannot be seen."""
        self.ended = ""
        """The exception that has ended a call last."""
        self.recording = self._recorder = recorder
        self.step = -1
        self._recomputed: tuple[int, dict[str, int]] = (-1, {})
        """The step, and the calls that were computed again in it."""
        self._unasked = SiteCounts()
        self._quick = QuickWay(recorder, self)
        # Asked at every call, so looked up once.
        self.counts = self.counts_by_role.get("output")
        self._inputs = not path or "input" in self.counts_by_role
        self._params = "param" in self.counts_by_role
        self._grad_input, self._grad_output = "grad_input" in self.counts_by_role, "grad_output" in self.counts_by_role
        self.early = self._inputs or self._params or self._grad_input
        """Whether anything is done before the module's own work."""
        self.plain = self.counts is not None and not self._grad_output and not self._grad_input
        """Whether nothing is done after it but to take the output."""
        self.idle = not self.counts_by_role and bool(path)
        """Whether it takes nothing, and is there to count calls for the receipt."""

    def begin_call(self, args: Args, kwargs: Kwargs, direct: bool) -> tuple[Args, Kwargs, Call | None]:
        """Sees a call begin: counts it, and takes what it was given."""
        recorder = self._recorder
        if not recorder.live:
            return args, kwargs, None
        with recorder.inside(self.path):
            moment, share = self.begin(direct), None
            if self.early and not moment.recomputed:
                if self._inputs:
                    self._take_input(args, kwargs, moment)
                if self._params:
                    self.take_parameters(moment)
            if self._grad_input and torch.is_grad_enabled():
                share = self._watch_inputs(args, kwargs, moment)
            return args, kwargs, Call(args, kwargs, moment, share)
        return args, kwargs, None

    def end_call(self, token: Call | CallMoment, output: Any) -> Any:
        """Sees a call end, and takes its output."""
        recorder = self._recorder
        if not recorder.live:
            return output
        call = Call((), {}, token) if isinstance(token, CallMoment) else token
        with recorder.inside(self.path):
            moment, counts = call.moment, self.counts
            if counts is not None and not moment.recomputed:
                seen = recorder.seen(self, call, output)
                if seen is not UNWANTED:
                    self._take("output", leaves(seen), moment)
                    if counts.fired == 1:
                        recorder.parts.unknown(self.path, self.module, leaves(seen))
            if call.share is not None or self._grad_output:
                self._watch_outputs(call, output)
            if not self.path and self._inputs and "input" not in self.counts_by_role:
                self._keep_own_state(call, output)
        return output

    def left_out(self, error: Exception) -> None:
        """An error of ours while an output was taken."""
        with self._recorder.inside(self.path):
            assert self.counts is not None
            self._recorder.skipped(self.path, self.counts, error)

    def _watch_outputs(self, token: Call, output: Any) -> None:
        if token.share is not None:
            tensors = (leaf.tensor for leaf in leaves(output) if leaf.tensor is not None)
            for reason in token.share.listen(tensors):
                self.counts_by_role["grad_input"].skip(reason)
        if self._grad_output:
            for leaf in leaves(output):
                if leaf.tensor is not None and leaf.tensor.requires_grad:
                    self._watch(leaf.tensor, "grad_output", leaf.path, token.moment)

    def stopped(self, token: Call | None, error: BaseException) -> None:
        """Sees a call end by an exception."""
        self.ended = type(error).__name__

    def release(self) -> None:
        """Lets go of the module, when recording has ended."""
        del self.module
        self.region = None

    def watch_parameter_gradients(self) -> Iterator[Any]:
        """Hooks that see each gradient as it is accumulated (also under FSDP2, where tensor hooks never fire)."""
        if "param_grad" not in self.counts_by_role:
            return
        for name, parameter in self._parameters():
            if parameter.requires_grad and parameter.is_leaf:
                self.differentiable += 1
                seen = self._gradient_hook(name)
                yield parameter.register_post_accumulate_grad_hook(seen)

    def begin(self, direct: bool) -> CallMoment:
        """Counts a call."""
        recorder = self._recorder
        step = recorder.step_number
        if self.step != step:
            self.step, self.eval_calls, self.train_calls = step, 0, 0
        self.total += 1
        # A forward inside a backward pass is activation checkpointing at work: the same values once more. Where the
        # first forward ran without autograd (reentrant checkpointing), the gradients pass here, last call first.
        # A module that has run in no forward pass cannot be computed again: the backward pass itself calls it.
        backward = _graph_task() != -1
        recomputed = backward and self.forwards > 0
        phase = recorder.phase  # a validation pass between two steps must not number the calls of the next
        name = "train_calls" if phase == "train" else "eval_calls"
        call = getattr(self, name)
        if recomputed:
            if self._recomputed[0] != step:
                self._recomputed = step, {}
            again = self._recomputed[1][phase] = self._recomputed[1].get(phase, 0) + 1
            call = max(call - again, 0)
        else:
            setattr(self, name, call + 1)
            if not backward:
                self.forwards += 1
        if recomputed or direct:
            for counts in self.counts_by_role.values():
                counts.recomputed += recomputed
                counts.direct += direct
        return CallMoment(call, step, recorder.epoch, recorder.batch, phase, recomputed)

    def _take_input(self, args: Args, kwargs: Kwargs, moment: CallMoment) -> None:
        asked = "input" in self.counts_by_role
        if not asked and self.path:
            return
        counts = self.counts_of("input", asked)
        counts.fired += 1
        if not asked and not self._recorder.keep_inputs:
            args, kwargs = self._without_own_state(args, kwargs, moment)
        own = given_directly(args, kwargs)
        for leaf in call_leaves(args, kwargs):
            if leaf.tensor is None or id(leaf.tensor) in own:
                self.put("input", leaf, moment, counts)
                continue
            # A cache is handed to every layer, with all layers in it: each of its tensors is taken once, and again
            # when it has been written into.
            level = self._recorder.keeper.level(self.path, "input", leaf.path).name if asked else ""
            if self._recorder.contents.known(leaf.tensor, level):
                counts.skip(Note(ALREADY_RECORDED))
                continue
            before = counts.tensors
            self.put("input", leaf, moment, counts)
            if counts.tensors > before:
                self._recorder.contents.add(leaf.tensor, level)

    def _without_own_state(self, args: Args, kwargs: Kwargs, moment: CallMoment) -> tuple[Args, Kwargs]:
        """The arguments without objects that are as the model's own last call left them, of which that is recorded."""
        own = self._recorder.own_state

        def rest(name: str, value: Any) -> Any:
            if not own.unchanged(value):
                return value
            self.put("input", Leaf(f"{name}.{UNCHANGED}", PRESENT), moment, self._unasked)
            return None

        return (
            tuple(rest(str(index), value) for index, value in enumerate(args)),
            {name: rest(name, value) for name, value in kwargs.items()},
        )

    def _keep_own_state(self, call: Call, output: Any) -> None:
        """Takes down what the call has left in the objects that it was given, or that it made."""
        made = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple) else ()
        given = {id(value): value for value in (*call.args, *call.kwargs.values(), *made)}
        self._recorder.own_state.left(given.values())

    def take_parameters(self, moment: CallMoment) -> None:
        """Takes the parameters, if they are asked for, once a step."""
        if "param" in self.counts_by_role and moment.call == 0:
            self._take("param", (Leaf(name, parameter) for name, parameter in self._parameters()), moment)

    def _take(self, role: str, found: Iterator[Leaf], moment: CallMoment) -> None:
        counts = self.counts_by_role[role]
        counts.fired += 1
        for leaf in found:
            self.put(role, leaf, moment, counts)

    def counts_of(self, role: str, asked: bool) -> SiteCounts:
        """Where a tensor is counted; the model's own inputs that were not requested are not in the receipt."""
        return self.counts_by_role[role] if asked else self._unasked

    def put(self, role: str, leaf: Leaf, moment: CallMoment, counts: SiteCounts) -> None:
        """Takes one leaf of a call, if it is wanted."""
        asked = counts is not self._unasked
        if leaf.tensor is not None and self._quick.take(role, leaf.path, leaf.tensor, moment, counts, asked):
            return
        if leaf.tensor is None or not asked or self._recorder.selection.wants(self.path, role, leaf.path):
            self._recorder.take(self, role, leaf, moment, asked=asked)

    def _watch_inputs(self, args: Args, kwargs: Kwargs, moment: CallMoment) -> OwnShare:
        share = OwnShare(
            call_leaves(args, kwargs), lambda leaf, grad: self._take_gradient("grad_input", leaf, grad, moment)
        )
        self.differentiable += share.watched
        for handle in share.handles:
            self._recorder.hook_leaf(handle)
        return share

    def _watch(self, tensor: torch.Tensor, role: str, leaf: str, moment: CallMoment) -> None:
        self.differentiable += 1
        handle = tensor.register_hook(lambda grad: self._take_gradient(role, leaf, grad, moment))
        if tensor.is_leaf:
            self._recorder.hook_leaf(handle)

    def _take_gradient(self, role: str, leaf: str, gradient: torch.Tensor | None, moment: CallMoment) -> None:
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
            moment = CallMoment(seen[1], seen[0], recorder.epoch, recorder.batch, recorder.phase, False)
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


short_way.connect(moment_type=CallMoment, tap_class=ModuleTap, marks=marks, **names_for_calls())
