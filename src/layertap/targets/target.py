"""The noun: a model that can be run."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from layertap.errors import LayertapError, TargetError

Inputs: TypeAlias = dict[str, Any] | tuple[Any, ...]
"""Keywords, or positional arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model, and what is needed to run it.

    >>> from torch import nn, ones
    >>> Target(model=nn.Linear(2, 1), inputs=(ones(3, 2),), name="linear").run().shape
    torch.Size([3, 1])
    """

    model: Any
    """An `nn.Module`, in the mode (train or eval) in which it was made."""
    inputs: Inputs | None = None
    """What came with the model."""
    name: str
    """What the user called it: `file.py:factory`, `hf:PATH`."""
    load_tokenizer: Callable[[], Any] | None = None
    """Loads the tokenizer that lies beside the model; None where there is none."""

    def run(self, inputs: Inputs | None = None) -> Any:
        """The model's output, computed without gradients; the target's own inputs are used when none are given."""
        import torch

        inputs = self.inputs if inputs is None else inputs
        if inputs is None:
            raise TargetError(f"{self.name} came without inputs; give some, for instance from make_inputs(target)")
        try:
            with torch.inference_mode():
                return self.model(**inputs) if isinstance(inputs, dict) else self.model(*inputs)
        except LayertapError:
            raise
        except Exception as error:
            raise TargetError(f"{self.name} failed in its forward pass: {told(error)}") from error


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


def told(error: BaseException, inside: Path | None = None) -> str:
    """The error's last line and where it came from; the last place in the file `inside`, if it passed there.

    >>> try:
    ...     int("x")
    ... except ValueError as error:
    ...     told(error)
    "ValueError: invalid literal for int() with base 10: 'x' (<doctest layertap.targets.target.told[0]>:2)"
    """
    line = traceback.format_exception_only(error)[-1].strip()
    if isinstance(error, SyntaxError) and error.filename:
        return f"{line} ({Path(error.filename).name}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    places = [frame for frame in frames if inside is not None and Path(frame.filename) == inside] or frames
    return f"{line} ({Path(places[-1].filename).name}:{places[-1].lineno})" if places else line
