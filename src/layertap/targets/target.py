"""The noun: a model that can be run."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from layertap.artefact import artefact_of
from layertap.errors import BadArgument, LayertapError, TargetError
from layertap.messages import tr
from layertap.result import Note
from layertap.select import select
from layertap.select.collapse import collapse
from layertap.site import Site

if TYPE_CHECKING:
    from layertap.targets.reader import Reader

Inputs: TypeAlias = dict[str, Any] | tuple[Any, ...]
"""Keywords, or positional arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model, and what is needed to run it. The contract of every target: `sites`, `run(inputs)`, `describe()`.

    >>> from torch import nn, ones
    >>> target = Target(model=nn.Linear(2, 1), inputs=(ones(3, 2),), name="linear")
    >>> target.run().shape
    torch.Size([3, 1])
    >>> target.sites, str(target.describe())
    ((Site(':output'),), 'linear: eager Linear, 1 of 1 modules can be recorded')
    """

    model: Any
    """An `nn.Module`, in the mode (train or eval) in which it was made; of a compiled file, the tree of its modules."""
    inputs: Inputs | None = None
    """What came with the model."""
    name: str
    """What the user called it: `file.py:factory`, `hf:PATH`."""
    load_tokenizer: Callable[[], Any] | None = None
    """Loads the tokenizer that is beside the model; None where there is none."""

    def run(self, inputs: Any = None) -> Any:
        """The model's output, computed without gradients; the target's own inputs are used when none are given.

        Keywords, a tuple or list of positional arguments, or the one tensor.
        """
        import torch

        given = self.inputs if inputs is None else inputs
        if given is None:
            raise TargetError(tr("targets.no_inputs", name=self.name))
        call = expect_inputs(given)
        try:
            with torch.inference_mode():
                return self.model(**call) if isinstance(call, dict) else self.model(*call)
        except LayertapError:
            raise
        except Exception as error:
            raise TargetError(tr("targets.forward_failed", name=self.name, error=error_text(error))) from error

    @property
    def sites(self) -> tuple[Site, ...]:
        """The modules whose outputs can be recorded, by path."""
        if self._reader is not None:
            return tuple(Site(path=path) for path in self._reader.contents.paths)
        containers = ("ModuleList", "ModuleDict", "ParameterList", "ParameterDict")
        return tuple(Site(path=choice.path) for choice in select(self.model, "**") if choice.kind not in containers)

    def describe(self) -> Description:
        """What it is, what it takes, and what of it can't be seen; print it."""
        if self._reader is not None:
            return described(self.model, self.name)
        return Description(
            name=self.name,
            format="eager",
            kind=type(self.model).__name__,
            modules=len(select(self.model, "**")),
            sites=len(self.sites),
        )

    @property
    def outline(self) -> Any:
        """The tree of the modules in a compiled file, known without running it; None for a model of Python's."""
        return self.model if self._reader is not None else None

    def save(self, path: str | os.PathLike[str], sites: Any = None, *, exclude: Any = None) -> str:
        """Writes the compiled file with taps on these sites; returns in words how it hands them out."""
        if self._reader is None:
            raise TargetError(tr("targets.not_compiled", name=self.name))
        chosen = select(self.model, sites, exclude=exclude).paths
        wanted = frozenset(path for path in chosen if path) - set(self._reader.contents.lost)
        if not wanted:
            raise TargetError(
                tr("targets.none_tappable", name=self.name, chosen=", ".join(chosen[:4])) + self._why(chosen[0])
            )
        return self._reader.save(Path(path), wanted)

    def _why(self, path: str) -> str:
        known = self._reader.contents.lost if self._reader else {}
        return known.get(path, Note("targets.own_output"))

    @property
    def _reader(self) -> Reader | None:
        found: Reader | None = getattr(self.model, "reader", None) if artefact_of(self.model) is not None else None
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A target in words."""

    name: str
    format: str
    """`eager`, or the format of the file."""
    kind: str
    """The model's class."""
    modules: int
    sites: int
    """How many of the modules can be recorded."""
    inputs: tuple[str, ...] = ()
    """What a compiled file takes."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """Path → why nothing can be seen there."""
    remarks: tuple[str, ...] = ()
    listing: Mapping[str, str] = field(default_factory=dict)
    """Path → class, of the modules in a compiled file that can be recorded."""

    def __str__(self) -> str:
        lines: list[str] = [
            Note(
                "targets.summary",
                name=self.name,
                format=self.format,
                kind=self.kind,
                sites=self.sites,
                modules=self.modules,
            )
        ]
        if self.inputs:
            lines.append(Note("targets.inputs", inputs=", ".join(self.inputs)))
        kinds: dict[str, list[str]] = {}
        for path, kind in self.listing.items():
            kinds.setdefault(kind, []).append(path)
        found = {
            pattern: (members, kind) for kind, paths in kinds.items() for pattern, members in collapse(paths).items()
        }
        order = {path: place for place, path in enumerate(self.listing)}
        for pattern, (_, kind) in sorted(found.items(), key=lambda one: order[one[1][0][0]]):
            lines.append(f"  {pattern}  {kind}".rstrip())
        reasons: dict[str, list[str]] = {}
        for path, why in self.lost.items():
            reasons.setdefault(why, []).append(path)
        for why, paths in reasons.items():
            lines.append(Note("targets.not_seen", collapse=", ".join(collapse(paths)), why=why))
        return "\n".join([*lines, *self.remarks])


def described(model: Any, name: str) -> Description:
    """The tree of a compiled file in words."""
    reader = model.reader
    contents = reader.contents
    return Description(
        name=name,
        format=reader.format,
        kind=contents.kind,
        modules=len(select(model, "**")),
        sites=len(contents.paths),
        inputs=tuple(map(str, contents.arguments)),
        lost=dict(contents.lost),
        remarks=tuple(contents.remarks_on()),
        listing={path: contents.modules.get(path, "") for path in contents.paths if path},
    )


def as_inputs(value: Any) -> Inputs | None:
    """A mapping becomes keywords, a tuple or list positional arguments, a tensor the only one; None for other values.

    >>> as_inputs([1, 2]), as_inputs({"x": 1}), as_inputs("text")
    ((1, 2), {'x': 1}, None)
    """
    if isinstance(value, Mapping):
        return {str(name): part for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(value)
    return (value,) if hasattr(value, "shape") and hasattr(value, "dtype") else None


def expect_inputs(value: Any) -> Inputs:
    """`as_inputs`, or an error."""
    inputs = as_inputs(value)
    if inputs is None:
        raise BadArgument(tr("targets.inputs_type", name=type(value).__name__))
    return inputs


def error_text(error: BaseException, inside: Path | None = None) -> str:
    """The error's last line and where it came from; the last place in the file `inside`, if it passed there.

    >>> try:
    ...     int("x")
    ... except ValueError as error:
    ...     error_text(error)
    "ValueError: invalid literal for int() with base 10: 'x' (<doctest layertap.targets.target.error_text[0]>:2)"
    """
    line = traceback.format_exception_only(error)[-1].strip()
    if isinstance(error, SyntaxError) and error.filename:
        return f"{line} ({Path(error.filename).name}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    places = [frame for frame in frames if inside is not None and Path(frame.filename) == inside] or frames
    return f"{line} ({Path(places[-1].filename).name}:{places[-1].lineno})" if places else line
