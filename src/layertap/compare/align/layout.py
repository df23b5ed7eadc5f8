"""A difference in layout that a mapping asks for: transposed, merged, split or cut axes. Never guessed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from layertap.errors import BadArgument
from layertap.messages import tr

_STEP = re.compile(r"\s*(transpose|merge|split|slice)\(([\d\s,]*)\)\s*[;>]?")
_WANTED = {"transpose": (2, 2), "merge": (2, 2), "split": (2, 99), "slice": (3, 3)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisLayout:
    """What is done to the candidate's axes before it is compared; several steps go from left to right.

    >>> import numpy as np
    >>> AxisLayout.parse("transpose(0,1)").apply(np.zeros((2, 3))).shape
    (3, 2)
    >>> AxisLayout.parse("transpose(1,2) merge(2,3)").apply(np.zeros((1, 4, 8, 16))).shape
    (1, 8, 64)
    >>> AxisLayout.parse("split(2,4,16)").apply(np.zeros((1, 8, 64))).shape
    (1, 8, 4, 16)
    >>> AxisLayout.parse("slice(1,0,40)").apply(np.zeros((1, 64, 8))).shape
    (1, 40, 8)

    Axes count from 0 at the front, so that arrays with more axes behind (the bytes of each element) may be given too.
    """

    text: str
    steps: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def parse(cls, text: str) -> AxisLayout:
        steps: list[tuple[str, tuple[int, ...]]] = []
        at = 0
        while at < len(text):
            match = _STEP.match(text, at)
            numbers = tuple(int(word) for word in match[2].split(",") if word.strip()) if match else ()
            if match is None or not _WANTED[match[1]][0] <= len(numbers) <= _WANTED[match[1]][1]:
                raise BadArgument(tr("align.layout_expected", text=text))
            if match[1] == "merge" and numbers[1] != numbers[0] + 1:
                raise BadArgument(tr("align.layout_neighbours", text=text))
            steps.append((match[1], numbers))
            at = match.end()
        if not steps:
            raise BadArgument(tr("align.layout_empty"))
        return cls(text=text, steps=tuple(steps))

    def apply(self, array: Any) -> Any:
        """The candidate's array in the reference's layout: a view where numpy (or torch) can give one."""
        for name, numbers in self.steps:
            shape = tuple(array.shape)
            axis = numbers[0]
            last = max(numbers) if name in ("transpose", "merge") else axis
            if last >= len(shape):
                raise BadArgument(tr("align.layout_axis", text=self.text, name=name, last=last, shape=list(shape)))
            if name == "transpose":
                array = array.swapaxes(*numbers)
            elif name == "slice":
                if not numbers[1] < numbers[2] <= shape[axis]:
                    raise BadArgument(tr("align.layout_elements", text=self.text, axis=axis, shape=shape[axis]))
                array = array[(slice(None),) * axis + (slice(numbers[1], numbers[2]),)]
            elif name == "merge":
                array = array.reshape(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
            else:
                product = 1
                for size in numbers[1:]:
                    product *= size
                if product != shape[axis]:
                    raise BadArgument(
                        tr("align.layout_product", text=self.text, axis=axis, shape=shape[axis], product=product)
                    )
                array = array.reshape(*shape[:axis], *numbers[1:], *shape[axis + 1 :])
        return array

    def __str__(self) -> str:
        return self.text
