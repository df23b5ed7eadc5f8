"""Where the error of a pair sits: the row and the column that stand out, and the rows whose largest entry moved."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from layertap.measure.floats import FORMATS
from layertap.measure.pair.difference import Agreement, Concentration
from layertap.measure.pair.plain import Floats, Task, values

LINES = 1 << 18
"""Beyond so many rows or columns, neighbours are weighed together, and the worst group is then looked into."""
CHOICES = 1_000_000
"""Rows of more entries than this are no logits."""
BLOCK = 1 << 20


def worst_row(task: Task, shape: tuple[int, ...]) -> tuple[Concentration | None, float]:
    """The row with the largest error of its own, and what is typical of a row; (None, 0.0) where there is only one."""
    if task.rows < 2 or not task.columns:
        return None, 0.0
    index, part, typical = _worst(task, task.row, task.rows, task.row_group, axis=0)
    place = tuple(int(i) for i in np.unravel_index(index, shape[:-1]))
    return Concentration(index=place, share=part[0], relative=part[1]), typical


def worst_column(task: Task, shape: tuple[int, ...]) -> tuple[Concentration | None, float]:
    """The same of columns; the two parts of a complex number are one column."""
    if not shape or shape[-1] < 2 or not task.rows:
        return None, 0.0
    sums, parts = task.column, task.columns // shape[-1]
    if parts > 1 and task.column_group == 1:
        sums, parts = sums.reshape(2, -1, parts).sum(axis=2), 1
    index, part, typical = _worst(task, sums, sums.shape[1], task.column_group, axis=1)
    return Concentration(index=(index // parts,), share=part[0], relative=part[1]), typical


def _worst(task: Task, sums: Floats, members: int, group: int, axis: int) -> tuple[int, tuple[float, float], float]:
    if group > 1:
        members = task.rows if axis == 0 else task.columns
    sizes = np.full(sums.shape[1], group)
    sizes[-1] = members - group * (len(sizes) - 1)
    mean, whole = float(sums[1].sum()) / members, float(sums[0].sum())
    relative = _relative(sums, mean * sizes)
    typical = float(np.median(relative))
    index = _highest(relative, sums[0])
    error, own = float(sums[0, index]), float(relative[index])
    if group > 1:
        within = _look_into(task, index * group, index * group + int(sizes[index]), axis)
        relative = _relative(within, np.full(within.shape[1], mean))
        inner = _highest(relative, within[0])
        index, error, own = index * group + inner, float(within[0, inner]), float(relative[inner])
    return index, (error / whole if whole else 0.0, own), typical


def _relative(sums: Floats, least: Floats) -> Floats:
    error, size = sums[0], np.maximum(sums[1], least)
    ratio = np.full(len(error), np.inf)
    np.divide(error, size, out=ratio, where=size > 0)
    ratio[error == 0] = 0.0
    root: Floats = np.sqrt(ratio)
    return root


def _highest(relative: Floats, error: Floats) -> int:
    """Among equals (a reference of zeros makes all of them infinite) the one with the largest error."""
    return int(np.where(relative == relative.max(), error, -1.0).argmax())


def _look_into(task: Task, begin: int, end: int, axis: int) -> Floats:
    """The squared error and squared reference of single rows or columns: a millionth of the tensor is read again."""
    sides = []
    for raw, dtype in ((task.a, task.dtype_a), (task.b, task.dtype_b)):
        size = raw.size // (task.rows * task.columns)
        grid = raw.reshape(task.rows, task.columns * size)
        cut = grid[begin:end] if axis == 0 else grid[:, begin * size : end * size]
        sides.append(values(np.ascontiguousarray(cut).reshape(-1), dtype).reshape(len(cut), -1) * task.scale)
    a, b = sides
    finite = np.isfinite(a) & np.isfinite(b)
    a, b = np.where(finite, a, 0), np.where(finite, b, 0)
    return np.stack([((a - b) ** 2).sum(axis=1 - axis), (a * a).sum(axis=1 - axis)])


def agreement(task: Task, shape: tuple[int, ...]) -> Agreement | None:
    """Takes the first of equals for the largest, and NaN for larger than any number, as torch does."""
    floating = all(FORMATS[dtype].least_exponent < 24 for dtype in (task.dtype_a, task.dtype_b))
    if not floating or not shape or task.columns != shape[-1] or not 2 <= task.columns <= CHOICES or not task.rows:
        return None
    agree, margin, index = 0, 0.0, -1
    step = max(1, BLOCK // task.columns)
    for first, _ in task.windows(step * task.columns):
        begin = first // task.columns
        a, b = (
            values(grid[begin : begin + step].reshape(-1), dtype).reshape(-1, task.columns)
            for grid, dtype in (
                (task.a.reshape(task.rows, -1), task.dtype_a),
                (task.b.reshape(task.rows, -1), task.dtype_b),
            )
        )
        differ = np.flatnonzero(a.argmax(axis=1) != b.argmax(axis=1))
        agree += len(a) - len(differ)
        if len(differ):
            leads = _leads(a[differ])
            if index < 0 or leads.max() > margin:
                margin, index = float(leads.max()), begin + int(differ[leads.argmax()])
    place = tuple(int(i) for i in np.unravel_index(index, shape[:-1])) if index >= 0 else None
    return Agreement(rows=task.rows, share=agree / task.rows, margin=margin, index=place)


def _leads(rows: Floats) -> npt.NDArray[np.float64]:
    """How far the largest entry of each row is above the second, in standard deviations of the row's finite entries."""
    second, first = np.partition(rows, -2, axis=1)[:, -2:].T
    finite = np.isfinite(rows)
    count = np.maximum(1, finite.sum(axis=1))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mean = np.where(finite, rows, 0).sum(axis=1) / count
        spread = np.sqrt((np.where(finite, rows - mean[:, None], 0) ** 2).sum(axis=1) / count)
        lead = np.where(first == second, 0.0, (first - second) / spread)
    return np.where(np.isnan(lead), np.inf, lead)
