"""Pairs without tensors are judged by columns; each row must be the one that a pair by itself gives."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import layertap.compare.estimates as module
from layertap.compare import Row, diff
from layertap.site import Sharding
from layertap.store import Run, RunWriter
from store.making import kept, receipt, record, statistics


def write(folder: Path, change: float, seed: int, odd: bool = True) -> Run:
    """Three steps of a stack, with the odd record of every kind between those that are plain."""
    rng, noise = np.random.default_rng(0), np.random.default_rng(seed)
    writer = RunWriter(folder, info={"model": "Stack"}, durability="none")
    for step in range(3):
        for order in range(40):
            sketch = rng.standard_normal(251).astype(np.float32)
            exact = order < 5 or not change
            near = sketch if exact else sketch * (1 + np.float32(change * 2.0 ** noise.integers(-2, 3)))
            given: dict[str, Any] = {"order": order, "statistics": statistics(l2=16.0), "sketch": near.tobytes()}
            given["fingerprint"] = order + 1 + (0 if exact else seed << 20)
            if odd and order % 7 == 3:
                given["fingerprint"] += seed << 30
                given |= [
                    {"dtype": "int64"},
                    {"statistics": statistics(l2=16.0, nan=seed)},
                    {"shape": (2, 2 + seed)},
                    {"sketch": b""},
                    {"statistics": statistics(l2=0.0)},
                    {"sharding": Sharding(placements=("Shard(dim=0)",), global_shape=(4, 2), mesh_shape=(2,))},
                ][order // 7]
            row = record(f"layers.{order}.mlp" if order % 3 else f"head{'x' * (order % 5)}.{order}", step, **given)
            if odd and order % 11 == 6:
                writer.add(*kept(np.full((2, 2), 1 + change, np.float32), str(row.site), step, order=order))
            else:
                writer.add(row, None)
        writer.commit()
    writer.close(receipt())
    return Run(folder)


def told(rows: Any) -> list[dict[str, Any]]:
    return [{field.name: getattr(row, field.name) for field in fields(Row)} for row in rows]


@pytest.mark.parametrize("change", [0.0, 1e-7, 3e-6, 1e-5, 1e-3])
@pytest.mark.parametrize("odd", [True, False])
def test_by_columns_and_pair_by_pair_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: float, odd: bool
) -> None:
    a, b = write(tmp_path / "a", 0.0, 1, odd), write(tmp_path / "b", change, 2, odd)
    columns = diff(a, b)
    used = module._usable
    monkeypatch.setattr(module, "_usable", lambda pairs: used(pairs) & False)
    pairwise = diff(a, b)
    assert (columns.verdict, columns.reasons, columns.notes) == (pairwise.verdict, pairwise.reasons, pairwise.notes)
    for one, other in zip(told(columns.rows), told(pairwise.rows), strict=True):
        for name in ("error", "ratio", "jump", "floor"):
            assert one.pop(name) == pytest.approx(other.pop(name), rel=1e-12, nan_ok=True), one["site"]
        assert one == other
    assert len({row.verdict for row in columns.rows}) >= (2 if odd or change else 1)


def test_most_pairs_without_tensors_are_never_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = write(tmp_path / "a", 0.0, 1, odd=False), write(tmp_path / "b", 1e-7, 2, odd=False)
    made: list[int] = []
    whole = Run.records_at
    monkeypatch.setattr(Run, "records_at", lambda *a, **k: made.append(len(a[1])) or whole(*a, **k))
    report = diff(a, b)
    assert len(report.rows) == 120
    assert sum(made) < 2 * 40 + 10, "one record for each site and side, to align them"


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", 0.0, 1), write(tmp_path / "b", 1e-7, 2)
    seen: list[tuple[int, int]] = []
    diff(a, b, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 100
