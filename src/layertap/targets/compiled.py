"""A file whose program is loaded when it is first run; until then it is known from its archive alone.

Loading a program can run code: TorchScript's `__setstate__`, a library in a package, guards of a `.pt2`. Whoever asks
what a file holds has not asked for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from layertap.errors import TargetError
from layertap.messages import tr
from layertap.site import Site
from layertap.targets.reader import ArtefactContents, Ran, Reader
from layertap.targets.shadow import Artefact, as_model
from layertap.targets.target import Description, Inputs, Target, described


class Outline(Reader):
    """What is known of a file that is not loaded."""

    def __init__(self, form: str, contents: ArtefactContents) -> None:
        self.format, self.contents = form, contents

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: frozenset[str]) -> Ran:
        raise TargetError(tr("targets.outline_run"))

    def save(self, path: Path, wanted: frozenset[str]) -> str:
        raise TargetError(tr("targets.outline_save"))


class CompiledTarget(Target):
    """Its `model` loads the program; `sites`, `describe()` and `outline` do not."""

    def __init__(
        self, outline: Outline, name: str, load: Callable[[], Reader], inputs: Callable[[], Inputs | None] | None = None
    ) -> None:
        known: dict[str, Any] = {"_outline": as_model(outline), "_load": load, "_inputs": inputs, "_loaded": None}
        for field, value in known.items():
            object.__setattr__(self, field, value)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "load_tokenizer", None)

    _outline: Artefact
    _load: Callable[[], Reader]
    _inputs: Callable[[], Inputs | None] | None
    _loaded: Artefact | None

    @property
    def model(self) -> Artefact:
        """The tree of its modules; asking for it loads the program."""
        if self._loaded is None:
            object.__setattr__(self, "_loaded", as_model(self._load()))
        assert self._loaded is not None
        return self._loaded

    @property
    def inputs(self) -> Inputs | None:
        """The tensors that came with the file."""
        return self._inputs() if self._inputs is not None else None

    @property
    def outline(self) -> Artefact:
        return self._loaded or self._outline

    @property
    def sites(self) -> tuple[Site, ...]:
        return tuple(Site(path=path) for path in self.outline.reader.contents.paths)

    def describe(self) -> Description:
        return described(self.outline, self.name)

    def __repr__(self) -> str:
        return f"CompiledTarget({self.name!r})"

    __eq__ = object.__eq__
    __hash__ = object.__hash__
