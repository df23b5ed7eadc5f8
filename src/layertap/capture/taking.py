"""What a recorder does with one tensor of one call: its names, its number, what is kept of it, and where it goes."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import torch

from layertap.capture import short_way
from layertap.capture.keep import STATS, TENSOR, Keeper, Level
from layertap.capture.leaves import Leaf, parts, plain_value, reason_text
from layertap.capture.module_tap import Call, CallMoment, ModuleTap
from layertap.capture.pending_record import PendingRecord, dtype_name
from layertap.capture.sharding import Parts, marked
from layertap.capture.site_counts import SiteCounts, Source
from layertap.errors import BadArgument
from layertap.measure import supported
from layertap.messages import tr
from layertap.result import Note
from layertap.site import Sharding, Site
from layertap.store.plans import RecordPlan

if TYPE_CHECKING:
    from layertap.capture.sink import Sink
    from layertap.store.stated import StatedLayouts

log = logging.getLogger("layertap")

REASON = 120
"""Characters of an error's message that the receipt keeps."""

SMALL = 1 << 20
"""A model's own integer inputs up to this many bytes are kept whole: ids and masks distinguish two runs."""


class Taking(short_way.RecordingBase):
    """The half of a recorder that taps use."""

    sink: Sink
    keeper: Keeper
    last_step: int
    """The newest step of which something was recorded."""

    def __init__(self, rank: int, stated: StatedLayouts | None = None) -> None:
        super().__init__()
        self.rank = rank
        """This process among those that run the model together."""
        self.stated = stated
        """What the mapping says of plain tensors that are parts."""
        self.keep_inputs = False
        """Whether the model's own inputs are kept whole, and not the small whole-number ones alone."""
        self.small_inputs = SMALL
        """Up to how many bytes the model's own whole-number inputs are kept."""
        self.parts = Parts()
        """The sites of which a rank holds only a part."""
        self.last_step = -1
        self._steps = 0
        self._numbers: dict[tuple[str, str, str], short_way.CallNumbers] = {}
        """(path, role, leaf) → the numbers of calls that are taken."""
        self._raised = False
        self._watched: set[tuple[str, str]] = set()

    def watches(self, path: str, *roles: str) -> bool:
        return any((path, role) in self._watched for role in roles)

    def seen(self, tap: ModuleTap, call: Call, output: Any) -> Any:
        """What is recorded of a call's output: as it is here; a recorder of another kind may add to it or refuse it."""
        return output

    def put(self, tap: ModuleTap | Source, plan: RecordPlan, tensor: torch.Tensor, moment: CallMoment) -> None:
        """Takes one tensor of one call."""
        record = self.pending_record(tap, plan, moment)
        self.raise_failure()
        self.sink.put(record, tensor, self.level(plan, tensor))
        self.parts.add(plan)
        if not plan.asked:
            self.on_model_input(tap, tensor, moment)

    def level(self, plan: RecordPlan, tensor: torch.Tensor) -> Level:
        """What is kept of a tensor."""
        if plan.asked:
            return self.keeper.level(plan.path, plan.role, plan.leaf)
        exact = not (tensor.is_floating_point() or tensor.is_complex())
        small = exact and tensor.numel() * tensor.element_size() <= self.small_inputs
        return TENSOR if self.keep_inputs or small else STATS

    def on_model_input(self, tap: ModuleTap | Source, tensor: torch.Tensor, moment: CallMoment) -> None:
        """Sees a tensor that the model was given and that was not requested; a recorder of another kind may use it."""

    def record_plan(
        self,
        tap: ModuleTap | Source,
        role: str,
        leaf: str,
        tensor: Any,
        sharding: Sharding | None = None,
        *,
        asked: bool = True,
    ) -> RecordPlan:
        """What the records of such tensors (or of what has the shape, dtype and device of one) have in common."""
        shape = tuple(tensor.shape)
        return RecordPlan(
            path=tap.path,
            role=role,
            leaf=leaf,
            kind=tap.kind,
            rank=self.rank,
            shape=shape,
            dtype=dtype_name(tensor.dtype),
            device=str(tensor.device),
            sharding=sharding,
            asked=asked,
            count=math.prod(shape) * (2 if tensor.dtype.is_complex else 1),
        )

    def pending_record(self, tap: ModuleTap | Source, plan: RecordPlan, moment: CallMoment) -> PendingRecord:
        """A record of a call; it takes the next place in the order, and a number of a call that is free."""
        if moment.step > self.last_step:
            self.begin_step(moment.step)
        number = self.numbers(plan.path, plan.role, plan.leaf).take(moment.step, moment.phase, moment.call)
        numbered = moment if number == moment.call else moment._replace(call=number)
        return PendingRecord(plan, self.next_order(), numbered, tap.counts_of(plan.role, plan.asked))

    def numbers(self, path: str, role: str, leaf: str) -> short_way.CallNumbers:
        """The numbers of calls that are taken of one site."""
        key = (path, role, leaf)
        return self._numbers.get(key) or self._numbers.setdefault(key, short_way.CallNumbers())

    def begin_step(self, step: int) -> None:
        """Counts a step from which something is recorded."""
        self._steps, self.last_step = self._steps + 1, step

    def new_order(self) -> None:
        """Begins to count anew, as a step begins."""
        self.order = 0

    def raise_failure(self) -> None:
        """Raises what the writer's thread has met, if the recording is strict."""
        if self.strict and self.sink.failure is not None and not self._raised:
            self._raised = True
            raise self.sink.failure

    def take(self, tap: ModuleTap | Source, role: str, leaf: Leaf, moment: CallMoment, *, asked: bool = True) -> None:
        """Takes one leaf of a call in its parts; one that cannot be taken is counted, and recording goes on."""
        counts = tap.counts_of(role, asked)
        if leaf.tensor is None:
            counts.skip(reason_text(leaf.reason))
            return
        try:
            with plain_value(leaf.tensor) as tensor:
                known = marked(leaf.tensor)
                for below, part, sharding in parts(tensor.detach()):
                    reason = supported(part)
                    if reason:
                        counts.skip(reason)
                        continue
                    name = f"{leaf.path}.{below}" if leaf.path and below else leaf.path or below
                    sharding = sharding or known or self.sharding(tap.path, role, name, tuple(part.shape))
                    plan = self.record_plan(tap, role, name, part, sharding, asked=asked)
                    self.put(tap, plan, part.resolve_conj().resolve_neg(), moment)
        except Exception as error:  # noqa: BLE001
            self.skipped(tap.path, counts, error)

    def sharding(self, path: str, role: str, leaf: str, shape: tuple[int, ...]) -> Sharding | None:
        """What the mapping says of a plain tensor; where it does not fit, the receipt tells and nothing is said."""
        if self.stated is None:
            return None
        try:
            return self.stated.sharding(Site(path=path, role=role, leaf=leaf), shape, self.rank)
        except BadArgument as error:
            if self.strict:
                raise
            self.warn_once(str(error))
            return None

    def warn_once(self, note: str) -> None:
        """Says something once, in the log and in the receipt."""
        raise NotImplementedError

    def skipped(self, path: str, counts: SiteCounts, error: Exception) -> None:
        """Counts a tensor that could not be taken; with `strict` the error is raised."""
        if self.strict or error is self.sink.failure:
            raise error
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:REASON]}"
        if reason not in counts.skipped:
            log.warning(tr("record.log_tensor"), path or Note("capture.the_model"), reason)
        counts.skip(reason)
