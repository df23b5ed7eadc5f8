"""Layers told by what is in them: sketches compared, and sequences laid side by side by dynamic programming.

Neighbouring layers of a residual stream are alike (each changes it by some 20-30 %), so a small difference proves
nothing by itself. What counts is the difference against the change from layer to layer: at its own place a layer
is far nearer than its neighbours are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layertap.compare.align.board import Board, Family, compact, family, place
from layertap.site import Record

Matrix = npt.NDArray[np.float64]

GAP = 0.6
"""The cost of leaving out one record; more than half of the worst pair, so that a faulty layer stays paired."""
FACTOR = 0.25
"""How much smaller the error of the shifted pairing must be, in the median, to overrule names."""
MAJORITY = 0.6
"""The share of a family for which it must be so: some faulty layers are no shift."""
NEAR = 0.3
"""The part of the distance to the nearest other record within which two records are the same."""
MOST = 3000
"""Leftovers of one shape beyond this are not matched by content: the matrix would not fit a laptop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shift:
    """A family whose names and contents disagree."""

    old: dict[int, int]
    new: dict[int, int]
    disputed: list[int]
    checked: int


def check_names(board: Board) -> tuple[list[str], list[str]]:
    """Holds what names have paired against the contents; re-pairs where they disagree throughout a numbered family.

    Returns lines for the plan, and the sentences that say what is called by another name.
    """
    families: dict[Family, list[int]] = defaultdict(list)
    for i, match in sorted(board.matches.items()):
        key = family(board.reference[i])
        if key is not None and match.rung != "mapping":
            families[key].append(i)
    agreed = 0
    shifted: list[str] = []
    moved = 0
    for key, members in families.items():
        usable = [i for i in members if board.comparable(i, board.matches[i].candidate)]
        if len(usable) < 3:
            continue
        usual = Counter(_kin_of(board, 0, i) for i in usable).most_common(1)[0][0]
        usable = [i for i in usable if _kin_of(board, 0, i) == usual]
        shift = _shift(board, key, usable)
        if shift is None:
            agreed += len(usable)
            continue
        _apply(board, shift)
        moved += sum(shift.old.get(i) != j for i, j in shift.new.items())
        shifted += _sentences(board, key, shift, examples=0 if shifted else 3)
    lines = [f"content: {board.pairs_text(moved)} made by content against the names"] if moved else []
    lines += [f"content: does not contradict the names of {board.pairs_text(agreed)}"] if agreed else []
    return lines, shifted


def pair_by_content(board: Board) -> list[str]:
    """Pairs leftovers that are far nearer to each other than to anything else of their shape, in order."""
    ours_by, theirs_by = (_by_kin(board, side, left) for side, left in enumerate(board.left()))
    count = 0
    lines = []
    for kin, ours in ours_by.items():
        theirs = theirs_by.get(kin, [])
        if not theirs:
            continue
        if max(len(ours), len(theirs)) > MOST:
            lines.append(f"content: {len(ours)} against {len(theirs)} leftovers of one shape are too many to match")
            continue
        for i, j in _clear_pairs(board, kin, ours, theirs):
            board.pair(i, j, "content")
            count += 1
    return [f"content: {board.pairs_text(count)} of what was left over", *lines]


def distances(reference: Sequence[Record], candidate: Sequence[Record]) -> Matrix:
    """Estimated ‖candidate - reference‖ / ‖reference‖ of every record with every other."""
    ours, theirs = _sketches(reference), _sketches(candidate)
    lengths = (ours**2).sum(1)
    squares = lengths[:, None] + (theirs**2).sum(1)[None, :] - 2 * ours @ theirs.T
    # Of equal sketches the sum leaves a rounding error whose root is not small; a float32 sketch knows no better.
    squares[squares < 1e-12 * lengths[:, None]] = 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.sqrt(np.maximum(squares, 0.0) / lengths[:, None])
    return np.where(lengths[:, None] > 0, found, np.where(squares > 0, np.inf, 0.0))


def monotone(costs: Matrix, gap: float = GAP) -> list[tuple[int, int]]:
    """The cheapest way to lay two sequences side by side without crossing, each left-out member costing `gap`.

    >>> monotone(np.array([[1.0, 1.0], [0.0, 1.0], [1.0, 0.1]]))
    [(1, 0), (2, 1)]
    """
    rows, columns = costs.shape
    steps = gap * np.arange(columns + 1)
    table = np.empty((rows + 1, columns + 1))
    table[0] = steps
    for i in range(rows):
        row = table[i] + gap
        row[1:] = np.minimum(row[1:], table[i, :-1] + costs[i])
        # A move along the row costs the gap: with the slope taken out, the best way up to here is a running minimum.
        table[i + 1] = np.minimum.accumulate(row - steps) + steps
    found = []
    i, j = rows, columns
    while i and j:
        if np.isclose(table[i, j], table[i - 1, j - 1] + costs[i - 1, j - 1], rtol=0, atol=1e-9):
            i, j = i - 1, j - 1
            found.append((i, j))
        elif np.isclose(table[i, j], table[i - 1, j] + gap, rtol=0, atol=1e-9):
            i -= 1
        else:
            j -= 1
    return found[::-1]


def _shift(board: Board, key: Family, members: list[int]) -> _Shift | None:
    """The pairing that contents ask for, if it is clearly another one than that of the names."""
    old = {i: board.matches[i].candidate for i in members}
    if _at_home(board, old) or len(old) > MOST:
        return None
    free = _free(board, _kin_of(board, 0, members[0]))
    rows, columns = sorted({*members, *free[0]}), sorted({*old.values(), *free[1]})
    error = distances([board.reference[i] for i in rows], [board.candidate[j] for j in columns])
    scale = _nearest(distances([board.reference[i] for i in rows], [board.reference[i] for i in rows]))
    where = {j: n for n, j in enumerate(columns)}
    line = {i: n for n, i in enumerate(rows)}
    named = np.array([error[line[i], where[old[i]]] for i in members])
    costs = np.minimum(error / scale[:, None], 1.0)
    found = dict(monotone(costs))
    disputed, ratios = [], []
    for n, i in enumerate(members):
        column = found.get(line[i])
        if column is not None and columns[column] != old[i] and named[n] > 0:
            disputed.append(i)
            ratios.append(error[line[i], column] / named[n])
    better = sum(ratio < 0.5 for ratio in ratios)
    if better < MAJORITY * len(members) or better < 3 or float(np.median(ratios)) >= FACTOR:
        return None
    clear = {rows[r]: columns[c] for r, c in found.items() if costs[r, c] < 0.5}
    new = _trusted(board, key, clear, rows, columns)
    return _Shift(old=old, new=new, disputed=disputed, checked=len(members))


def _at_home(board: Board, old: dict[int, int]) -> bool:
    """Whether most of a family are nearer to their namesakes than to their neighbours; told without a matrix."""
    ours, theirs = _sketches([board.reference[i] for i in old]), _sketches([board.candidate[j] for j in old.values()])
    steps = np.linalg.norm(np.diff(ours, axis=0), axis=1)
    steps[steps <= 1e-5 * np.linalg.norm(ours[1:], axis=1)] = np.inf
    around = np.minimum(np.append(steps, np.inf), np.insert(steps, 0, np.inf))
    return float(np.mean(np.linalg.norm(theirs - ours, axis=1) < 0.5 * around)) > 0.5


def _trusted(board: Board, key: Family, clear: dict[int, int], rows: list[int], columns: list[int]) -> dict[int, int]:
    """The pairs that contents show, and with them those faulty ones to which the same shift of numbers leads.

    Between faulty layers all ways cost the same, so there the cheapest way says nothing.
    """
    ours = {i: place(board.reference[i].site.path).number for i in rows if family(board.reference[i]) == key}
    numbered = {(family(board.candidate[j]), place(board.candidate[j].site.path).number): j for j in columns}
    shifts = Counter(
        (family(board.candidate[j]), there - here)
        for i, j in clear.items()
        if (here := ours.get(i)) is not None and (there := place(board.candidate[j].site.path).number) is not None
    )
    if not shifts:
        return clear
    (theirs, offset), _ = shifts.most_common(1)[0]
    new, taken = dict(clear), set(clear.values())
    for i, number in ours.items():
        j = numbered.get((theirs, number + offset)) if number is not None and i not in clear else None
        if j is not None and j not in taken:
            new[i] = j
    return new


def _apply(board: Board, shift: _Shift) -> None:
    rungs = {i: board.matches[i].rung for i in shift.old}
    targets = set(shift.new.values())
    touched = {*shift.old, *(i for i in shift.new if i in board.matches)}
    touched |= {board.taken[j] for j in targets if j in board.taken}
    for i in touched:
        board.part(i)
    for i, j in shift.new.items():
        board.pair(i, j, rungs[i] if shift.old.get(i) == j else "content")


def _sentences(board: Board, key: Family, shift: _Shift, examples: int) -> list[str]:
    told = [i for i in shift.disputed if i in shift.new]
    some = sorted({told[0], told[len(told) // 2], told[-1]})[:examples] if told else []
    head = (
        f"names and contents disagree: {len(told)} of the {shift.checked} pairs that `{key[0]}*{key[1]}` made by name "
        f"held different layers, and were paired by content instead"
    )
    return [
        head,
        *(
            f"the candidate's `{board.candidate[shift.new[i]].site}` holds what the reference calls "
            f"`{board.reference[i].site}`"
            for i in some
        ),
    ]


Kin = tuple[int, str, tuple[int, ...]]
"""Moment, role and shape: what a record could be mistaken for."""


def _kin_of(board: Board, side: int, number: int) -> Kin:
    record = (board.reference, board.candidate)[side][number]
    return board.moments[side][number], record.site.role, compact(record.shape)


def _by_kin(board: Board, side: int, numbers: Iterable[int]) -> dict[Kin, list[int]]:
    records = (board.reference, board.candidate)[side]
    found: dict[Kin, list[int]] = defaultdict(list)
    for number in numbers:
        if records[number].sketch:
            found[_kin_of(board, side, number)].append(number)
    return found


def _free(board: Board, kin: Kin) -> tuple[list[int], list[int]]:
    """What a family may be paired with besides: leftovers, and what only the order has paired."""
    loose = {i: match.candidate for i, match in board.matches.items() if match.rung == "order"}
    ours, theirs = board.left()
    found = _by_kin(board, 0, (*ours, *loose)).get(kin, []), _by_kin(board, 1, (*theirs, *loose.values())).get(kin, [])
    return found if max(map(len, found)) <= MOST else ([], [])


def _clear_pairs(board: Board, kin: Kin, ours: list[int], theirs: list[int]) -> list[tuple[int, int]]:
    references, candidates = [board.reference[i] for i in ours], [board.candidate[j] for j in theirs]
    error = distances(references, candidates)
    # All that either could be mistaken for counts, also what is paired already.
    around = [
        [records[number] for number in _by_kin(board, side, range(len(records))).get(kin, [])[:MOST]]
        for side, records in enumerate((board.reference, board.candidate))
    ]
    scale = np.minimum(
        _nearest(distances(references, around[0]))[:, None], _nearest(distances(candidates, around[1]))[None, :]
    )
    kinds = np.array([[not a.kind or not b.kind or a.kind == b.kind for b in candidates] for a in references])
    costs = np.where(kinds, np.minimum(error / np.minimum(scale, 1.0), 2 * GAP + 1), 2 * GAP + 1)
    return [(ours[r], theirs[c]) for r, c in monotone(costs) if costs[r, c] < NEAR]


def _nearest(among: Matrix) -> npt.NDArray[np.float64]:
    """The distance of each record to the nearest that is not the same tensor; 1 where there is no such."""
    # Identities (a dropout that is off) give the same tensor twice, and a sketch's own rounding must not be a scale.
    other = np.where(among > 1e-5, among, np.inf).min(axis=1, initial=np.inf)
    return np.where(np.isfinite(other), other, 1.0)


def _sketches(records: Sequence[Record]) -> Matrix:
    return np.stack([np.frombuffer(record.sketch, "<f4") for record in records]).astype(np.float64)
