"""What every search does first: the reference proved and written down, and what rounding does, measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from layertap.fault.model_runner import ModelRunner
from layertap.fault.outputs import output_error, same, size_of
from layertap.fault.pairing import Pairing
from layertap.fault.reference_trace import ReferenceTrace, ReplayResult
from layertap.fault.replay import parameter_names, play, write_down
from layertap.fault.result import Finding
from layertap.fault.rounding import lowered, one_ulp
from layertap.fault.tensor_cache import TensorCache
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
        self, ours: ModelRunner, theirs: ModelRunner, pairing: Pairing, cache: TensorCache, progress: Progress
    ) -> None:
        self.ours, self.theirs, self.pairing, self.cache = ours, theirs, pairing, cache
        self.progress = progress
        self.names = {page: parameter_names(module) for page, module in pairing.reference.items()}
        self.low: ModelRunner | None = None
        self.arithmetic: torch.dtype | None = None
        """The dtype that most of the candidate's modules compute in under autocast."""
        self.nudge: Callable[..., torch.Tensor] = one_ulp
        self.doubts: list[str] = []
        self.notes: list[str] = list(pairing.notes)
        self._watching: dict[str, float] = {}
        """How far watching moves a side's output."""
        self.seeded = False
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
        trace = write_down(self.ours, self.pairing.reference, self.cache, self.seeded)
        if blind := trace.close_masks():
            self.notes.append(Note("fault.blind_tokens", blind=blind))
        if self.seeded:
            self.notes.append(Note("fault.random"))
        elif not same(bare, trace.output):
            if same(bare, self.ours.run()):
                self._watching["reference"] = output_error(bare, trace.output)
            else:
                self.notes.append(Note("fault.not_repeatable"))
        else:
            return trace, []
        again = [self.play(self.ours, self.pairing.reference, trace, force=True) for _ in range(2)]
        if self.seeded and any(not event.found.exact for event in again[0].events):
            self.notes.append(Note("fault.not_repeatable_seeded"))
        return trace, again

    def free(self, trace: ReferenceTrace) -> ReplayResult:
        bare = None if self.seeded else self.theirs.run()
        free = self.play(self.theirs, self.pairing.candidate, trace, force=False)
        if bare is not None and not same(bare, free.output):
            again = self.theirs.run()
            if same(bare, again):
                self._watching["candidate"] = output_error(bare, free.output)
            else:
                self.notes.append(Note("fault.candidate_not_repeatable"))
        return free

    def doubt_watching(self, rounding: float) -> None:
        """A lazy device fuses otherwise what is looked at; more than rounding must not come of it."""
        for side, drift in self._watching.items():
            beside = Note("fault.drift", drift=drift, rounding=rounding)
            if drift > max(rounding, least_of(self.dtype)):
                self.doubts.append(Note("fault.observer_changes", side=side, beside=beside))
            else:
                self.notes.append(Note("fault.observer_rounds", side=side, beside=beside))

    def play(self, side: ModelRunner, modules: dict[str, nn.Module], trace: ReferenceTrace, **how: Any) -> ReplayResult:
        return play(side, modules, trace, self.names, seeded=self.seeded, **how)

    def follow_autocast(self, trace: ReferenceTrace, free: ReplayResult) -> bool:
        """Sees in which dtype the candidate computes under autocast; whether the reference has to be run so too."""
        casts = Counter(free.casts[page] for page in free.casts if page in trace.casts)
        dtype = casts.most_common(1)[0][0] if casts else None
        if dtype is None:
            return False
        self.arithmetic, self.nudge = dtype, partial(one_ulp, dtype=dtype)
        differ = [page for page, cast in free.casts.items() if cast == dtype and trace.casts.get(page) != dtype]
        if 2 * len(differ) <= len(free.casts):
            return False
        name = str(dtype).removeprefix("torch.")
        self.notes.append(Note("fault.autocast", name=name))
        return True

    def lowered(
        self, autocast: bool = False, weights: Mapping[str, Mapping[str, torch.Tensor]] | None = None
    ) -> tuple[ModelRunner, dict[str, nn.Module]]:
        """The reference in the candidate's dtype and on its device: what honest arithmetic there gives.

        `weights` are other values for its parameters, by page and name: what they are when they are quantised.
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
        own = output_error(trace.output, replayed.output, trace)
        return max([*map(size_of, grads), own])  # NaN last: no number is smaller

    def told(self, key: Site) -> str:
        text = str(replace(key, path=self.pairing.name(key.path)))
        return text if self.pairing.name(key.path) else f"{Note('finding.model')}{text}"
