"""What every search does first: the reference proved and written down, and what rounding does, measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from torch import nn

from layertap.fault.call_stack import CallStack
from layertap.fault.model_runner import ModelRunner
from layertap.fault.outputs import free_error, output_error, results_of, same, size_of
from layertap.fault.pairing import Pairing
from layertap.fault.reduction import STIRRED
from layertap.fault.reference_trace import Event, ReferenceTrace, ReplayResult
from layertap.fault.replay import all_parameter_names, play, write_down
from layertap.fault.replay_measure import ReplayOptions
from layertap.fault.result import Finding
from layertap.fault.rounding import lowered, one_ulp
from layertap.fault.sharded_replay import ARRIVING, RankParts
from layertap.fault.stated_parts import StatedParts
from layertap.fault.tensor_cache import TensorCache
from layertap.fault.world import World
from layertap.judge.signs import least_of
from layertap.result import Note
from layertap.site import Site

Progress = Callable[[str], None]
MOST_FORWARDS = 10
"""No side is run more often than this, at any depth and with any number of faults."""
APART = Note("fault.outputs_apart")


class FaultSearch:
    """Two models, how they are paired, and what is to be said about the search itself."""

    def __init__(
        self,
        ours: ModelRunner,
        theirs: ModelRunner,
        pairing: Pairing,
        cache: TensorCache,
        progress: Progress,
        world: World | None = None,
        stated: StatedParts | None = None,
    ) -> None:
        self.ours, self.theirs, self.pairing, self.cache = ours, theirs, pairing, cache
        self.parts = None if world is None else RankParts(world, stated)
        """Where the values of each rank lie, if the candidate runs on several."""
        self.paired = set(pairing.names)
        """The modules that the candidate has, on any rank."""
        self.progress = progress
        self.names = all_parameter_names(pairing.reference)
        self.low: ModelRunner | None = None
        self.arithmetic: torch.dtype | None = None
        """The dtype that most of the candidate's modules compute in under autocast."""
        self.nudge: Callable[..., torch.Tensor] = one_ulp
        self.doubts: list[str] = []
        self.notes: list[str] = list(pairing.notes)
        self._watching: dict[str, float] = {}
        """How far watching moves a side's output."""
        self.seeded = False
        self.as_free: list[Event] = []
        """What the candidate's free run showed, if the candidate repeats itself."""
        self.more = 0
        """Forward passes of further copies of the reference."""

    @property
    def spent(self) -> int:
        """Forward passes of the reference, in either dtype."""
        low = self.low
        return self.ours.forwards + self.more + (low.forwards if low is not None and low is not self.ours else 0)

    def finding(self) -> Finding:
        """What the search comes to."""
        raise NotImplementedError

    def preflight(self) -> tuple[ReferenceTrace, list[ReplayResult]]:
        """The trace, and clean runs that widen the floor where the reference is not deterministic."""
        self.progress(Note("fault.running_reference"))
        bare = self.ours.run()
        self.seeded = self.ours.draws
        trace = write_down(self.ours, self.pairing.reference, self.cache, self.names, self.seeded)
        if self.parts is not None:
            self.parts.average(trace)
        if blind := trace.close_masks():
            self.notes.append(Note("fault.blind_tokens", blind=blind))
        if self.seeded:
            self.notes.append(Note("fault.random"))
        elif not self._same(bare, trace.output):
            if self._same(bare, self.ours.run()):
                self._watching["reference"] = self._output_error(bare, trace.output)
            else:
                self.notes.append(Note("fault.not_repeatable"))
        else:
            return trace, []
        again = [self.play(self.ours, self.pairing.reference, trace, force=True) for _ in range(2)]
        if self.seeded and any(not event.found.equal for event in again[0].events):
            self.notes.append(Note("fault.not_repeatable_seeded"))
        return trace, again

    def free(self, trace: ReferenceTrace) -> ReplayResult:
        bare = None if self.seeded else self.theirs.run()
        if self.parts is not None:
            self._learn(self.parts, trace)
            self.stir(trace)
        free = self._play(self.theirs, self.pairing.candidate, trace, force=False)
        output, free.output = free.output, None
        if bare is not None and not self._same(bare, output):
            if self.parts is not None:
                self.stir(trace)
                if self._same(self.theirs.run(), output):
                    self.notes.append(Note("fault.left_over"))
                    return free
            again = self.theirs.run()
            if self._same(bare, again):
                self._watching["candidate"] = self._output_error(bare, output)
            else:
                self.notes.append(Note("fault.candidate_not_repeatable"))
        elif bare is not None and self.parts is None and self.theirs.returns_output:
            self.as_free = free.events
        return free

    @property
    def right_before(self) -> frozenset[Site]:
        """Where the candidate's free run has the very values of the reference, up to the first other one.

        All its runs have them there, whatever is put back at them: no floor is needed to see that they are right.
        """
        return frozenset(event.site for event in takewhile(lambda event: event.found.equal, self.as_free))

    def with_put_back(self, trace: ReferenceTrace, ends: frozenset[tuple[str, str]]) -> ReplayResult:
        """A free run of the candidate with the reference's values put back at some places."""
        modules = self.pairing.candidate
        return self.play(self.theirs, modules, trace, force=False, put_back=ends, like=self.as_free)

    def _same(self, one: Any, other: Any) -> bool:
        """Whether two outputs of one side are equal, on every rank."""
        if self.parts is None:
            return same(one, other)
        pairs = zip(self.parts.world.outputs(one), self.parts.world.outputs(other), strict=True)
        return not self.any(not all(same(*pair) for pair in pairs))

    def _output_error(self, one: Any, other: Any) -> float:
        if self.parts is None:
            return output_error(one, other)
        pairs = zip(self.parts.world.outputs(one), self.parts.world.outputs(other), strict=True)
        return max(self.parts.world.of_all(max(output_error(*pair) for pair in pairs)))

    def _learn(self, parts: RankParts, trace: ReferenceTrace) -> None:
        """Which part of the reference's values each rank holds, and which values are summands."""
        self.progress(Note("fault.learning_layouts"))
        parts.world.learn_dims(self.theirs.model, () if parts.stated is None else parts.stated.coordinates())
        parts.learning = True
        self.play(self.theirs, self.pairing.candidate, trace, force=True, ends=frozenset(ARRIVING))
        parts.learning = False
        parts.decide(trace)
        paths = parts.world.of_all(set(self.pairing.names))
        self.paired = set.union(*paths)
        self.notes.append(Note("fault.ranks", count=parts.world.size))
        self.notes += () if parts.stated is None else parts.stated.stated.unused()

    def stir(self, trace: ReferenceTrace, keep: frozenset[Site] = frozenset()) -> ReplayResult:
        """A run on other values: what a rank still has of it in the next run is stale, and must show there."""
        modules = self.pairing.candidate
        return self.play(self.theirs, modules, trace, force=True, nudge=_stirred, judge=False, keep=keep)

    def kept_twice(self, trace: ReferenceTrace, keep: frozenset[Site]) -> tuple[ReplayResult, ReplayResult]:
        """What the candidate holds at some places, and what it held there in the run before, on other values."""
        before = self.stir(trace, keep)
        kept = self.play(self.theirs, self.pairing.candidate, trace, force=True, keep=keep, judge=False)
        return kept, before

    def any(self, flag: bool) -> bool:
        """Whether it is so on any rank; what is run next has to be the same on all."""
        return flag if self.parts is None else self.parts.world.any(flag)

    def doubt_watching(self, rounding: float) -> None:
        """A lazy device fuses otherwise what is looked at; more than rounding must not come of it."""
        for side, drift in self._watching.items():
            beside = Note("fault.drift", drift=drift, rounding=rounding)
            if drift > max(rounding, least_of(self.dtype)):
                self.doubts.append(Note("fault.observer_changes", side=side, beside=beside))
            else:
                self.notes.append(Note("fault.observer_rounds", side=side, beside=beside))

    def play(
        self,
        side: ModelRunner,
        modules: dict[str, nn.Module],
        trace: ReferenceTrace,
        within: Callable[[CallStack], Any] | None = None,
        **how: Any,
    ) -> ReplayResult:
        """`how` are fields of `ReplayOptions`."""
        replayed = self._play(side, modules, trace, within, **how)
        replayed.output = None  # as large as anything in a language model: no two of them are kept
        return replayed

    def _play(
        self,
        side: ModelRunner,
        modules: dict[str, nn.Module],
        trace: ReferenceTrace,
        within: Callable[[CallStack], Any] | None = None,
        **how: Any,
    ) -> ReplayResult:
        whole = side is not self.theirs
        options = ReplayOptions(seeded=self.seeded, parts=self.parts, whole=whole, **how)
        replayed = play(side, modules, trace, self.names, options, within)
        if not options.force and self.parts is None:
            plain = side.returns_output and ("", "output") not in options.put_back
            replayed.apart = (
                free_error(trace, replayed) if plain else output_error(trace.output, replayed.output, trace)
            )
        return replayed

    def follow_autocast(self, trace: ReferenceTrace, free: ReplayResult) -> bool:
        """Sees in which dtype the candidate computes under autocast; whether the reference has to be run so too."""
        casts = Counter(free.casts[path] for path in free.casts if path in trace.casts)
        dtype = casts.most_common(1)[0][0] if casts else None
        if dtype is None:
            return False
        self.arithmetic, self.nudge = dtype, partial(one_ulp, dtype=dtype)
        differ = [path for path, cast in free.casts.items() if cast == dtype and trace.casts.get(path) != dtype]
        if 2 * len(differ) <= len(free.casts):
            return False
        name = str(dtype).removeprefix("torch.")
        self.notes.append(Note("fault.autocast", name=name))
        return True

    def lowered(
        self, autocast: bool = False, weights: Mapping[str, Mapping[str, torch.Tensor]] | None = None
    ) -> tuple[ModelRunner, dict[str, nn.Module]]:
        """The reference in the candidate's dtype and on its device: what honest arithmetic there gives.

        `weights` are other values for its parameters, by path and name: what they are when they are quantised.
        """
        ours, theirs = self.ours, self.theirs
        if theirs.dtype in (ours.dtype, None) and theirs.device == ours.device and not weights:
            self.low = ours.like(ours.model) if autocast else ours
            self.low.autocast = self.arithmetic if autocast else None
            return self.low, self.pairing.reference
        model = lowered(ours.model, self.pairing, theirs, weights=weights)
        if model is None:
            self.notes.append(Note("fault.no_copy"))
            self.low = ours
            return ours, self.pairing.reference
        self.low = ours.like(model)
        self.low.autocast = self.arithmetic if autocast else None
        return self.low, dict(model.named_modules())

    @property
    def dtype(self) -> str:
        own = self.theirs.dtype or torch.float32
        if self.arithmetic is not None and torch.finfo(self.arithmetic).eps > torch.finfo(own).eps:
            own = self.arithmetic
        return str(own).removeprefix("torch.")

    def total(self, trace: ReferenceTrace, replayed: ReplayResult, skip: str | None = None) -> float:
        """The error of the output, and of the parameters' gradients but for those of one module."""
        grads = [
            event.found for event in replayed.events if event.site.role == "param_grad" and event.site.path != skip
        ]
        if self.parts is not None:
            returned = results_of(trace.output)  # without a cache beside it, as with one process
            made = [
                event.found
                for event in replayed.events
                if (event.site.path, event.site.role) == ("", "output")
                and (event.site.leaf in returned or not returned)
            ]
            return max([*map(size_of, grads), *map(size_of, made)], default=math.nan)
        own = replayed.apart if replayed.apart is not None else output_error(trace.output, replayed.output, trace)
        return max([*map(size_of, grads), own])  # NaN last: no number is smaller

    def told(self, key: Site) -> str:
        text = str(replace(key, path=self.pairing.name(key.path)))
        return text if self.pairing.name(key.path) else f"{Note('finding.model')}{text}"


def _stirred(value: torch.Tensor) -> torch.Tensor:
    return value * STIRRED if value.is_floating_point() else value
