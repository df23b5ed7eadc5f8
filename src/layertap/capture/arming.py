"""When the taps of a recording are on the model: put on at a step that is due, and taken off again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

from torch import nn

from layertap.capture import taps
from layertap.capture.compiled import split_compiled
from layertap.capture.taking import Taking

if TYPE_CHECKING:
    from layertap.capture.module_tap import ModuleTap
    from layertap.capture.recorder import Recorder
    from layertap.capture.schedule import Schedule
    from layertap.store.stated import StatedLayouts


class Arming(Taking):
    """The part of a recorder that puts taps on and takes them off."""

    schedule: Schedule
    epoch: int | None
    batch: int | None
    """Set these as the training loop goes on; each record carries them."""
    _taps: dict[nn.Module, ModuleTap]
    _eager_taps: Mapping[nn.Module, Any]
    _regions: list[Any]

    def __init__(self, rank: int, stated: StatedLayouts | None = None) -> None:
        super().__init__(rank, stated)
        self.step_number = 0
        self._state: Literal["new", "open", "closed"] = "new"
        self._error = ""
        self._ever_due = False
        self._paused = False
        self._attached: dict[nn.Module, Any] = {}
        """The taps that are on their modules."""
        self._above: frozenset[str] = frozenset()
        """The paths of modules with another one inside from which something is taken."""
        self._handles: list[Any] = []
        self._leaf_hooks: list[Any] = []

    def enclose(self, wrapper: nn.Module) -> None:
        """Takes the calls of `wrapper`, which runs the model as one compiled graph, for the model's own."""
        armed = self.attached
        self._disarm()
        self._eager_taps, self._regions = split_compiled(cast("Recorder", self), wrapper, self._taps)
        if self._state == "open":
            self._open_regions()
        if armed:
            self._arm()

    def pause(self) -> None:
        """Takes the taps off until `resume`; the model runs as if nothing recorded it."""
        self._paused = True
        self._disarm()

    def resume(self) -> None:
        """Puts them on again, if the schedule says that this step is due."""
        self._paused = False
        self._arm()

    def hook_leaf(self, handle: Any) -> None:
        """Keeps the handle of a hook on a leaf tensor, which outlives the graph, until the step ends."""
        self._leaf_hooks.append(handle)

    def _unhook_leaves(self) -> None:
        for handle in self._leaf_hooks:
            handle.remove()
        self._leaf_hooks.clear()

    def _arm(self) -> None:
        due = (
            self._state == "open"
            and not self._error
            and not self._paused
            and self.schedule.due(self.step_number, self.epoch, self.batch)
        )
        self._ever_due |= due
        if due and not self.attached:
            if not self._regions:
                self._attach()
            self._handles = [hook for tap in self._taps.values() for hook in tap.watch_parameter_gradients()]
            self.attached = True
        elif not due:
            self._disarm()

    def _open_regions(self) -> None:
        for region in self._regions:
            region.open()
        if self._regions:
            self._attach()  # for good: Dynamo guards the classes, so coming and going would recompile

    def _attach(self) -> None:
        self._attached = {module: tap for module, tap in self._eager_taps.items() if self._is_asked(tap)}
        for module, why in taps.attach(self._attached).items():
            self._taps[module].refused = why

    def _is_asked(self, tap: Any) -> bool:
        """Whether a tap takes tensors, or stands above one that does: its calls say why nothing came from there."""
        return not getattr(tap, "idle", False) or tap.path in self._above

    def _disarm(self) -> None:
        if self.attached:
            self.attached = False
            if not self._regions:
                taps.detach(self._attached)
            for handle in self._handles:
                handle.remove()
            self._handles = []
            self._unhook_leaves()


def paths_above(paths: Iterable[str]) -> frozenset[str]:
    """The paths of the modules in which these are.

    >>> sorted(paths_above(["model.layers.0.mlp", "head"]))
    ['', 'model', 'model.layers', 'model.layers.0']
    """
    found: set[str] = set()
    for path in paths:
        while path and (path := path.rpartition(".")[0]) not in found:
            found.add(path)
    return frozenset(found)
