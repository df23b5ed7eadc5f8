"""When a step of the training ends, from nothing but backward passes and the steps of optimizers."""

from __future__ import annotations


class Steps:
    """Optimizers that step together, after one backward pass, make one step; who they are is learnt on the way.

    >>> steps = Steps()
    >>> steps.on_backward(); steps.after(1)         # alone, as far as is known: the step ends
    True
    >>> steps.ended(); steps.after(2)               # no backward pass since: it belongs to the step that ended
    False
    >>> steps.on_backward(); steps.after(1), steps.after(2)     # from now on both are waited for
    (False, True)
    """

    def __init__(self) -> None:
        self._together: set[int] = set()
        self._stepped: set[int] = set()
        self._leader = 0
        """The one whose step ended the last step."""
        self._fresh = False
        """Whether a backward pass began since then."""

    @property
    def pending(self) -> bool:
        """Whether some have stepped and others are waited for."""
        return bool(self._stepped)

    def on_backward(self) -> None:
        self._fresh = True

    def before(self, optimizer: int) -> bool:
        """An optimizer is about to step; returns whether a step is overdue: this one has stepped in it already."""
        if optimizer in self._stepped:
            self._together = set(self._stepped)
            return True
        return False

    def on_batch(self) -> bool:
        """A batch came; returns whether a step is overdue: some optimizer steps more rarely than the loop turns."""
        if self._stepped:
            self._together = set(self._stepped)
            return True
        return False

    def after(self, optimizer: int) -> bool:
        """An optimizer has stepped; returns whether the step ends with it."""
        # Without a backward pass of its own: of those that were seen. A loop by torch.autograd.grad has none at all.
        if self._leader and not self._fresh and not self._stepped and optimizer != self._leader:
            self._together |= {self._leader, optimizer}
            return False
        self._stepped.add(optimizer)
        if self._stepped >= self._together:
            self._leader = optimizer
            return True
        return False

    def ended(self) -> None:
        """The step has ended."""
        self._stepped, self._fresh = set(), False
