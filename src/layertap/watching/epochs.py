"""Which epoch and batch it is, from nothing but what DataLoaders give and what backward passes use."""

from __future__ import annotations


class Epochs:
    """Counts from 1 how often the loader that is trained from has begun anew, and from 0 its batches.

    >>> epochs = Epochs()
    >>> [epochs.on_batch(1, 10, i, training=True) for i in (0, 1)]
    [(1, 0), (1, 1)]
    >>> epochs.on_update()
    >>> epochs.on_batch(2, 20, 0, training=False)
    (1, 0)
    >>> epochs.on_batch(1, 10, 0, training=True)
    (2, 0)
    """

    def __init__(self) -> None:
        self.given = False
        """Whether the loop says the epoch itself."""
        self.ahead = False
        """Whether batches are fetched before they are used, so that only backward passes tell which one is in use."""
        self._epoch = 0
        """Epochs in which a step was made."""
        self._begun = False
        """Whether a pass over the training data has begun in which none was made yet: a look at it is no epoch."""
        self._train: tuple[int, int] | None = None
        """The loader that is trained from, and its data."""
        self._last: tuple[int, int] | None = None
        self._maybe: tuple[int, int] | None = None
        """A new loader after the one that was trained from ran dry: for the next epoch, or for a look at other data."""
        self._looked: set[int] = set()
        """Data that a loader ran through without a step."""
        self._over = False
        self._used = 0

    def on_batch(
        self, loader: int, data: int, index: int, training: bool, ahead: bool = False
    ) -> tuple[int | None, int]:
        """A batch was fetched; returns the epoch (None when it is not ours to say) and the batch in use.

        `training`: whether the model is set for it, and gradients are on.
        """
        self._last, self.ahead = (loader, data), ahead
        if index == 0:
            # A second loader beside the first (zip) begins no epoch; a new one after the first ran dry does, unless it
            # turns out to be for validation by a model that was left in training mode.
            if training and self._over and self._train is not None and loader != self._train[0]:
                same = data == self._train[1]
                if same:
                    self._train = self._last
                elif data not in self._looked:
                    self._maybe = self._last
            mine = self._last in (self._train, self._maybe)
            self._begun |= mine or self._train is None
            self._used = 0
        return None if self.given else self._epoch + self._begun, self._used if ahead else index

    def on_update(self) -> None:
        """An optimizer stepped: the batches in use are for training."""
        self._epoch += self._begun
        self._begun = self._over = False
        if self._train is None or self._last == self._maybe:
            self._train = self._last
        self._maybe = None

    def on_exhausted(self, loader: int) -> None:
        """A loader ran dry."""
        self._over |= self._train is not None and loader == self._train[0]
        if self._maybe is not None and loader == self._maybe[0]:  # and no step was made: a look at other data
            self._looked.add(self._maybe[1])
            self._maybe, self._begun = None, False

    def on_used(self) -> int | None:
        """A backward pass is over; returns the batch that comes next, where fetching does not tell."""
        self._used += 1
        return self._used if self.ahead else None

    def spent(self, batch: int | None) -> int | None:
        """The batch of the last backward pass; where it is counted by use, `batch` is the one after it already."""
        return self._used - 1 if self.ahead and self._used else batch

    def coming(self, batch: int | None) -> int | None:
        """The way back."""
        return self._used if self.ahead else batch
