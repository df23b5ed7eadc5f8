"""From finished modes to the result: groups, errors, what each mode really computes in, and what is wrong with it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from layertap.errors import CorruptRun, LayertapError
from layertap.judge.measured import Measured
from layertap.messages import tr
from layertap.result import Note, Verdict
from layertap.sweeping.comparing import (
    RecordedMode,
    floors_from,
    groups_of,
    matched,
    matrix_of,
    measure_all,
    recorded,
    rows_against,
)
from layertap.sweeping.definition import Definition, ModeDefinition
from layertap.sweeping.evidence_words import bits_of, dtypes_of, summary
from layertap.sweeping.language import compare_tokens, read_tokens
from layertap.sweeping.quantising_names import declared
from layertap.sweeping.result import NO_EFFECT, WRONG_NAME, Answer, Matrix, ModeResult, SiteRow, Sweep
from layertap.sweeping.sharing import disk_bytes, state_of

_FLOAT = {
    "fp32": "float32",
    "float32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "fp64": "float64",
}
"""Words in a mode's name that say what it computes in."""
NARROW = 8
"""A mode that says it is float and computes on so many bits is not what it says."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A mode that has ended: with a run, or with an error."""

    mode: ModeDefinition
    folder: Path | None
    outcome: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    log: str = ""
    seconds: float = 0.0
    peak: int = 0
    resumed: bool = False
    state: frozenset[tuple[str, int, int]] = frozenset()
    """Of the run's files, when it was put in place or found there."""


def conclude(
    definition: Definition,
    finished: Sequence[Finished],
    *,
    name: str,
    folder: Path,
    jobs: int,
    tell: Callable[[str, str, int, int], None],
) -> Sweep:
    """Compares what the modes left, and judges."""
    notes: list[Note] = []
    runs, finished = _opened(finished)
    reference = _reference(definition, finished, runs, notes)
    runs = matched(sorted(runs, key=lambda one: one.name != reference), reference)
    measured = measure_all(runs, lambda done, total: tell("compare", "comparing", done, total))
    ours = next((one for one in runs if one.name == reference), None)
    by_name = {one.name: one for one in runs}
    against = {run.name: measured[reference, run.name] for run in runs if run.name != reference} if ours else {}
    floors = (
        floors_from(
            ours,
            [
                (by_name[one.mode.name], against[one.mode.name])
                for one in finished
                if one.mode.composition and one.mode.name in against
            ],
        )
        if ours
        else {}
    )
    groups = groups_of(runs, reference)
    outcome = {one.mode.name: one.outcome for one in finished}
    modes = {
        one.mode.name: _mode(
            one, by_name.get(one.mode.name), ours, against.get(one.mode.name), floors, outcome.get(reference, {})
        )
        for one in finished
    }
    notes += _notes(definition, modes, groups, reference)
    folders = [one.folder for one in finished if one.folder is not None]
    matrix = matrix_of(runs, measured)
    return Sweep(
        name=name,
        target=definition.target,
        folder=str(folder),
        reference=reference,
        verdict=_verdict(modes, notes),
        modes=modes,
        groups=groups,
        matrix=matrix,
        answers=_answers(definition, modes, matrix, by_name, reference),
        notes=tuple(notes),
        jobs=jobs,
        disk=disk_bytes(folders),
        disk_of_one=max((disk_bytes([one]) for one in folders), default=0),
    )


def _opened(finished: Sequence[Finished]) -> tuple[list[RecordedMode], list[Finished]]:
    """The modes' runs; one that another process has damaged since counts as none."""
    runs, left = [], []
    for one in finished:
        if one.folder is None:
            left.append(one)
            continue
        try:
            changed = sorted(one.state ^ state_of(one.folder))
            if changed:
                raise CorruptRun(tr("sweep.written_since", file=changed[0][0]))
            runs.append(recorded(one.mode.name, one.folder, one.outcome))
            left.append(one)
        except (LayertapError, OSError) as error:
            left.append(replace(one, folder=None, error=tr("sweep.damaged", why=error)))
    return runs, left


def _reference(
    definition: Definition, finished: Sequence[Finished], runs: Sequence[RecordedMode], notes: list[Note]
) -> str:
    """The definition's reference; where it was not chosen or has no run, the first mode that has one."""
    wanted = definition.reference
    if any(run.name == wanted for run in runs) or not runs:
        return wanted
    chosen = any(one.mode.name == wanted for one in finished)
    notes.append(
        Note("sweep.reference_failed" if chosen else "sweep.reference_left_out", wanted=wanted, instead=runs[0].name)
    )
    return runs[0].name


def _mode(
    one: Finished,
    run: RecordedMode | None,
    reference: RecordedMode | None,
    measured: Mapping[str, Measured] | None,
    floors: Mapping[Any, Any],
    reference_outcome: Mapping[str, Any],
) -> ModeResult:
    outcome, mode = one.outcome, one.mode
    evidence = outcome.get("evidence") or {}
    known = ModeResult(
        name=mode.name,
        about=mode.about,
        error=one.error,
        log=one.log,
        seconds=one.seconds or float(outcome.get("seconds", 0.0)),
        times=outcome.get("times") or {},
        peak=one.peak or int(outcome.get("peak", 0)),
        resumed=one.resumed,
        declared=declared(mode.quantize) or mode.dtype,
    )
    if run is None or reference is None or one.folder is None:
        return known
    bits = bits_of(evidence)
    notes = [Note.from_dict(note) for note in outcome.get("notes") or ()]
    verdict: Verdict = "identical"
    rows: tuple[SiteRow, ...] = ()
    if measured is not None:
        # A measured floor is the reference's own; a mode in another precision has another.
        plain = not bits and not mode.dtype and not mode.composition
        theirs = reference_outcome.get("evidence") or {}
        verdict, rows = rows_against(
            reference,
            run,
            measured,
            bits=min((one for one in (bits, bits_of(theirs)) if one), default=0),
            dtypes=[*dtypes_of(evidence), *dtypes_of(theirs)],  # either side rounds
            floors=floors if plain else {},
        )
    notes += _mode_notes(mode, outcome, reference_outcome, run, reference, verdict)
    if any(note.code == "sweep.other_input" for note in notes):
        verdict = "inconclusive"
    said, expected = read_tokens(one.folder), read_tokens(Path(str(reference.run.path)))
    tokens = compare_tokens(expected, said) if expected is not None and said is not None else None
    return replace(
        known,
        path=str(one.folder),
        verdict=verdict,
        dtypes=summary(evidence) or dict.fromkeys(_run_dtypes(run), ""),
        bits=bits,
        rows=rows,
        tokens=tokens if measured is not None else None,
        quantised=tuple(outcome.get("quantised") or ()),
        notes=tuple(notes),
        details=evidence,
    )


def _run_dtypes(run: RecordedMode) -> list[str]:
    return list(dict.fromkeys(record.dtype for record in run.records.values()))


def _mode_notes(
    mode: ModeDefinition,
    outcome: Mapping[str, Any],
    reference: Mapping[str, Any],
    run: RecordedMode,
    ours: RecordedMode,
    verdict: Verdict,
) -> list[Note]:
    notes = []
    given, expected = outcome.get("inputs"), reference.get("inputs")
    if given and expected and given != expected:
        leaf = next((leaf for leaf in expected if given.get(leaf) != expected[leaf]), next(iter(given), ""))
        notes.append(
            Note(
                "sweep.other_input",
                leaf=leaf or "input",
                given=_shown(given.get(leaf)),
                expected=_shown(expected.get(leaf)),
            )
        )
    elif not given and mode.command:
        mine = [(one.dtype, one.shape, one.fingerprint) for one in run.run.inputs]
        theirs = [(one.dtype, one.shape, one.fingerprint) for one in ours.run.inputs]
        if mine != theirs:
            notes.append(Note("sweep.other_input", leaf="input", given=_first(mine), expected=_first(theirs)))
    evidence = outcome.get("evidence") or {}
    weights, others = outcome.get("weights") or {}, reference.get("weights") or {}
    common = [name for name in weights if name in others]
    changed = [name for name in common if weights[name] != others[name]]
    if changed and not mode.dtype and not mode.target:
        notes.append(Note("sweep.other_weights", changed=len(changed), common=len(common), first=changed[0]))
    if evidence.get("refused"):
        notes.append(Note("sweep.not_watched", why=evidence["refused"]))
    silent = (outcome.get("receipt") or {}).get("silent") or []
    if silent:
        notes.append(Note("sweep.silent", count=len(silent), first=silent[0]))
    missing = [site for site in ours.records if site not in run.records]
    extra = [site for site in run.records if site not in ours.records]
    if missing or extra:
        notes.append(Note("sweep.other_sites", missing=len(missing), extra=len(extra), first=(missing or extra)[0]))
    if mode.quantize and outcome.get("quantised"):
        parameters = evidence.get("parameters") or {}
        total = sum(found["values"] for found in parameters.values())
        narrow = sum(found["values"] for dtype, found in parameters.items() if "int" in dtype or "float8" in dtype)
        if total and narrow < total / 2:
            notes.append(Note("sweep.mostly_float", modules=len(outcome["quantised"]), share=f"{narrow / total:.0%}"))
    return notes


def _shown(identity: Any) -> str:
    if not isinstance(identity, Mapping):
        return "nothing"
    return f"{identity['dtype']} {identity['shape']} {identity['fingerprint']}"


def _first(identities: Sequence[tuple[str, tuple[int, ...], int]]) -> str:
    return f"{identities[0][0]} {list(identities[0][1])} {identities[0][2]:016x}" if identities else "nothing"


def claimed(name: str) -> str:
    """The float dtype that a mode's name says that it computes in; empty where it says none.

    >>> claimed("fp32"), claimed("2-1"), claimed("my-bf16-run")
    ('float32', '', 'bfloat16')
    """
    words = re.split(r"[^a-z0-9]+", name.lower())
    return next((_FLOAT[word] for word in words if word in _FLOAT), "")


def _notes(
    definition: Definition, modes: Mapping[str, ModeResult], groups: Sequence[Sequence[str]], reference: str
) -> list[Note]:
    """What is wrong with names: modes that say they are float and are not, modes that are others under another name."""
    notes: list[Note] = []
    for mode in modes.values():
        says = claimed(mode.name)
        if says and mode.path and 0 < mode.bits <= NARROW:
            shown = next(
                (
                    text
                    for dtype, text in mode.dtypes.items()
                    if dtype == f"int{mode.bits}" or dtype.startswith("float8")
                ),
                "",
            )
            notes.append(Note("sweep.not_its_name", mode=mode.name, says=says, bits=mode.bits, shown=shown))
        elif says and mode.path and (others := _floats(mode)) and says not in others:
            notes.append(Note("sweep.other_float", mode=mode.name, says=says, others=", ".join(others)))
    settings = {mode.name: _settings(mode) for mode in definition.modes}
    for group in groups:
        for name in group[1:]:
            if settings[name] != settings[group[0]]:
                one, other = (name, group[0]) if settings[name] else (group[0], name)
                shown = ", ".join(f"{key} = {value}" for key, value in settings[one].items())
                notes.append(Note(NO_EFFECT, mode=one, settings=shown, other=other))
    return notes


def _floats(mode: ModeResult) -> list[str]:
    """The floating-point dtypes that it was seen to compute in."""
    return [dtype for dtype in mode.dtypes if dtype in set(_FLOAT.values())]


def _settings(mode: ModeDefinition) -> dict[str, str]:
    """What a mode sets that ought to change its numbers."""
    given = {
        "env": mode.env,
        "arguments": mode.arguments,
        "dtype": mode.dtype,
        "quantize": mode.quantize,
        "target": mode.target,
    }
    return {key: str(value) for key, value in given.items() if value}


def _verdict(modes: Mapping[str, ModeResult], notes: Sequence[Note]) -> Verdict:
    """What could not be run or proven weighs more than any number."""
    found = {mode.verdict for mode in modes.values()}
    if any(mode.error or any(note.code == "sweep.other_input" for note in mode.notes) for mode in modes.values()):
        return "inconclusive"
    if len(modes) == 1:  # nothing was compared
        return "inconclusive"
    if "fault" in found or any(note.code in WRONG_NAME for note in notes):
        return "fault"
    if any(note.code == NO_EFFECT for note in notes):  # what such a setting does to the numbers has not been seen
        return "inconclusive"
    for verdict in ("inconclusive", "noise"):
        if verdict in found:
            return verdict
    return "identical"


def _answers(
    definition: Definition,
    modes: Mapping[str, ModeResult],
    matrix: Matrix,
    runs: Mapping[str, RecordedMode],
    reference: str,
) -> tuple[Answer, ...]:
    found = []
    for question, (one, other) in definition.questions.items():
        if one not in modes or other not in modes:  # not chosen this time
            continue
        errors = dict(matrix[one].get(other, {})) if one in matrix and other in matrix else {}
        known = {site: error for site, error in errors.items() if not math.isnan(error)}
        worst = max(known, key=lambda site: known[site], default="")
        first = next((site for site, error in known.items() if error > 0), "")
        note = None
        if not errors and one != other:
            without = next((name for name in (one, other) if name not in runs), one)
            note = Note("sweep.no_answer", mode=without)
        kl = math.nan
        if one in runs and other in runs:
            a, b = (read_tokens(Path(str(runs[name].run.path))) for name in (one, other))
            tokens = compare_tokens(a, b) if a is not None and b is not None else None
            kl = tokens.kl if tokens is not None else math.nan
        found.append(
            Answer(
                question=question,
                reference=one,
                candidate=other,
                site=worst,
                error=known.get(worst, math.nan),
                first_site=first,
                first_error=known.get(first, 0.0 if known else math.nan),
                before=_worst(matrix, reference, one),
                after=_worst(matrix, reference, other),
                kl=kl,
                note=note,
            )
        )
    return tuple(found)


def _worst(matrix: Matrix, reference: str, mode: str) -> float:
    if mode == reference:
        return 0.0
    if reference not in matrix or mode not in matrix[reference]:
        return math.nan
    return max((error for error in matrix[reference, mode].values() if not math.isnan(error)), default=math.nan)
