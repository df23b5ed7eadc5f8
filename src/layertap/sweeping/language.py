"""Two language models by what they say: divergence, agreement and perplexity, from the likeliest tokens of each."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from layertap.files import open_regular
from layertap.sweeping.result import Tokens

FILE = "tokens.safetensors"
PERCENTILES = (("99.9", 99.9), ("99", 99.0), ("95", 95.0), ("90", 90.0), ("median", 50.0))
_LEAST = 1e-12

Arrays = dict[str, npt.NDArray[Any]]


def read_tokens(run: Path) -> Arrays | None:
    """What was kept of a mode's output; None where nothing was."""
    path = run / FILE
    if not path.is_file():
        return None
    from safetensors.numpy import load

    with open_regular(path) as file:
        found: Arrays = load(file.read())
    return found


@np.errstate(invalid="ignore", over="ignore")
def compare_tokens(reference: Arrays, candidate: Arrays) -> Tokens | None:
    """The block that is quoted for a quantised model; None where the two have not the same positions, or none.

    Tokens that only one side has kept count as a part of its rest. Of two such divisions of the vocabulary the
    divergence is at most that of the whole: a lower bound, and exact where all tokens were kept.
    """
    count = len(reference["tail"])
    if count != len(candidate["tail"]) or not count:
        return None
    kl = np.empty(count)
    covered = np.empty(count)
    for place in range(count):
        kl[place], covered[place] = _divergence(reference, candidate, place)
    same = (reference["ids"][:, 0] == candidate["ids"][:, 0]) & ~np.isnan(kl)
    p, q = (side["next"].astype(np.float64) for side in (reference, candidate))
    bad = np.isnan(kl)
    # NaN stands where no token follows; where the logits themselves are NaN it stays, and every mean is NaN.
    known = ~(np.isnan(p) | np.isnan(q)) | bad
    moved = np.exp(q[known]) - np.exp(p[known])
    logs = p[known] - q[known]
    n = max(1, int(known.sum()))
    ratio = _exp(float(logs.mean())) if known.any() else math.nan
    share = float(same.mean())
    percentiles = {"max": float(kl.max())}
    percentiles |= {name: float(np.percentile(kl, place)) for name, place in PERCENTILES}
    return Tokens(
        positions=count,
        kl=float(kl.mean()),
        kl_error=_standard_error(kl),
        kl_percentiles=percentiles,
        rms_delta_p=float(np.sqrt(np.square(moved).mean())) if known.any() else math.nan,
        mean_delta_p=float(moved.mean()) if known.any() else math.nan,
        same_top=share,
        same_top_error=math.sqrt(share * (1 - share) / max(1, count - 1)),
        perplexity=_exp(-float(q[known].mean())) if known.any() else math.nan,
        reference_perplexity=_exp(-float(p[known].mean())) if known.any() else math.nan,
        perplexity_ratio=ratio,
        perplexity_ratio_error=ratio * float(logs.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan,
        top=reference["ids"].shape[1],
        covered=float(covered.mean()),
        not_finite=int(bad.sum()),
    )


def _exp(value: float) -> float:
    return float(np.exp(value))  # infinite where Python's would raise


def _divergence(reference: Arrays, candidate: Arrays, place: int) -> tuple[float, float]:
    if any(np.isnan(side["logprobs"][place]).any() for side in (reference, candidate)):
        return math.nan, math.nan
    ids, theirs = reference["ids"][place], candidate["ids"][place]
    shared, here, there = np.intersect1d(ids, theirs, assume_unique=True, return_indices=True)
    log_p = reference["logprobs"][place][here].astype(np.float64)
    log_q = candidate["logprobs"][place][there].astype(np.float64)
    p, q = np.exp(log_p), np.exp(log_q)
    some = p > 0  # a token that the reference rules out adds nothing, whatever the candidate makes of it
    found = float((p[some] * (log_p[some] - log_q[some])).sum())
    mass = float(p.sum())
    if len(shared) == len(ids) and not reference["tail"][place]:
        return max(0.0, found), mass
    rest_p, rest_q = max(1 - mass, 0.0), max(1 - float(q.sum()), _LEAST)
    if rest_p > _LEAST:
        found += rest_p * math.log(rest_p / rest_q)
    return max(0.0, found), mass


def _standard_error(values: npt.NDArray[Any]) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
