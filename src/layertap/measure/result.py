"""What one pass over a tensor gives, and how the results of its parts become the result of the whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from layertap.errors import BadArgument
from layertap.measure.definition import FIRST
from layertap.messages import tr
from layertap.site import Statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeSums:
    """What a part adds to the fingerprint and the sketch of its whole: elements count from their index there."""

    fingerprint: int
    sketch: bytes
    """251 little-endian float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Statistics, fingerprint and sketch of one tensor, or of a part of it."""

    statistics: Statistics
    fingerprint: int
    sketch: bytes
    """251 little-endian float32; empty where only statistics were asked for."""
    in_whole: WholeSums | None = None
    """Of a part whose place was given."""


def merge_sums(parts: Sequence[WholeSums]) -> WholeSums:
    """The fingerprint and the sketch of the whole from those of the parts of a partition, in any order.

    >>> part = WholeSums(fingerprint=2**63 + 1, sketch=np.float32([1, 2]).tobytes())
    >>> whole = merge_sums([part, part])
    >>> whole.fingerprint, np.frombuffer(whole.sketch, "<f4").tolist()
    (2, [2.0, 4.0])
    """
    return WholeSums(
        fingerprint=sum(part.fingerprint for part in parts) % 2**64,
        sketch=merge_sketches([part.sketch for part in parts]),
    )


def merge_sketches(parts: Sequence[bytes]) -> bytes:
    """The sketch of the whole."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.sum([np.frombuffer(part, "<f4").astype(np.float64) for part in parts], axis=0)
        return bytes(total.astype("<f4").tobytes())


def merge(parts: Sequence[Measurement]) -> Measurement:
    """The whole from the parts of a partition, each measured with its own `offset`, in the order of the elements.

    The fingerprint is exact; statistics and sketch agree with one pass over the whole up to rounding.

    >>> part = Measurement(
    ...     statistics=Statistics.of(count=2, mean=1.0, m2=2.0, abs_sum=2.0, min=0.0, max=2.0, first=(0.0, 2.0)),
    ...     fingerprint=2**63 + 1,
    ...     sketch=b"",
    ... )
    >>> whole = merge([part, part])
    >>> whole.fingerprint, whole.statistics.count, whole.statistics.std
    (2, 4, 1.0)
    """
    if not parts:
        raise BadArgument(tr("measure.merge_empty"))
    if len({len(part.sketch) for part in parts}) > 1:
        raise BadArgument(tr("measure.merge_mixed"))
    return Measurement(
        statistics=merge_statistics([part.statistics for part in parts]),
        fingerprint=sum(part.fingerprint for part in parts) % 2**64,
        sketch=merge_sketches([part.sketch for part in parts]),
    )


def merge_statistics(parts: Sequence[Statistics]) -> Statistics:
    """Counts add up, extremes meet, means and deviations combine by Chan's formula."""
    known = [part for part in parts if part.finite]
    finite, mean, m2 = 0, 0.0, 0.0
    for part in known:
        finite, mean, m2 = merge_moments(
            (finite, mean, m2), (part.finite, part.mean, part.std * part.std * part.finite)
        )
    return Statistics.of(
        count=sum(part.count for part in parts),
        mean=mean,
        m2=m2,
        abs_sum=sum(part.abs_mean * part.finite for part in known),  # not fsum, which raises beyond a double's range
        min=min((part.min for part in known), default=math.nan),
        max=max((part.max for part in known), default=math.nan),
        nan=sum(part.nan for part in parts),
        pos_inf=sum(part.pos_inf for part in parts),
        neg_inf=sum(part.neg_inf for part in parts),
        zero=sum(part.zero for part in parts),
        first=tuple(value for part in parts for value in part.first)[:FIRST],
    )


def merge_moments(one: tuple[int, float, float], two: tuple[int, float, float]) -> tuple[int, float, float]:
    """Count, mean and sum of squared deviations of two sets together (Chan, Golub and LeVeque, 1979)."""
    (n, mean, m2), (other_n, other_mean, other_m2) = one, two
    if not n or not other_n:
        return two if not n else one
    total = n + other_n
    delta, share = other_mean - mean, other_n / total
    # A difference of two doubles may overflow where neither of them does.
    middle = mean + delta * share if math.isfinite(delta) else mean * (1 - share) + other_mean * share
    return total, middle, m2 + other_m2 + delta * delta * n * share
