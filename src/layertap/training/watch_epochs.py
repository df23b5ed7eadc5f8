"""Which epoch it is, from nothing but the batches that DataLoaders give."""

from __future__ import annotations


class Epochs:
    """Counts from 1 how often the loader that is trained from has begun anew.

    >>> epochs = Epochs()
    >>> [epochs.on_batch(1, i, training=True) for i in (0, 1)], epochs.on_batch(2, 0, training=False)
    ([1, 1], 1)
    >>> epochs.on_batch(1, 0, training=True)
    2
    """

    def __init__(self) -> None:
        self.told = False
        """Whether the loop says the epoch itself."""
        self._epoch: int | None = None
        self._train: int | None = None
        self._over = False

    def on_batch(self, loader: int, index: int, training: bool) -> int | None:
        """A batch came; returns the epoch, or None when it is not known or not ours to say."""
        if self.told:
            return None
        # A second loader beside the first (zip) begins no epoch; a new one after the first ran dry does.
        another = training and (self._train is None or self._over)
        if index == 0 and (loader == self._train or (another and loader != self._train)):
            self._epoch = (self._epoch or 0) + 1
            self._train, self._over = loader, False
        return self._epoch

    def on_exhausted(self, loader: int) -> None:
        self._over |= loader == self._train
