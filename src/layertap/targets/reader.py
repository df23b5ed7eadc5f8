"""What a file format must offer so that its modules can be recorded: one reader for each format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from layertap.messages import tr
from layertap.result import Note

if TYPE_CHECKING:
    import torch

Values: TypeAlias = dict[str, "torch.Tensor"]
"""Leaf → tensor: `{"": tensor}` for a module that gives one, `{"0": …, "1": …}` for one that gives several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One run of an artefact."""

    output: Any
    """What the artefact returns by itself, in its own structure."""
    calls: list[tuple[str, Values]]
    """What the wanted modules gave, in order of execution; a module called twice is there twice."""
    notes: list[str] = field(default_factory=list)
    """What is to be said of this run, for the receipt."""
    lost: dict[str, str] = field(default_factory=dict)
    """Path → why this run gave nothing there."""
    computes: frozenset[str] = frozenset()
    """Dtypes coarser than its tensors' in which the runtime computes, if it says so: `bfloat16`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One input of an artefact."""

    name: str
    dtype: str = ""
    shape: tuple[int | str, ...] | None = None
    """None where the format doesn't say."""

    def __str__(self) -> str:
        size = "" if self.shape is None else f"[{', '.join(map(str, self.shape))}]"
        return f"{self.name}: {self.dtype}{size}" if self.dtype or size else self.name


@dataclass(kw_only=True)
class ArtefactContents:
    """What a file turned out to hold."""

    kind: str
    """The class of the model that was compiled, as far as the format kept it."""
    modules: dict[str, str] = field(default_factory=dict)
    """Path → class, of every module that the format still knows; the root is the empty path."""
    lost: dict[str, str] = field(default_factory=dict)
    """Path → why nothing can be seen there."""
    absent: str = ""
    """Why a path that only leads to others can't be seen; empty: it is a container, which is never called."""
    constant: set[str] = field(default_factory=set)
    """Paths whose output no input reaches: the compiler folded it, or it follows from shapes alone."""
    arguments: tuple[Argument, ...] = ()
    parameters: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """On the meta device where the format's own library holds the data."""
    several: list[str] = field(default_factory=list)
    """Paths that gave several values, of which the file does not keep the order in which they were returned."""
    remarks: list[str] = field(default_factory=list)
    """What a reader of a recording must know about the format, for the receipt."""

    @property
    def paths(self) -> list[str]:
        """The modules that can be recorded, the root first."""
        return ["", *(path for path in self.modules if path and path not in self.lost)]

    def remarks_on(self, wanted: Set[str] | None = None) -> list[str]:
        """The remarks, those on single modules only for the wanted ones."""
        several = [path for path in self.several if wanted is None or path in wanted]
        if not several:
            return list(self.remarks)
        named = ", ".join(several[:3]) + (", …" if len(several) > 3 else "")
        why = Note("reader.several", named=named)
        return [*self.remarks, why]


class Reader(ABC):
    """An opened file that can be run, with or without taps."""

    format: str
    """What people call it: `TorchScript`."""
    contents: ArtefactContents
    can_do_without = True
    """Whether it can also be run without any tap; else its drift is not known."""
    probes_itself = False
    """Whether it tries a second input by itself, since a run leaves something behind."""

    @abstractmethod
    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: frozenset[str]) -> Ran:
        """Runs it with taps on the wanted modules; without any, it is the artefact as it is in the file."""

    @abstractmethod
    def save(self, path: Path, wanted: frozenset[str]) -> str:
        """Writes the artefact with these taps; returns in words how it hands them out."""

    def cross_check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: frozenset[str]) -> list[str]:
        """A second opinion of the format's own, in words for the receipt; most formats have none."""
        return []


def bind(arguments: tuple[Argument, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name.

    >>> bind((Argument(name="ids"), Argument(name="mask")), (1,), {"mask": 2})
    {'ids': 1, 'mask': 2}
    """
    names = [argument.name for argument in arguments]
    if len(args) > len(names):
        raise TypeError(tr("reader.count", count=len(names), names=", ".join(names), count2=len(args)))
    given = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names:
            raise TypeError(tr("reader.no_input", name=name, map=", ".join(map(str, arguments))))
        if name in given:
            raise TypeError(tr("reader.twice", name=name))
        given[name] = value
    return {name: given[name] for name in names if name in given}
