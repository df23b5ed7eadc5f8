"""Which tensor of one run is which of the other: one way of pairing after the other, each of which says what it did.

    alignment     align(reference, candidate, mapping) -> Alignment      <- read first
    moments       steps and ranks that belong together
    site_pairing  what all of them work on: sites, and which is paired with which
    mapping       what the user says: {regex: replacement}, and layouts
    names         the same name, or the same but for a prefix
    numbering     layer_1 … layer_62 against model.layers.0 … 61
    order         what is at the same place, with the same kind and shape
    content       what contains the same numbers; also finds names that lie
    layout        transposed, merged and split axes, when a mapping asks for them
    inputs        the models' own inputs, side by side

Nothing here imports torch; of each record the sketch is read, never the tensor.
"""

from layertap.compare.align.alignment import align
from layertap.compare.align.layout import AxisLayout
from layertap.compare.align.order import LEFT_OVER

__all__ = ["LEFT_OVER", "AxisLayout", "align"]
