"""Captures that cannot be of a model at work: the same tensor everywhere, or outputs that do not follow the inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from layertap.compare.claims import title
from layertap.result import Note
from layertap.store import Run
from layertap.store.index import encoded, fingerprints, integers_of


def stale(side: str, run: Run) -> list[str]:
    """Captures that cannot be of a model at work: one tensor everywhere, or outputs that do not follow the inputs."""
    name = title(side, run)
    sites: dict[str, int] = {}
    parts = [_columns(table, sites) for table in run.tables(_NEEDED, encoded=("site", "role"))]
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


_NEEDED = ("site", "role", "asked", "step", "rank", "fingerprint", "min", "max", "count", "nan")


def _columns(table: Any, sites: dict[str, int]) -> dict[str, Any]:
    """What `_stale` must know of the records of a shard, without its parameters, in as little memory as that takes."""
    roles, role = encoded(table.column("role"))
    params = np.array([text.startswith("param") for text in roles], np.bool_)
    texts, site = encoded(table.column("site"))
    inner = np.array([text.startswith(":input") for text in texts], np.bool_)
    codes = np.array([sites.setdefault(text, len(sites)) for text in texts], np.int32)
    constant = integers_of(pc.equal(table.column("min"), table.column("max")).cast(pa.int64())) == 1
    keep = ~params[role] if len(role) else np.empty(0, np.bool_)
    found = {
        "step": integers_of(table.column("step")),
        "rank": integers_of(table.column("rank")).astype(np.int32),
        "mark": fingerprints(table.column("fingerprint")),
        "site": codes[site] if len(site) else np.empty(0, np.int32),
        "output": (integers_of(table.column("asked")) != 0) & (~inner[site] if len(site) else keep),
        "nan": integers_of(table.column("nan")) != 0,
        "constant": (integers_of(table.column("count")) > 1) & constant,
    }
    return {name: column[keep] for name, column in found.items()}


def _last(here: dict[str, Any]) -> Any:
    """The places of the outputs of one step, by site; of a site that comes twice the later one."""
    places = np.flatnonzero(here["output"])
    sites = here["site"][places][::-1]
    _, first = np.unique(sites, return_index=True)
    return places[::-1][first]
