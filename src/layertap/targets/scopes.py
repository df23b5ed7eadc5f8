"""Modules in a flat graph: which values leave which module, from the scope that each node remembers.

`.pt2`, ONNX and OpenVINO keep one graph in which every node knows the module that it came from. A module's output is
what its nodes compute and others use. What is lost: a module without a node of its own (`nn.Identity`), and the order
in which a module returned several values. Their leaves are called `v0`, `v1`, … in order of computation, and not `0`,
`1`: a router that returned (logits, weights, indices), of which two were used, must not pass for one of a pair.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from layertap.result import Note
from layertap.targets.reader import ArtefactContents

NO_NODE = "scopes.gone"
AMBIGUOUS = "scopes.ambiguous"


@dataclass(slots=True, kw_only=True)
class Node:
    """One operation, in order of execution."""

    scope: tuple[str, ...]
    """The paths of the modules that it is in, outermost first, without the root."""
    inputs: Sequence[str]
    """The values it reads."""
    outputs: Sequence[str]
    """The tensors it makes."""
    calls: Mapping[str, int] | None = None
    """Path → which call of that module, where the file says so."""
    parameters: Sequence[str] = ()
    """The weights it reads."""
    hidden: bool = False
    """Whether its outputs are no data: shapes, indices."""
    fused: str = ""
    """The rewriting rule that made it out of several nodes, maybe of several modules."""
    absorbed: str = ""
    """The one other module whose operation the rule put into it; empty where that is not known."""
    alias_of: str = ""
    """The input that its output is the same tensor as: `x.to(x.dtype)`."""
    made_by: str = ""
    reads: frozenset[str] | None = None
    """The operation of the original program that it is a part of, and those whose results that one reads; None where
    the file does not say."""
    known: bool = True
    """Whether the file says where it is from; an optimiser's own nodes are from nowhere."""


@dataclass(slots=True, kw_only=True)
class ScopedCall:
    """One call of a module: the values that left it."""

    path: str
    number: int
    values: list[str]
    place: int
    """The index of the node after which all of them are there."""

    known: list[str] | None = None
    """The leaves of the values, where the file has kept what the module returned."""

    @property
    def leaves(self) -> list[str]:
        """A name for each of the values."""
        return leaf_names(len(self.values)) if self.known is None else self.known


def leaf_names(count: int) -> list[str]:
    """Names for the values that left a module, where the order in which it returned them is not known.

    >>> leaf_names(1), leaf_names(2)
    ([''], ['v0', 'v1'])
    """
    return [""] if count == 1 else [f"v{place}" for place in range(count)]


class Scopes:
    """Finds the calls of every module in a list of nodes."""

    def __init__(self, nodes: Sequence[Node], inputs: Iterable[str], outputs: Iterable[str]) -> None:
        self._nodes = nodes
        self._inputs = set(inputs)
        self._outputs = set(outputs)
        self._maker = {value: place for place, node in enumerate(nodes) for value in node.outputs}
        self._readers: dict[str, list[int]] = defaultdict(list)
        for place, node in enumerate(nodes):
            # Who asks for a shape does not use the data.
            for value in () if node.hidden else node.inputs:
                self._readers[value].append(place)
        self._fill_unknown_scopes()
        self._reached = self._data()
        self.calls: list[ScopedCall] = []
        """In order of execution, a module after what it contains."""
        self.lost: dict[str, str] = {}
        self.remarks: list[str] = []
        self.constant: set[str] = set()
        """Paths whose values no input reaches."""
        self._inside: dict[str, list[int]] = defaultdict(list)
        for place, node in enumerate(nodes):
            for path in node.scope:
                self._inside[path].append(place)
        for path, places in self._inside.items():
            self._module(path, places)
        self.calls.sort(key=lambda call: (call.place, -call.path.count(".")))

    def fill(self, contents: ArtefactContents) -> None:
        """Writes what was found into the contents; modules that are known and have no node are lost."""
        contents.constant |= self.constant
        contents.lost.update(self.lost)
        contents.remarks += self.remarks
        seen = {call.path for call in self.calls}
        for path in contents.modules:
            if path and path not in seen and path not in contents.lost:
                contents.lost[path] = Note(NO_NODE)
        contents.several += dict.fromkeys(call.path for call in self.calls if "v1" in call.leaves)

    def _module(self, path: str, places: list[int]) -> None:
        segments = self._segments(path, places)
        if segments is None:
            self.lost[path] = Note(AMBIGUOUS)
            return
        for number, segment in enumerate(segments):
            own = set(segment)
            values = self._leaving(segment, own)
            fused = next((rule for value in values if (rule := self._fused_away(path, value, own))), "")
            if fused:
                why = Note("scopes.merged", fused=fused)
                if number:
                    self.remarks.append(f"{path}@{number}: {why}")
                else:
                    self.lost[path] = why
                break  # a later call would be counted as this one
            if values:
                place = max(self._maker[value] for value in values)
                self.calls.append(ScopedCall(path=path, number=number, values=values, place=place))
                if not any(value in self._reached for value in values):
                    self.constant.add(path)

    def _leaving(self, segment: list[int], own: set[int]) -> list[str]:
        """The values that others use, without those that only an optimiser's sharing brought outside."""
        values = [
            value
            for place in segment
            if not self._nodes[place].hidden
            for value in self._nodes[place].outputs
            if value in self._outputs or any(reader not in own for reader in self._readers[value])
        ]
        rules: tuple[Callable[[str], bool], ...] = (
            # A no-op on the module's input is the input itself, which the rest of the model uses by its own right.
            lambda value: self._maker.get(self._origin(value), -1) in own,
            lambda value: value in self._outputs or self._returned(value, own),
            # What no input reaches is the same in every layer, so optimisers compute it in the first and share it.
            lambda value: value in self._reached or value in self._outputs,
        )
        for rule in rules:
            values = [value for value in values if rule(value)] or values
        return values

    def _origin(self, value: str) -> str:
        while value in self._maker and self._nodes[self._maker[value]].alias_of:
            value = self._nodes[self._maker[value]].alias_of
        return value

    def _returned(self, value: str, own: set[int]) -> bool:
        """Whether the original program, too, uses this value outside; parts of one operation may be shared."""
        made_by = self._nodes[self._maker[value]].made_by
        readers = [self._nodes[reader] for reader in self._readers[value] if reader not in own]
        return any(not made_by or node.reads is None or made_by in node.reads for node in readers)

    def _fused_away(self, path: str, value: str, own: set[int]) -> str:
        """The rule of a reader outside that was made of several nodes, one of which may have been the module's last."""
        made_by = self._nodes[self._maker[value]].made_by
        outside = [self._nodes[reader] for reader in self._readers[value] if reader not in own]
        for node in outside:
            # Where the original operation read this very value, nothing of the module's went into it.
            if node.fused and made_by not in (node.reads or ()) and not self._absorbed_elsewhere(node, path):
                return node.fused
        return ""

    def _absorbed_elsewhere(self, node: Node, path: str) -> bool:
        """Whether all that the rule merged is known, and none of it is this module's."""
        owner = node.absorbed
        return bool(owner) and owner not in self._inside and not f"{owner}.".startswith(f"{path}.")

    def _segments(self, path: str, places: list[int]) -> list[list[int]] | None:
        """The nodes of each call; None where the graph cannot tell."""
        known_calls = self._nodes[places[0]].calls
        if known_calls is not None:
            by_call: dict[int, list[int]] = defaultdict(list)
            for place in places:
                by_call[(self._nodes[place].calls or {}).get(path, 0)].append(place)
            # Of a call in between there may be nothing left; the others keep their numbers.
            return [by_call[number] for number in range(max(by_call) + 1)]
        levels = self._levels(places)
        found: list[list[int]] = []
        for level in sorted(set(levels.values())):
            segment = [place for place in places if levels.get(place) == level]
            uses = self._uses(segment)
            often = min(uses.values(), default=1)
            leaf = not any(other.startswith(f"{path}.") for other in self._inside)
            if often < 2:
                found.append(segment)
            elif leaf:
                found += self._cut(segment, often)
            else:
                return None
        return found

    def _levels(self, places: list[int]) -> dict[int, int]:
        """For each node, how often the way to it has left the module and come back: a call of its own each time."""
        own = {place for place in places if not self._nodes[place].hidden}
        above: dict[int, int] = {}
        levels: dict[int, int] = {}
        for place in range(places[0], places[-1] + 1):
            sources = [self._maker[value] for value in self._nodes[place].inputs if value in self._maker]
            inner = max((levels[source] for source in sources if source in levels), default=0)
            outer = max((above[source] for source in sources if source in above), default=-1)
            if place in own:
                levels[place] = max(inner, outer + 1)
            elif not self._nodes[place].hidden:
                reached = [levels[source] for source in sources if source in levels] + [outer]
                if max(reached) >= 0:
                    above[place] = max(reached)
        return levels

    def _uses(self, segment: list[int]) -> dict[str, int]:
        uses: dict[str, int] = defaultdict(int)
        for place in segment:
            for name in self._nodes[place].parameters:
                uses[name] += 1
        return uses

    def _cut(self, segment: list[int], often: int) -> list[list[int]]:
        """Cuts a leaf module's nodes before each further use of its first weight."""
        first = next(name for place in segment for name in self._nodes[place].parameters)
        cuts: list[list[int]] = []
        for place in segment:
            if not cuts or (first in self._nodes[place].parameters and self._uses(cuts[-1]).get(first)):
                cuts.append([])
            cuts[-1].append(place)
        return cuts

    def _fill_unknown_scopes(self) -> None:
        """A node that an optimiser made without a scope belongs where all its readers are."""
        for node in reversed(self._nodes):
            if node.known or not node.outputs:
                continue
            readers = [self._nodes[place].scope for value in node.outputs for place in self._readers[value]]
            if readers and not any(value in self._outputs for value in node.outputs):
                common = [part for parts in zip(*readers, strict=False) if len(set(parts)) == 1 for part in parts[:1]]
                node.scope = tuple(common)

    def _data(self) -> set[str]:
        """The values that the inputs' data reaches, not their shapes alone."""
        reached = set(self._inputs)
        for node in self._nodes:
            if not node.hidden and any(value in reached for value in node.inputs):
                reached.update(node.outputs)
        return reached
