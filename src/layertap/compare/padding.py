"""Sequences that differ by padding: where ids or masks prove what is real, only that is compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from layertap.compare.align.inputs import Array, InputPair, input_pairs, inputs_of, known
from layertap.result import Note
from layertap.store import Run

Span = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trim:
    """Which positions of a sequence are real, on both sides.

    >>> trim = Trim(
    ...     reference_length=3, candidate_length=5, reference_slice=slice(0, 3), candidate_slice=slice(0, 3), why="…"
    ... )
    >>> [array.shape for array in trim.apply(np.zeros((1, 3, 8)), np.zeros((1, 5, 8)))]
    [(1, 3, 8), (1, 3, 8)]
    """

    reference_length: int
    candidate_length: int
    reference_slice: slice
    candidate_slice: slice
    why: str
    """The proof, in words."""
    batch: int = 1
    """How many sequences there are; layers that flatten batch and sequence into one axis need it."""

    @property
    def spans(self) -> tuple[Span, Span]:
        """From where to where, on both sides."""
        sides = self.reference_slice, self.candidate_slice
        return (sides[0].start, sides[0].stop), (sides[1].start, sides[1].stop)

    def apply(self, reference: Any, candidate: Any, *, ndim: int | None = None) -> tuple[Any, Any]:
        """Both arrays without their padding; as they are, where no axis is the sequence's.

        `ndim` is the number of leading axes that belong to the tensor, if more follow (the bytes of each element).
        """
        if reference.ndim != candidate.ndim:
            return reference, candidate
        lengths = self.reference_length, self.candidate_length
        count = reference.ndim if ndim is None else ndim
        axes = [k for k in range(count) if (reference.shape[k], candidate.shape[k]) == lengths]
        if not axes and self.batch > 1 and count:
            flat = reference.shape[0] == self.batch * lengths[0] and candidate.shape[0] == self.batch * lengths[1]
            return self._flattened(reference, candidate) if flat else (reference, candidate)
        # Where the lengths differ an axis cannot be mistaken, and attention weights have two of them. Where they are
        # equal, the width of a layer may happen to be the same number: then one axis is taken, the usual one.
        if lengths[0] == lengths[1]:
            axes = [1] if 1 in axes else axes[:1]
        for axis in axes:
            before = (slice(None),) * axis
            reference, candidate = (
                reference[(*before, self.reference_slice)],
                candidate[(*before, self.candidate_slice)],
            )
        return reference, candidate

    def _flattened(self, reference: Any, candidate: Any) -> tuple[Any, Any]:
        found = []
        for array, part in ((reference, self.reference_slice), (candidate, self.candidate_slice)):
            cut = array.reshape(self.batch, -1, *array.shape[1:])[:, part]
            found.append(cut.reshape(-1, *array.shape[1:]))
        return found[0], found[1]


def find_trim(reference: Run, candidate: Run) -> Trim | None:
    """The true part of both sides' sequences, if their inputs prove that the rest is padding; else None."""
    found: Trim | None = None
    for _, pairs in input_pairs(reference, candidate):
        trim = _trim(pairs)
        # One cut is made for the whole comparison: it has to be right at every step.
        if trim is None or (found is not None and _cut(trim) != _cut(found)):
            return None
        found = found or trim
    return found


def masked_trim(reference: Run, candidate: Run, lengths: tuple[int, int]) -> Trim | None:
    """The cut that one side's mask proves where nothing is known of the other's inputs, which has just that length."""
    for side, (run, other) in enumerate(((reference, candidate), (candidate, reference))):
        mask = None if known(other) else _only_mask(run)
        if mask is None or mask.shape[1] != lengths[side]:
            continue
        span = _span(mask, lengths[side])
        if span[1] - span[0] != lengths[1 - side]:
            continue
        spans = [slice(0, length) for length in lengths]
        spans[side] = slice(*span)
        return Trim(
            reference_length=lengths[0],
            candidate_length=lengths[1],
            reference_slice=spans[0],
            candidate_slice=spans[1],
            why=Note(
                "compare.without_padding",
                real=lengths[1 - side],
                lengths=lengths[0],
                lengths2=lengths[1],
                why=Note("compare.one_mask", side=("reference", "candidate")[side]),
            ),
            batch=mask.shape[0],
        )
    return None


def _only_mask(run: Run) -> Array | None:
    """The attention mask that a run has at every step."""
    found: Array | None = None
    for given in inputs_of(run):
        mask = _find([(item, None) for item in given], mask=True)[0]
        if mask is None or (found is not None and not np.array_equal(mask, found)):
            return None
        found = mask
    return found


def _cut(trim: Trim) -> tuple[int, ...]:
    return (
        *(trim.reference_length, trim.candidate_length, trim.reference_slice.start, trim.reference_slice.stop),
        *(trim.candidate_slice.start, trim.candidate_slice.stop, trim.batch),
    )


def _trim(pairs: list[InputPair]) -> Trim | None:
    ids = _find(pairs, mask=False)
    masks = _find(pairs, mask=True)
    sizes = [next((array.shape for array in (ids[side], masks[side]) if array is not None), None) for side in (0, 1)]
    if sizes[0] is None or sizes[1] is None or sizes[0][0] != sizes[1][0]:
        return None
    if any(
        array is not None and array.shape != size
        for found in (ids, masks)
        for array, size in zip(found, sizes, strict=True)
    ):
        return None
    lengths = sizes[0][1], sizes[1][1]
    spans, why = _by_masks(ids, masks, lengths)
    if spans is None:
        spans, why = _by_ids(ids, masks, lengths)
    if spans is None:
        return None
    real = spans[0][1] - spans[0][0]
    return Trim(
        reference_length=lengths[0],
        candidate_length=lengths[1],
        reference_slice=slice(*spans[0]),
        candidate_slice=slice(*spans[1]),
        why=Note("compare.without_padding", real=real, lengths=lengths[0], lengths2=lengths[1], why=why),
        batch=sizes[0][0],
    )


Spans = tuple[tuple[Span, Span] | None, str]
Sides = tuple[Array | None, Array | None]


def _by_masks(ids: Sides, masks: Sides, lengths: tuple[int, int]) -> Spans:
    if masks[0] is None and masks[1] is None:
        return None, ""
    spans = _span(masks[0], lengths[0]), _span(masks[1], lengths[1])
    if spans == ((0, lengths[0]), (0, lengths[1])) or spans[0][1] - spans[0][0] != spans[1][1] - spans[1][0]:
        return None, ""
    cut = [
        np.ones((1, span[1] - span[0]), np.int64) if mask is None else mask[:, span[0] : span[1]] != 0
        for mask, span in zip(masks, spans, strict=True)
    ]
    if spans[0][0] == spans[0][1] or not np.all(cut[0] == cut[1]):
        return None, ""
    if ids[0] is not None and ids[1] is not None:
        same = ids[0][:, slice(*spans[0])] == ids[1][:, slice(*spans[1])]
        if not np.all(same | (np.broadcast_to(cut[0], same.shape) == 0)):
            return None, ""
        return spans, Note("compare.masks_and_ids")
    if masks[0] is None or masks[1] is None:
        return None, ""
    return spans, Note("compare.both_masks")


def _by_ids(ids: Sides, masks: Sides, lengths: tuple[int, int]) -> Spans:
    if ids[0] is None or ids[1] is None or lengths[0] == lengths[1]:
        return None, ""
    long = int(lengths[1] > lengths[0])
    short = 1 - long
    if masks[long] is not None:
        return None, ""  # it has been heard already, and did not call the rest padding
    real = _span(masks[short], lengths[short])
    words, more = ids[short], ids[long]
    assert words is not None
    assert more is not None
    words = words[:, real[0] : real[1]]
    width, extra = words.shape[1], lengths[long] - words.shape[1]
    for side, start in (("right", 0), ("left", extra)):
        rest = np.delete(more, np.s_[start : start + width], axis=1)
        # One column proves nothing: it could be the next token. Nor does an id that also occurs among the real ones.
        padding = extra > 1 and rest.size and np.all(rest == rest.flat[0]) and rest.flat[0] not in words
        if padding and np.array_equal(more[:, start : start + width], words):
            name = ("reference", "candidate")[long]
            spans = {short: real, long: (start, start + width)}
            return (
                spans[0],
                spans[1],
            ), Note("compare.padding_ids", end=side, side=name, extra=extra, flat=rest.flat[0])
    return None, ""


def _span(mask: Array | None, length: int) -> Span:
    """From the first to the last position that is real in any row."""
    if mask is None:
        return 0, length
    real = np.flatnonzero(np.any(mask != 0, axis=0))
    return (int(real[0]), int(real[-1]) + 1) if len(real) else (0, 0)


def _find(pairs: list[InputPair], *, mask: bool) -> Sides:
    """The ids, or the attention masks, of the first call on both sides: rows of whole numbers."""
    found: list[Array | None] = [None, None]
    for pair in pairs:
        for side, item in enumerate(pair):
            if item is None or item.call or item.values is None or found[side] is not None:
                continue
            named = "mask" in item.name if mask else item.name in ("input_ids", "ids", "tokens", "", "0")
            if named and item.values.ndim in (1, 2):
                found[side] = np.atleast_2d(item.values)
    return found[0], found[1]
