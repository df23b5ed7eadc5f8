"""What ranks agree on before they exchange anything: that none of them has raised an error.

A rank that raises never comes to the next exchange, and its peers would wait there until the time limit of the process
group. So each rank notes in the job's store that it has come, and looks there for an error of a peer while it waits. A
rank that raises while the model runs, in the middle of a collective of the model's own, cannot be helped in this way.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from layertap.errors import RankFailed
from layertap.messages import tr

PAUSE = 0.002
"""Seconds between two looks."""
LONGEST = 60.0
"""Seconds after which a rank goes into the exchange all the same: of a peer that died the process group knows more."""
LENGTH = 500
"""How many characters of an error are sent to the other ranks."""
_made = [0]


class RankAgreement:
    """The ranks of one search. Every rank makes as many of them, in the same order."""

    def __init__(self, size: int, rank: int, store: Any = None) -> None:
        _made[0] += 1
        self._size, self._rank = size, rank
        self._store = default_store() if store is None else store
        self._come, self._error = f"layertap/{_made[0]}/come", f"layertap/{_made[0]}/error"
        self._exchanges = 0

    def arrive(self) -> None:
        """Waits for all ranks; a RankFailed if one of them has raised an error."""
        self._exchanges += 1
        wanted = self._exchanges * self._size
        self._store.add(self._come, 1)
        until = time.monotonic() + LONGEST
        while self._store.add(self._come, 0) < wanted and time.monotonic() < until:
            self.look()
            time.sleep(PAUSE)

    def look(self) -> None:
        """Raises a RankFailed if a peer has raised an error."""
        if self._store.check([self._error]):
            rank, _, text = self._store.get(self._error).decode(errors="replace").partition(" ")
            if int(rank) != self._rank:
                raise RankFailed(tr("fault.rank_failed", rank=rank, text=text))

    @contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """Around all that may raise: an error is sent to the other ranks; one that a peer caused names the peer."""
        try:
            yield
        except RankFailed:
            raise
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"[:LENGTH]
            with suppress(RuntimeError):  # the store may be gone with the process that it was in
                self.look()  # in a collective that a peer has left, its error is the one that counts
                self._store.set(self._error, f"{self._rank} {text}")
            raise


def default_store() -> Any:
    """The store by which the ranks of the job have met."""
    return torch.distributed.distributed_c10d._get_default_store()
