"""The gradients that a module sends to its own inputs, apart from what flows around it.

The gradient of an input tensor also holds what other users of the tensor send back, in a residual connection for
instance. This module's share is what the nodes of its own graph send: those between its outputs and its inputs, made
after it was entered. They are only listened to: the module is handed what it was given, and autograd adds in the order
in which it adds without us, so outputs and gradients stay equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from layertap.capture.leaves import Leaf
from layertap.result import Note

Seen = Callable[[str, torch.Tensor], None]
Edge = tuple[Any, int]

RETURNED = "capture.own_share"


class OwnShare:
    """What one call of a module sends back to its inputs."""

    def __init__(self, given: Iterable[Leaf], seen: Seen) -> None:
        self.handles: list[Any] = []
        """Hooks on leaf tensors, which outlive the graph."""
        self.watched = 0
        """Tensors to which a gradient could come."""
        self._seen = seen
        self._start = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        self._paths: dict[Edge, str] = {}
        self._given: list[torch.Tensor] = []
        self._sums: dict[Edge, torch.Tensor] = {}
        self._unknown: set[Edge] = set()
        for leaf in given:
            tensor = leaf.tensor
            if tensor is None or not tensor.requires_grad or isinstance(tensor, nn.Parameter):
                continue
            edge = _edge(tensor)
            if edge in self._paths:  # the same tensor given twice has one gradient
                continue
            self._paths[edge] = leaf.path
            self._given.append(tensor)
            handle = tensor.register_hook(self._complete(edge))
            if tensor.is_leaf:
                self.handles.append(handle)
            self.watched += 1

    def listen(self, returned: Iterable[torch.Tensor]) -> Iterator[str]:
        """Finds the nodes that send a gradient to the inputs, when the call has ended; yields why one cannot be had."""
        due: list[Any] = []
        met: set[Any] = set()
        for tensor in returned:
            edge = _edge(tensor) if tensor.requires_grad else None
            if edge in self._paths:
                self._unknown.add(edge)
                yield Note(RETURNED)
            elif edge is not None:
                due.append(edge[0])
        # An input that was written into has another edge now.
        due += [edge[0] for edge in map(_edge, self._given) if edge not in self._paths]
        self._given.clear()
        while due:
            node = due.pop()
            if node in met or _number(node) < self._start:
                continue
            met.add(node)
            mine: dict[int, Edge] = {}
            for place, (following, number) in enumerate(node.next_functions):
                if (following, number) in self._paths:
                    mine[place] = (following, number)
                elif following is not None:
                    due.append(following)
            if mine:
                node.register_hook(self._adding(mine))

    def _adding(self, mine: dict[int, Edge]) -> Callable[[Any, Any], None]:
        def hook(given: Any, _: Any) -> None:
            for place, edge in mine.items():
                gradient = given[place]
                if gradient is not None:
                    gradient = gradient.detach()
                    self._sums[edge] = self._sums[edge] + gradient if edge in self._sums else gradient

        return hook

    def _complete(self, edge: Edge) -> Callable[[torch.Tensor], None]:
        def hook(_: torch.Tensor) -> None:
            total = self._sums.pop(edge, None)
            if total is not None and edge not in self._unknown:
                self._seen(self._paths[edge], total)

        return hook


def _edge(tensor: torch.Tensor) -> Edge:
    edge = get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def _number(node: Any) -> int:
    return int(node._sequence_nr())
