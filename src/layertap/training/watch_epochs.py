"""Which epoch and batch it is, from nothing but what DataLoaders give and what backward passes use."""

from __future__ import annotations


class Epochs:
    """Counts from 1 how often the loader that is trained from has begun anew, and from 0 its batches.

    >>> epochs = Epochs()
    >>> [epochs.on_batch(1, i, training=True) for i in (0, 1)]
    [(1, 0), (1, 1)]
    >>> epochs.on_update()
    >>> epochs.on_batch(2, 0, training=False)
    (1, 0)
    >>> epochs.on_batch(1, 0, training=True)
    (2, 0)
    """

    def __init__(self) -> None:
        self.told = False
        """Whether the loop says the epoch itself."""
        self.ahead = False
        """Whether batches are fetched before they are used, so that only backward passes tell which one is in use."""
        self._epoch = 0
        """Epochs in which a step was made."""
        self._begun = False
        """Whether a pass over the training data has begun in which none was made yet: a look at it is no epoch."""
        self._train: int | None = None
        self._last: int | None = None
        self._over = False
        self._used = 0

    def on_batch(self, loader: int, index: int, training: bool, ahead: bool = False) -> tuple[int | None, int]:
        """A batch was fetched; returns the epoch (None when it is not ours to say) and the batch in use."""
        self._last, self.ahead = loader, ahead
        if index == 0:
            # A second loader beside the first (zip) begins no epoch; a new one after the first ran dry does.
            if training and self._over and loader != self._train:
                self._train = loader
            self._begun |= loader == self._train or self._train is None
            self._used = 0
        return None if self.told else self._epoch + self._begun, self._used if ahead else index

    def on_update(self) -> None:
        """An optimizer stepped: the batches in use are for training."""
        self._epoch += self._begun
        self._begun = self._over = False
        if self._train is None:
            self._train = self._last

    def on_exhausted(self, loader: int) -> None:
        """A loader ran dry."""
        self._over |= loader == self._train

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
