"""What runs are called and what they are: fp32 that contains bfloat16, a candidate that is the reference."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from layertap.compare.result import Alignment, Pair
from layertap.result import Note
from layertap.store import Run

_DTYPES = {
    **dict.fromkeys(("fp64", "float64", "f64"), "float64"),
    **dict.fromkeys(("fp32", "float32", "f32"), "float32"),
    **dict.fromkeys(("bf16", "bfloat16"), "bfloat16"),
    **dict.fromkeys(("fp16", "float16", "f16", "half"), "float16"),
}


def claims(side: str, run: Run) -> list[str]:
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
        Note("comparable.called_otherwise", name=title(side, run), usual=usual, count=count, total=total, dtype=dtype)
    ]


def _words(run: Run) -> set[str]:
    folder = _folder(run)
    words = set(re.split(r"[^a-z0-9]+", folder.name.lower())) if folder is not None else set()
    for part in ({"mode": run.info.get("mode")}, run.info.get("meta"), run.info.get("arguments")):
        # Only values that are a type's name and nothing else: a remark may mention any type.
        values = part.values() if isinstance(part, Mapping) else ()
        words |= {value.lower().removeprefix("torch.") for value in values if isinstance(value, str)}
    return words


def placebo_of(reference: Run, candidate: Run, alignment: Alignment) -> str:
    pairs = alignment.pairs
    same = all(equal or _same_bits(pairs[place]) for place, equal in enumerate(pairs.identical().tolist()))
    one_folder = reference is candidate or (reference.path is not None and reference.path == candidate.path)
    if not pairs or not same or one_folder:
        return ""
    if any(run.info.get("ranks_merged") for run in (reference, candidate)):
        return ""  # the change is the layout, and with the very same bits it is right
    formats = {run.info.get("artefact") or "eager" for run in (reference, candidate)}
    if len(formats) > 1:
        return ""  # a compiled file that computes the very same bits is no placebo, but the best there is
    differ = [
        Note("comparable.against", word=word, one=shortened(a), other=shortened(b))
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


def shortened(value: Any) -> str:
    text = ", ".join(f"{key}={item}" for key, item in value.items()) if isinstance(value, Mapping) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def title(side: str, run: Run) -> str:
    return Note("comparable.the_side", side=side) if (folder := _folder(run)) is None else str(folder)


def _folder(run: Run) -> Path | None:
    """Where a run is; also of one that was read from a foreign folder into memory."""
    source = run.info.get("source")
    return run.path if run.path is not None else Path(source) if isinstance(source, str) else None
