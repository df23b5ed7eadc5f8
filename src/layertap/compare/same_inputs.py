"""Whether two runs saw the same inputs: ids, masks and images, or the same but for padding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from layertap.compare.align.inputs import Input, InputPair, input_pairs, known
from layertap.compare.padding import Trim
from layertap.judge.roundoff import ROUNDOFF
from layertap.measure.floats import FORMATS
from layertap.measure.sketch import relative_l2
from layertap.messages import tr
from layertap.result import Note
from layertap.site import UNCHANGED, Record
from layertap.store import Run


def hold_inputs(reference: Run, candidate: Run, trim: Trim | None, reasons: list[str], notes: list[str]) -> None:
    unknown = [side for side, run in (("reference", reference), ("candidate", candidate)) if not known(run)]
    if unknown:
        whose = Note("comparable.of_both") if len(unknown) == 2 else Note("comparable.of_side", side=unknown[0])
        notes.append(Note("comparable.inputs_unknown", whose=whose))
        return
    if trim is not None:
        notes.append(trim.why)
    steps = 0
    wrong: list[tuple[int, str]] = []
    for moment, pairs in input_pairs(reference, candidate):
        steps += 1
        for text, harmless in (finding for pair in pairs for finding in _differs(pair, trim)):
            if not harmless:
                wrong.append((moment.step, text))
            elif text not in notes:
                notes.append(text)
    for step, text in wrong[:4]:
        at = Note("comparable.at_step", step=step) if steps > 1 else ""
        reasons.append(Note("comparable.different_inputs", at=at, text=text))
    if len(wrong) > 4:
        reasons.append(
            Note("comparable.different_inputs_more", count=len(wrong) - 4, count2=len({step for step, _ in wrong}))
        )


class _InputDoubt(NamedTuple):
    """Something about an input that is not the same on both sides."""

    text: str
    harmless: bool = False


def _differs(pair: InputPair, trim: Trim | None) -> Iterator[_InputDoubt]:
    one, other = pair
    if one is None or other is None:
        item, side = (one, "reference") if other is None else (other, "candidate")
        assert item is not None
        harmless = "mask" in item.name and item.values is not None and bool(np.all(item.values == 1))
        if harmless:
            yield _InputDoubt(Note("comparable.only_given_mask", side=side, called=_called(item)), harmless=True)
        elif "position" in item.name and item.values is not None and _counts_up(item.values):
            text = Note("comparable.only_given_positions", side=side, called=_called(item))
            yield _InputDoubt(text, harmless=True)
        elif trim is None or "mask" not in item.name:
            yield _InputDoubt(Note("comparable.only_given", side=side, called=_called(item)))
        return
    if one.unchanged != other.unchanged:
        own, side = (one, "reference") if one.unchanged else (other, "candidate")
        name = own.name.removesuffix(f".{UNCHANGED}")
        yield _InputDoubt(Note("comparable.own_state", name=name, side=side), harmless=True)
        return
    a, b = one.record, other.record
    if a is not None and b is not None and (a.fingerprint, a.dtype, a.shape) == (b.fingerprint, b.dtype, b.shape):
        return
    if one.exact and other.exact and one.values is not None and other.values is not None:
        yield from _whole_numbers(one, other, trim)
    elif a is not None and b is not None:
        yield from _real_numbers(one, a, b)
    else:
        yield _InputDoubt(Note("comparable.not_comparable", called=_called(one)))


def _counts_up(positions: Any) -> bool:
    """Whether these are the positions of a prompt without padding."""
    return positions.ndim > 0 and bool(np.all(positions == np.arange(positions.shape[-1])))


def _whole_numbers(one: Input, other: Input, trim: Trim | None) -> Iterator[_InputDoubt]:
    assert one.values is not None
    assert other.values is not None
    x, y = np.atleast_1d(one.values), np.atleast_1d(other.values)
    if trim is not None and x.ndim == y.ndim:
        x, y = trim.apply(*((x, y) if x.ndim > 1 else (x[None], y[None])))
    if x.shape != y.shape:
        length = (
            Note("comparable.lengths", shape=x.shape[-1], shape2=y.shape[-1]) if x.shape[:-1] == y.shape[:-1] else ""
        )
        shapes = length or Note("comparable.shapes", shape=list(x.shape), shape2=list(y.shape))
        yield _InputDoubt(Note("comparable.has", called=_called(one), shapes=shapes, common=_common(x, y)))
        return
    wrong = np.argwhere(x != y)
    if len(wrong):
        at = tuple(int(index) for index in wrong[0])
        where = at[-1] if len(at) == 1 or not any(at[:-1]) else list(at)
        yield _InputDoubt(
            Note(
                "comparable.differs_at",
                called=_called(one),
                count=len(wrong),
                size=x.size,
                where=where,
                item=x[at].item(),
                item2=y[at].item(),
            )
        )
    elif one.record is not None and other.record is not None and one.record.dtype != other.record.dtype:
        dtypes = Note("comparable.dtypes", dtype=one.record.dtype, dtype2=other.record.dtype)
        yield _InputDoubt(Note("comparable.is", called=_called(one), dtypes=dtypes), harmless=True)


def _common(x: Any, y: Any) -> str:
    """Where two sequences of different lengths part."""
    length = min(x.shape[-1], y.shape[-1])
    if x.shape[:-1] != y.shape[:-1] or not length:
        return ""
    wrong = np.flatnonzero(np.any((x[..., :length] != y[..., :length]).reshape(-1, length), axis=0))
    if not len(wrong):
        return Note("comparable.prefix_equal", length=length)
    return Note("comparable.differ_from", wrong=wrong[0])


def _real_numbers(one: Input, a: Record, b: Record) -> Iterator[_InputDoubt]:
    if a.shape != b.shape:
        yield _InputDoubt(Note("comparable.has_shapes", called=_called(one), shape=list(a.shape), shape2=list(b.shape)))
        return
    if not (a.sketch and b.sketch and a.statistics.l2 > 0):
        yield _InputDoubt(
            Note("comparable.means_differ", called=_called(one), mean=a.statistics.mean, mean2=b.statistics.mean)
        )
        return
    error = relative_l2(a.sketch, b.sketch, a.statistics.l2)
    rounding = max((FORMATS[dtype].epsilon for dtype in (a.dtype, b.dtype) if dtype in ROUNDOFF), default=0.0)
    dtypes = (
        Note("comparable.two_dtypes", one=a.dtype, other=b.dtype)
        if a.dtype != b.dtype
        else Note("comparable.both_dtype", dtype=a.dtype)
    )
    text = Note("comparable.differs_by", called=_called(one), error=error, dtypes=dtypes)
    yield (
        _InputDoubt(Note("comparable.only_rounding", text=text), harmless=True)
        if error <= rounding
        else _InputDoubt(text)
    )


def _called(item: Input) -> str:
    name = f"`{item.name}`" if item.name and not item.name.isdigit() else tr("comparable.input", name=item.name or 0)
    return Note("comparable.of_call", name=name, call=item.call) if item.call else name
