"""A bound on the disk: a training of days thins its older steps rather than fill it."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from layertap.messages import tr
from layertap.store import RunWriter
from layertap.store.thinning import drop_steps, shards_of, size_of_shard, steps_of_shard

AFTER = 0.75
"""Share of the budget down to which steps go when it is reached."""
LEAST = 3
"""Steps that are left in any case."""

log = logging.getLogger("layertap")


class DiskBudget:
    """Looks at a run after each commit, in the writer's thread; of the older half of its steps every second one goes.

    So the steps of long ago lie ever farther apart. What a trigger brought to disk, and the first step, stay.
    """

    def __init__(self, budget: int, rank: int, protected: Callable[[int], bool]) -> None:
        self.thinned = 0
        """Records that were taken out."""
        self.of_earlier = 0
        """Those of them that earlier sessions had written."""
        self.through = -1
        """The last step that was reached by it."""
        self._budget, self._rank, self._protected = budget, rank, protected
        self._steps: dict[str, frozenset[int]] = {}
        self._limit: int | None = None

    def look(self, writer: RunWriter) -> None:
        """Thins a run that is over its budget."""
        folder = writer.path
        if self._limit is None:
            self._limit = min(self._budget, int(0.9 * shutil.disk_usage(folder).free) + self._size(folder))
        if self._size(folder) <= self._limit:
            return
        before = self.thinned
        while self._size(folder) > AFTER * self._limit and self._thin(folder, writer):
            pass
        if self.thinned > before:
            log.warning("layertap: %s", tr("watch.disk_budget", step=self.through))

    @property
    def notes(self) -> list[str]:
        """What the receipt reports of it."""
        if not self.thinned:
            return []
        note = tr("watch.thinned", thinned=self.thinned, through=self.through)
        return [note]

    def _thin(self, folder: Path, writer: RunWriter) -> bool:
        by_shard = {stem: self._steps_of(folder, stem) for stem in shards_of(folder, self._rank)}
        found = sorted(set[int]().union(*by_shard.values()))
        if len(found) <= LEAST:
            return False
        old = [step for step in found[1 : len(found) // 2 + 1] if not self._protected(step)]
        dropped = frozenset(old[::2])
        for stem, steps in by_shard.items():
            if steps & dropped:
                removed = drop_steps(folder, stem, dropped)
                self.thinned += removed
                self.of_earlier += 0 if writer.taken_out(stem, removed) else removed
                self._steps[stem] = steps - dropped
        self.through = max([self.through, *dropped])
        return bool(dropped)

    def _steps_of(self, folder: Path, stem: str) -> frozenset[int]:
        if stem not in self._steps:
            self._steps[stem] = steps_of_shard(folder, stem)
        return self._steps[stem]

    def _size(self, folder: Path) -> int:
        return sum(size_of_shard(folder, stem) for stem in shards_of(folder, self._rank))
