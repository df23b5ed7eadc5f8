"""What is known of one pair of records before it is judged."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layertap.judge.shapes import Shape
    from layertap.measure.pair.difference import Difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is known of one pair."""

    identical: bool = False
    """Bit for bit: fingerprint, dtype and shape."""
    difference: Difference | None = None
    """None where no pass over the pair was possible."""
    error: float = math.nan
    """The relative L2 error; NaN where nothing is known."""
    how: str = ""
    """`exact`, `sketch`, `statistics` (a lower bound), `shapes` (they differ), `nothing`."""
    why: str = ""
    """Why nothing could be measured."""
    shapes: tuple[Shape, Shape] | None = None
    """Both, where they differ; with a difference, one side had merged axes, and the same order was assumed."""
    part: str = ""
    """Where records hold only a part of a tensor: which part was compared, or why none could be."""
