"""Every threshold by which rounding is distinguished from a fault, with what was seen when it was set.

A verdict is a ratio of an error to its floor. Of recorded runs only the total error is known, and floors may be
modelled; between live models each module's own error is known, and floors are measured: so the limits differ.
"""

from __future__ import annotations

from collections.abc import Mapping

# The modelled floor.
PER_LAYER = 3.0
"""Unit roundoffs that one layer adds to the error, seen as 1.2 to 3.6 in eight families of models in bf16 and fp16."""
TYPICAL_PER_LAYER = 1.5
"""The middle of what was seen."""
SPREAD = 4.0
"""How far the worst row or column of honest rounding is above the typical one; seen as 1.4 to 3, rarely 6."""

# Two recorded runs.
LIMIT_OF_RUNS = 3.0
"""Two runs of the same arithmetic in other orders differ by about this much at most in their error."""
CERTAIN: Mapping[str, float] = {"measured": LIMIT_OF_RUNS, "modelled": 30.0, "similar": 10.0}
"""A modelled floor may be off by an order of magnitude: between LIMIT_OF_RUNS and this, only a measured floor can
decide. Rows and columns are compared with the others of the same tensor (`similar`), which is surer, but a router that
chooses otherwise moves one too."""
QUIET_BEFORE = 3
"""After so many sites, all within LIMIT_OF_RUNS of the modelled floor, the model of the floor is right for this
network: an error that jumps from there to CERTAIN["similar"] at a single site is not rounding. (Rounding that grows
faster than modelled grows gradually, and is inconclusive on its way.)"""
TIPPED = 0.1
"""Where rounding came before, no more than this part of a router's choices is tipped by it."""
SHARE = 0.25
"""A row or column that stands out must also matter: carry this much of the squared error."""

# Two live models, module by module.
LIMIT_OF_MODULES = 6.0
"""A module whose error is this many times its floor is faulty; clean pairs in other precisions stay below 3."""
LIMIT_AMONG_EQUALS = 2.2
"""The same where nearly all other modules are equal bit for bit: one that honestly runs another kernel (attention
written out, a sum in halves, a fused norm) stays below 1.8 in six families and two precisions, scores cast to eight
bits are above 2.6."""
SHARE_OF_EQUALS = 0.9
"""The share of modules that have to be equal for that."""
SEVERAL_MODULES = 8
"""And of how many at least."""
FINER = 4.0
"""So much more an error counts where the values have the bits of an eight-bit float, and the reference's have more."""
TIES = 0.05
"""A router or an argmax flips where two values are nearly equal; up to this share of places, that is rounding."""
