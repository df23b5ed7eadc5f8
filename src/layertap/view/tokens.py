"""The tokens of a language model's input: how likely each next token is on either side, and each token's own error.

Nothing here is guessed in silence: where the ids, or what looks like logits, were not kept, or are no such thing for
sure, the strip says why it is empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from layertap.errors import LayertapError, SiteNotFound
from layertap.messages import tr
from layertap.site import Record
from layertap.store.dtype import to_numpy
from layertap.view.query import Query
from layertap.view.sides import Session, Side
from layertap.view.site_tables import ComparedSites, SiteTable

Numbers = npt.NDArray[np.float64]

MOST = 4 << 30
"""Bytes of tensors that are read for the errors of single tokens."""
_ROWS = 64
"""Tokens whose probabilities are worked out at once."""
_HEAD = "Linear"


@dataclass(frozen=True, kw_only=True)
class Strip:
    """The tokens of one step."""

    ids: npt.NDArray[np.int64]
    """Batch row, token."""
    texts: tuple[str, ...] = ()
    """The text of each, in C order; empty where no tokenizer is known."""
    site: str = ""
    """Where the logits were taken; empty where there are none."""
    a: Numbers | None = None
    """Log probability of each next token; NaN for the last of a row."""
    b: Numbers | None = None
    why: str = ""
    """Why there are no probabilities."""

    @property
    def delta(self) -> Numbers | None:
        return None if self.a is None or self.b is None else self.b - self.a


@dataclass(frozen=True, kw_only=True)
class TokenErrors:
    """The error of each token at each row of a site table; rows without a token axis are left out."""

    by_row: dict[int, Numbers] = field(default_factory=dict)
    why: str = ""


def strip_of(session: Session, query: Query, site_table: SiteTable) -> Strip | None:
    """The strip of what a page shows; None where the input contains no token ids."""
    numbers = tuple(number for number in (query.a, query.b) if number is not None)
    key = ("strip", *numbers, site_table.step, id(site_table.report) if isinstance(site_table, ComparedSites) else 0)
    found: Strip | None = session.cached(key, lambda: _strip(session, query, site_table))
    return found


def errors_of(session: Session, query: Query, site_table: ComparedSites, strip: Strip) -> TokenErrors:
    """What each token's own error is at each site, worked out once for all tokens."""
    key = ("token errors", query.a, query.b, site_table.step, id(site_table.report))
    found: TokenErrors = session.cached(key, lambda: _errors(session, query, site_table, strip))
    return found


def _strip(session: Session, query: Query, site_table: SiteTable) -> Strip | None:
    side = session.sides[query.a]
    record = _ids_record(side, site_table.step)
    if record is None:
        return None
    if record.kept != "tensor":
        return Strip(ids=np.empty((0, 0), np.int64), why=tr("view.tokens_not_kept", site=record.site))
    try:
        ids = np.asarray(_values(side, record), np.int64)
    except LayertapError as error:
        return Strip(ids=np.empty((0, 0), np.int64), why=str(error))
    texts = session.texts_of(ids.reshape(-1).tolist())
    if ids.shape[1] < 2:
        return Strip(ids=ids, texts=texts, why=tr("view.tokens_alone"))
    if query.b is not None:
        other = _ids_record(session.sides[query.b], site_table.step)
        if other is None or other.fingerprint != record.fingerprint or other.shape != record.shape:
            return Strip(ids=ids, texts=texts, why=tr("view.tokens_differ"))
    head = _logits_record(side, site_table.step, ids)
    if head is None:
        return Strip(ids=ids, texts=texts, why=tr("view.no_logits"))
    if head.kept != "tensor":
        return Strip(ids=ids, texts=texts, why=tr("view.tokens_not_kept", site=head.site))
    try:
        a = _log_chances(_values(side, head), ids)
        b = None
        if query.b is not None:
            row = site_table.row(str(head.site)) if isinstance(site_table, ComparedSites) else None
            name = str(head.site if row is None else row.candidate_site)
            other_side = session.sides[query.b]
            logits = _values(other_side, _record(other_side, name, site_table.step))
            if logits.shape != head.shape:
                return Strip(ids=ids, texts=texts, why=tr("view.logits_differ", site=head.site))
            b = _log_chances(logits, ids)
    except LayertapError as error:
        return Strip(ids=ids, texts=texts, why=str(error))
    return Strip(ids=ids, texts=texts, site=str(head.site), a=a, b=b)


def _errors(session: Session, query: Query, site_table: ComparedSites, strip: Strip) -> TokenErrors:
    assert query.b is not None
    sides = session.sides[query.a], session.sides[query.b]
    found: dict[int, Numbers] = {}
    read = 0
    for place in site_table.row_numbers():
        row = site_table.report.rows[place]
        try:
            pair = [
                _record(side, str(name), row.step)
                for side, name in zip(sides, (row.site, row.candidate_site), strict=True)
            ]
        except LayertapError:
            continue  # of a rank or call that this step does not have
        if any(one.kept != "tensor" for one in pair) or pair[0].shape != pair[1].shape:
            continue
        if not _by_token(pair[0].shape, strip.ids.shape):
            continue
        read += sum(one.statistics.count * 4 for one in pair)
        if read > MOST:
            return TokenErrors(by_row=found, why=tr("view.tokens_too_large", count=len(found)))
        try:
            a, b = (_values(side, one).reshape(strip.ids.size, -1) for side, one in zip(sides, pair, strict=True))
        except LayertapError as error:
            return TokenErrors(by_row=found, why=str(error))
        found[place] = _relative(a, b)
    return TokenErrors(by_row=found, why="" if found else tr("view.no_token_axis"))


def _relative(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> Numbers:
    """The relative L2 error of each row; infinite where B is not finite and A is."""
    error = np.empty(len(a))
    for begin in range(0, len(a), _ROWS):
        part = slice(begin, begin + _ROWS)
        one, two = np.asarray(a[part], np.float64), np.asarray(b[part], np.float64)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            away, size = np.linalg.norm(two - one, axis=1), np.linalg.norm(one, axis=1)
            error[part] = np.where(away == 0, 0.0, away / size)
    return error


def _by_token(shape: Sequence[int], ids: Sequence[int]) -> bool:
    """Whether the leading axes are batch row and token, or both in one."""
    return tuple(shape[:2]) == tuple(ids) or (len(shape) > 1 and shape[0] == math.prod(ids))


def _log_chances(logits: npt.NDArray[Any], ids: npt.NDArray[np.int64]) -> Numbers:
    """The log probability of each next token, in double precision; a row of the batch after the other."""
    rows, tokens = ids.shape
    found = np.full((rows, tokens), np.nan)
    for row in range(rows):
        for begin in range(0, tokens - 1, _ROWS):
            end = min(begin + _ROWS, tokens - 1)
            values = np.asarray(logits[row, begin:end], np.float64)
            with np.errstate(invalid="ignore", over="ignore"):
                values = values - values.max(-1, keepdims=True)
                whole = np.log(np.exp(values).sum(-1))
            chosen = np.take_along_axis(values, ids[row, begin + 1 : end + 1, None], -1)[:, 0]
            found[row, begin:end] = chosen - whole
    return found


def _ids_record(side: Side, step: int | None) -> Record | None:
    """The model's own input that contains token ids: whole numbers, batch by tokens, and no mask."""
    with side.lock:
        index = side.run.index
        rows = index.unasked()
        rows = rows[index.values("step", rows) == step] if len(rows) else rows
        found = [
            one
            for one in side.run.records_at(rows, sketches=False)
            if one.dtype in ("int64", "int32")
            and len(one.shape) == 2
            and one.statistics.min >= 0
            and one.statistics.abs_max > 1
        ]
    named = [one for one in found if "input_ids" in str(one.site.leaf)]
    unnamed = [one for one in found if not any(word in str(one.site.leaf) for word in ("mask", "position", "type"))]
    return next(iter(named or unnamed), None)


def _logits_record(side: Side, step: int | None, ids: npt.NDArray[np.int64]) -> Record | None:
    """What the model returns for each token and each word of its vocabulary.

    The model's own output, or the last linear layer that ran; never something as wide as the layers before it.
    """
    rows, tokens = ids.shape
    with side.lock:
        index = side.run.index
        every = index.asked()
        here = every[index.values("step", every) == step] if len(every) else every
        records = side.run.records_at(here[-200:], sketches=False)
    fitting = [
        one for one in records if len(one.shape) == 3 and one.shape[:2] == (rows, tokens) and one.site.role == "output"
    ]
    widths = [one.shape[2] for one in fitting if one.kind != _HEAD and one.site.path]
    usual = max(set(widths), key=widths.count) if widths else 0
    for one in sorted(fitting, key=lambda one: -one.order):
        if one.shape[2] <= int(ids.max()) or one.shape[2] == usual:
            continue
        if one.kind == _HEAD or not one.site.path or one.site.leaf == "logits":
            return one
    return None


def _record(side: Side, site: str, step: int | None) -> Record:
    with side.lock:
        found = side.run[site]
        if step is not None:
            found = found.at(step=step)
        records = side.run.records_at(found._rows[:1])
    if not records:
        raise SiteNotFound(tr("view.no_site", site=site))
    return records[0]


def _values(side: Side, record: Record) -> npt.NDArray[Any]:
    with side.lock:
        return to_numpy(side.run.kept_bytes(record), record.kept_dtype, record.kept_shape)
