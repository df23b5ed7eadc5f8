"""Two tensors, one pass: every metric by which people compare them, and the signs by which rounding is judged.

arrays      `compare`: two arrays of bytes, on the host, without torch (`native` or `plain`; `lines` reads their sums)
difference  what that gives: `Difference`
signs_native of tensors in memory, by signs.c
deferred    pairs of tensors of any device, measured now and read later; `compare_tensors` is one pair at once
massive     the error without the rows or columns that hold nearly all of the energy, for many pairs at once
many        pairs on a CUDA device by our own kernel, read together
kernel      that kernel's launches (`fused`, with `words`, `exact` and `fold`); `blocks` have the numbers
"""

from layertap.measure.pair.arrays import Array, compare
from layertap.measure.pair.difference import Agreement, Concentration, Difference

__all__ = ["Agreement", "Array", "Concentration", "Difference", "compare"]
