"""Comparable at all? Before any number: the same inputs, real captures, and two runs that are not one.

inputs      the same ids, masks and images, or the same but for padding
captures    something was captured, nothing was lost, nothing is stale
claims      a run called fp32 that holds bfloat16; a candidate that is the reference
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from layertap.compare.padding import Trim, find_trim
from layertap.compare.result import Alignment, Pair
from layertap.compare.same_inputs import differing_inputs
from layertap.result import Note
from layertap.store import Run
from layertap.store.index import encoded, fingerprints, whole_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparability:
    """What stands between two runs and a verdict."""

    reasons: tuple[str, ...] = ()
    """What makes any verdict inconclusive, most important first."""
    notes: tuple[str, ...] = ()
    """What a reader must know besides."""
    missing: tuple[str, ...] = ()
    """What was not read: the sites that are here may agree, and still not all is known to."""
    placebo: bool = False
    """Whether all pairs are bit-identical although the two runs should differ."""
    trim: Trim | None = None
    """What to leave out of every tensor, where padding is all that two sequence lengths differ by."""


def comparable(reference: Run, candidate: Run, alignment: Alignment) -> Comparability:
    """Holds the circumstances of two runs against each other; the tensors themselves are not read."""
    reasons: list[str] = []
    notes: list[str] = []
    for side, run in (("reference", reference), ("candidate", candidate)):
        _captured(side, run, reasons, notes)
    trim = find_trim(reference, candidate)
    differing_inputs(reference, candidate, trim, reasons, notes)
    for side, run in (("reference", reference), ("candidate", candidate)):
        reasons += _stale(side, run)
        notes += _claims(side, run)
    notes += _numbers(reference, candidate)
    notes += alignment.unpaired
    notes += [cut.why for cut in alignment.trims if cut != trim]
    missing = _unread(reference, candidate)
    placebo = _placebo(reference, candidate, alignment)
    if placebo:
        notes.insert(0, placebo)
    return Comparability(
        reasons=tuple(reasons), notes=tuple(notes), missing=tuple(missing), placebo=bool(placebo), trim=trim
    )


# Captures.


def _captured(side: str, run: Run, reasons: list[str], notes: list[str]) -> None:
    receipt = run.receipt
    name = _name(side, run)
    if not run.sites:
        why = receipt.silent[0].why if receipt is not None and receipt.silent else ""
        reasons.append(Note("comparable.nothing_captured", name=name, more=f" ({why})" if why else ""))
    elif receipt is not None and receipt.error:
        # What was recorded before is real. But a site that was asked for and never came was not found to be right.
        text = Note("comparable.stopped_early", name=name, error=receipt.error)
        if receipt.silent:
            reasons.append(Note("comparable.stopped_and_missing", text=text, count=len(receipt.silent)))
        else:
            notes.append(text)
    if receipt is not None and receipt.lost:
        notes.append(Note("comparable.lost", name=name, lost=receipt.lost))
    dropped = sum(site.dropped for site in receipt.sites) if receipt is not None else 0
    if dropped:
        notes.append(Note("comparable.dropped", name=name, dropped=dropped))
    if run.partial:
        more = Note("comparable.and_more", count=len(run.problems) - 1) if len(run.problems) > 1 else ""
        notes.append(Note("comparable.partial", name=name, problem=run.problems[0], more=more))


def _unread(*runs: Run) -> list[str]:
    """Files that lie beside those that were read; a folder that was read in part is not known to agree."""
    told: list[str] = []
    for run in runs:
        names = run.info.get("unread")
        if isinstance(names, list) and names:
            some = ", ".join(map(str, names[:5])) + (
                Note("comparable.and_more_files", count=len(names) - 5) if len(names) > 5 else ""
            )
            told.append(Note("comparable.unread", folder=run.name, count=len(names), names=some))
    return told


def _numbers(reference: Run, candidate: Run) -> list[str]:
    """Single numbers that lie beside the tensors and differ: a loss is no layer, but it must not differ in silence."""
    ours, theirs = reference.info.get("numbers"), candidate.info.get("numbers")
    if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping):
        return []
    differ = [name for name, value in ours.items() if name in theirs and theirs[name] != value]
    if not differ:
        return []
    some = ", ".join(f"{name} {_short(ours[name])} / {_short(theirs[name])}" for name in differ[:5])
    return [Note("comparable.numbers", count=len(differ), some=some)]


def _stale(side: str, run: Run) -> list[str]:
    """Captures that cannot be of a model at work: one tensor everywhere, or outputs that do not follow the inputs."""
    name = _name(side, run)
    sites: dict[str, int] = {}
    parts = [_stale_columns(table, sites) for table in run.tables(_STALE, encoded=("site", "role"))]
    if not parts:
        return []
    found: dict[str, Any] = {name: np.concatenate([part.pop(name) for part in parts]) for name in list(parts[0])}
    # Stable: where a site was recorded twice in a step, the later record counts.
    rows = np.lexsort((found["rank"], found["step"]))
    if not len(rows):
        return []
    edges = np.flatnonzero((np.diff(found["step"][rows]) != 0) | (np.diff(found["rank"][rows]) != 0)) + 1
    seen: dict[tuple[int, bytes], tuple[int, bytes]] = {}
    for part in np.split(rows, edges):
        here = {name: column[part] for name, column in found.items()}
        outputs, given = _last(here), np.sort(here["mark"][here["output"] == 0]).tobytes()
        step = int(here["step"][0])
        # Foreign folders without tensors have no fingerprints; NaN everywhere is a fault, and one that others report.
        live = outputs[(here["mark"][outputs] != 0) & ~here["nan"][outputs]]
        if len(live) >= 3 and len(np.unique(here["mark"][live])) == 1:
            return [Note("comparable.stale_same", name=name, count=len(live), step=step)]
        if len(live) >= 3 and np.all(here["constant"][live]):
            return [Note("comparable.stale_constant", name=name, count=len(live), step=step)]
        if not len(outputs):
            continue
        marks = here["site"][outputs].tobytes() + here["mark"][outputs].tobytes()
        before, same = seen.setdefault((int(here["rank"][0]), marks), (step, given))
        if given and same and given != same and here["mark"][outputs].any():
            steps = Note("comparable.steps", before=before, step=step)
            return [Note("comparable.stale_inputs", name=name, steps=steps, count=len(outputs))]
    return []


_STALE = ("site", "role", "asked", "step", "rank", "fingerprint", "min", "max", "count", "nan")


def _stale_columns(table: Any, sites: dict[str, int]) -> dict[str, Any]:
    """What `_stale` must know of the records of a shard, without its parameters, in as little memory as that takes."""
    roles, role = encoded(table.column("role"))
    params = np.array([text.startswith("param") for text in roles], np.bool_)
    texts, site = encoded(table.column("site"))
    inner = np.array([text.startswith(":input") for text in texts], np.bool_)
    codes = np.array([sites.setdefault(text, len(sites)) for text in texts], np.int32)
    constant = whole_numbers(pc.equal(table.column("min"), table.column("max")).cast(pa.int64())) == 1
    keep = ~params[role] if len(role) else np.empty(0, np.bool_)
    found = {
        "step": whole_numbers(table.column("step")),
        "rank": whole_numbers(table.column("rank")).astype(np.int32),
        "mark": fingerprints(table.column("fingerprint")),
        "site": codes[site] if len(site) else np.empty(0, np.int32),
        "output": (whole_numbers(table.column("asked")) != 0) & (~inner[site] if len(site) else keep),
        "nan": whole_numbers(table.column("nan")) != 0,
        "constant": (whole_numbers(table.column("count")) > 1) & constant,
    }
    return {name: column[keep] for name, column in found.items()}


def _last(here: dict[str, Any]) -> Any:
    """The places of the outputs of one step, by site; of a site that comes twice the later one."""
    places = np.flatnonzero(here["output"])
    sites = here["site"][places][::-1]
    _, first = np.unique(sites, return_index=True)
    return places[::-1][first]


# Claims.

_DTYPES = {
    **dict.fromkeys(("fp64", "float64", "f64"), "float64"),
    **dict.fromkeys(("fp32", "float32", "f32"), "float32"),
    **dict.fromkeys(("bf16", "bfloat16"), "bfloat16"),
    **dict.fromkeys(("fp16", "float16", "f16", "half"), "float16"),
}


def _claims(side: str, run: Run) -> list[str]:
    """A note when a run's name or its metadata call it by a float type that it does not hold."""
    claimed = {_DTYPES[word] for word in _words(run) if word in _DTYPES}
    if len(claimed) != 1:
        return []  # nothing, or `fp32_vs_bf16`
    dtype = claimed.pop()
    columns = run.table(["dtype", "asked"])
    asked = columns.filter(columns.column("asked")).column("dtype")
    counts = ((item["values"], item["counts"]) for item in pc.value_counts(asked).to_pylist())
    held = Counter({name: count for name, count in counts if name.startswith(("float", "bfloat"))})
    total = sum(held.values())
    if not total or held[dtype] >= total / 2:
        return []
    usual, count = held.most_common(1)[0]
    return [
        Note("comparable.called_otherwise", name=_name(side, run), usual=usual, count=count, total=total, dtype=dtype)
    ]


def _words(run: Run) -> set[str]:
    folder = _folder(run)
    words = set(re.split(r"[^a-z0-9]+", folder.name.lower())) if folder is not None else set()
    for part in ({"mode": run.info.get("mode")}, run.info.get("meta"), run.info.get("arguments")):
        # Only values that are a type's name and nothing else: a remark may mention any type.
        values = part.values() if isinstance(part, Mapping) else ()
        words |= {value.lower().removeprefix("torch.") for value in values if isinstance(value, str)}
    return words


def _placebo(reference: Run, candidate: Run, alignment: Alignment) -> str:
    pairs = alignment.pairs
    same = all(equal or _same_bits(pairs[place]) for place, equal in enumerate(pairs.identical().tolist()))
    one_folder = reference is candidate or (reference.path is not None and reference.path == candidate.path)
    if not pairs or not same or one_folder:
        return ""
    formats = {run.info.get("artefact") or "eager" for run in (reference, candidate)}
    if len(formats) > 1:
        return ""  # a compiled file that computes the very same bits is no placebo, but the best there is
    differ = [
        Note("comparable.against", word=word, one=_short(a), other=_short(b))
        for word, a, b in (
            ("model", reference.info.get("model"), candidate.info.get("model")),
            ("meta", reference.info.get("meta"), candidate.info.get("meta")),
            ("mode", reference.info.get("mode"), candidate.info.get("mode")),
            ("folder", getattr(_folder(reference), "name", ""), getattr(_folder(candidate), "name", "")),
        )
        if a != b and a and b
    ]
    return Note(
        "comparable.placebo", count=len(pairs), more=Note("comparable.in_brackets", text=differ[0]) if differ else ""
    )


def _same_bits(pair: Pair) -> bool:
    a, b = pair.reference, pair.candidate
    return bool(a.sketch) and (a.fingerprint, a.dtype, a.shape) == (b.fingerprint, b.dtype, b.shape)


def _short(value: Any) -> str:
    text = ", ".join(f"{key}={item}" for key, item in value.items()) if isinstance(value, Mapping) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _name(side: str, run: Run) -> str:
    return Note("comparable.the_side", side=side) if (folder := _folder(run)) is None else str(folder)


def _folder(run: Run) -> Path | None:
    """Where a run lies; also of one that was read from a foreign folder into memory."""
    source = run.info.get("source")
    return run.path if run.path is not None else Path(source) if isinstance(source, str) else None
