"""What an operator that is out of place says about the cause."""

from __future__ import annotations

import torch

from layertap.fault.drill import Departure, Op
from layertap.result import Note

_SURE = {
    "neg": "sign",
    "clamp": "clipping",
    "clamp_max": "clipping",
    "clamp_min": "clipping",
    "hardtanh": "clipping",
    "roll": "shift",
    "flip": "permutation",
    "tril": "mask",
    "triu": "mask",
}
"""Operators that do one thing, and so say what was done where one is too many, too few or called otherwise."""
_LIKELY = {
    "_to_copy": "precision",
    "index_select": "permutation",
    "transpose": "transpose",
    "permute": "transpose",
    "masked_fill": "mask",
    "where": "mask",
    "slice": "shift",
    "select": "shift",
    "arange": "shift",
    "zeros_like": "skipped",
}
"""Operators that are part of much else as well: accepted when the error's form shows nothing."""
_ACTIVATIONS = ("gelu", "silu", "relu", "leaky_relu", "tanh", "sigmoid", "elu", "hardswish", "mish", "softplus")


def by_operator(departure: Departure, *, sure: bool) -> tuple[str, tuple[str, ...]] | None:
    """The cause that an operator represents; `sure` asks for those that leave little doubt."""
    op, wanted = departure.op, departure.instead
    if departure.kind == "differs":
        return _settings(departure, sure)
    if departure.kind == "other" and wanted is not None:
        text = Note("cause.other_op", op=op, name=wanted.name)
        if _short(op) in _ACTIVATIONS and _short(wanted) in _ACTIVATIONS:
            return "config", (text,)
    elif departure.kind == "extra":
        text = Note("cause.extra_op", op=op)
    else:
        text = Note("cause.missing_op", op=op)
    cause = (_SURE if sure else _SURE | _LIKELY).get(_short(op))
    return (cause, (text,)) if cause is not None else None


def _settings(departure: Departure, sure: bool) -> tuple[str, tuple[str, ...]] | None:
    """The same operator, called with other arguments."""
    op = departure.op
    if not departure.settings:
        return None
    ours, theirs = departure.settings[0]
    text = Note("cause.op_argument", op=op, ours=ours, theirs=theirs)
    if {ours, theirs} <= {"True", "False"} and "attention" in op.name:
        return "mask", (text,)
    if sure:
        return (_SURE[_short(op)], (text,)) if _short(op) in _SURE else None
    dtypes = {str(value) for value in vars(torch).values() if isinstance(value, torch.dtype)}
    if ours in dtypes or theirs in dtypes:
        return "precision", (text,)
    return (_SURE | _LIKELY).get(_short(op), "config"), (text,)


def _short(op: Op) -> str:
    """`aten.mul_.Tensor` is `mul`."""
    parts = op.name.split(".")
    return (parts[1] if len(parts) > 1 else op.name).removesuffix("_")
