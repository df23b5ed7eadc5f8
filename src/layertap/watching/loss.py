"""Whose loss a backward pass began from: of the models whose parameters got a gradient by it."""

from __future__ import annotations

from typing import Any

from torch import nn


class Reached:
    """Reports whether a backward pass reached a model, by what it left in the gradients of its parameters.

    The graph is not searched: under FSDP it ends at other tensors than the model's parameters.

    >>> import torch
    >>> mine, other = nn.Linear(2, 1), nn.Linear(2, 1)
    >>> reached = Reached(mine)
    >>> for model in (other, mine):
    ...     reached.begin()
    ...     model(torch.ones(1, 2)).sum().backward()
    ...     print(reached.end())
    False
    True
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before: list[tuple[Any, ...]] = []
        self._parameters: list[nn.Parameter] = []

    def begin(self) -> None:
        """A backward pass is about to begin."""
        self._parameters = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self._before = [_state(parameter) for parameter in self._parameters]

    def end(self) -> bool:
        """It is over; returns whether it reached the model."""
        states = zip(self._parameters, self._before, strict=True)
        return any(_state(parameter) != before for parameter, before in states)


def _state(parameter: nn.Parameter) -> tuple[Any, ...]:
    # The parameter's own version too: an optimizer that works in backward has stepped and let go of the gradient.
    gradient = parameter.grad
    return (id(gradient), None if gradient is None else gradient._version, parameter._version)
