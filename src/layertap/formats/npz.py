"""The layout of the users' quantisation study: one layer's input and output in every mode, in one .npz.

    first_layer_io_all_modes.npz         mode_fp32_input, mode_fp32_output, mode_2-1_input, ...    compressed
    first_layer_io_all_modes_stats.json  timestamp, model, pretrained_dir, seq_len,
                                         modes -> {input, output} -> shape, first_10, mean, std, min, max

`std` is numpy's (ddof 0). Any other .npz is one run with one site for each array, in the order of the file.
"""

from __future__ import annotations

import json
import os
import re
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from layertap.errors import BadArgument, CorruptRun
from layertap.files import check_unpacked, open_regular, parse_json, read_bytes, reading
from layertap.formats import numbers
from layertap.formats.choosing import ChoiceRow, choose, first_of_each, one_step
from layertap.formats.naming import block_family, with_given
from layertap.formats.npy import read_npy
from layertap.formats.safe_load import ForeignFiles, record_of, regular
from layertap.formats.staging import Staging
from layertap.messages import tr
from layertap.result import Note, jsonable
from layertap.site import Record, Site
from layertap.store.dtype import SIZES
from layertap.store.run import Run

if TYPE_CHECKING:
    import torch

FILE = "first_layer_io_all_modes.npz"
LAYER = "layer_0"
"""The site's path: the file does not say which layer it is, their guide says layer 0."""
ROLES = ("input", "output")
_KEY = re.compile(r"mode_(.+)_(input|output)", re.DOTALL)
_ABOUT = ("timestamp", "model", "pretrained_dir", "seq_len")


def read_npz(path: str | os.PathLike[str], mode: str | None = None) -> Run:
    """Reads one mode of such a file as a run of its own, with the sites `layer_0:input` and `layer_0`.

        reference, candidate = read_npz("io.npz", "fp32"), read_npz("io.npz", "2-1")

    With several modes in the file one must be named; the error lists them. An .npz without modes is read whole.
    """
    file = Path(path)
    before = regular(file)
    keys = _keys(file)
    modes = list(dict.fromkeys(match[1] for key in keys if (match := _KEY.fullmatch(key))))
    if mode is None and len(modes) > 1:
        raise BadArgument(
            tr("formats.which_mode", file=file, count=len(modes), value=", ".join(f"{file}#{name}" for name in modes))
        )
    if mode is not None and mode not in modes:
        there = tr("formats.modes", modes=", ".join(modes)) if modes else tr("formats.no_modes")
        raise BadArgument(tr("formats.no_mode", file=file, mode=mode, there=there))
    mode = mode or next(iter(modes), None)
    foreign = ForeignFiles(file, layout="npz", name=str(file) if mode is None or len(modes) == 1 else f"{file}#{mode}")
    if mode is None:
        wanted = {key: Site(path=key) for key in keys}
    else:
        wanted = {f"mode_{mode}_{role}": Site(path=LAYER, role=role) for role in ROLES}
        wanted = {key: site for key, site in wanted.items() if key in keys}
        strangers = [key for key in keys if not _KEY.fullmatch(key)]
        if strangers:
            foreign.problems.append(Note("formats.of_no_mode", file=file, value=", ".join(strangers[:5])))
    about = _about(foreign) if mode is not None else {}
    for key, site in wanted.items():
        try:
            record = record_of(site, _tensor(file, key))
        except CorruptRun as error:
            foreign.problems.append(str(error))
            continue
        except ValueError as error:
            foreign.problems.append(Note("formats.key_contains", file=file, key=key, error=error))
            continue
        foreign.put(record, file, before, partial(_tensor, file, key))
        if mode is not None:
            _check(foreign, record, about, mode)
    if mode is None:
        return foreign.run()
    return foreign.run(mode=mode, **{name: about[name] for name in _ABOUT if name in about})


def write_npz(runs: Mapping[str, Run], out: Staging, file: str, *, names: Mapping[str, str], step: int | None) -> None:
    """Writes one layer's input and output of each run; `names` says which, `{"model.layers.3:input": "input"}`."""
    chosen = {mode: _input_and_output(run, out, names, step) for mode, run in runs.items()}
    out.total = 2
    about: dict[str, Any] = {"timestamp": time.strftime("%Y-%m-%d %H:%M:%S"), **_origin(chosen, runs), "modes": {}}
    with out.file(file) as raw, zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for mode, rows in chosen.items():
            about["modes"][mode] = {role: _entry(row.record) for role, row in rows.items()}
            for role, row in rows.items():
                array = row.source.numpy()
                if array.dtype.name != row.record.dtype:
                    out.note(
                        Note("formats.widened", mode=mode, role=role, dtype=row.record.dtype, name=array.dtype.name)
                    )
                # One array at a time: np.savez would hold all modes at once.
                with archive.open(f"mode_{mode}_{role}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)
    with out.file(stats_name(file)) as raw:
        raw.write(json.dumps(jsonable(about), indent=4, allow_nan=False, ensure_ascii=False).encode() + b"\n")


def stats_name(file: str) -> str:
    """The name of the statistics beside an .npz.

    >>> stats_name("io.npz")
    'io_stats.json'
    """
    return f"{file.removesuffix('.npz')}_stats.json"


def _keys(path: Path) -> list[str]:
    with _archive(path) as archive:
        return [member.filename.removesuffix(".npy") for member in archive.infolist()]


def _tensor(path: Path, key: str) -> torch.Tensor:
    import torch

    array = _array(path, key)
    if array.dtype.name not in SIZES:
        raise ValueError(tr("formats.dtype", dtype=array.dtype))
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(array)


def _array(path: Path, key: str) -> npt.NDArray[Any]:
    """One array. Not by `np.load`, which leaves CRCs unread."""
    what = f"{path}: {key}"
    with _archive(path) as archive, reading(what, tr("formats.not_numbers")):
        names = archive.namelist()
        member = archive.getinfo(f"{key}.npy" if f"{key}.npy" in names else key)
        check_unpacked(what, member.file_size, member.compress_size)
        with archive.open(member) as source:
            return read_npy(source, what, member.compress_size)


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    with reading(str(path), tr("formats.not_npz")), open_regular(path) as raw, zipfile.ZipFile(raw) as archive:
        yield archive


def _about(foreign: ForeignFiles) -> Mapping[str, Any]:
    path = foreign.path.with_name(stats_name(foreign.path.name))
    if not path.exists():
        return {}
    try:
        regular(path)
        found = parse_json(read_bytes(path))
    except (OSError, ValueError, CorruptRun):
        foreign.problems.append(Note("formats.not_json", path=path))
        return {}
    return found if isinstance(found, Mapping) else {}


def _check(foreign: ForeignFiles, record: Record, about: Mapping[str, Any], mode: str) -> None:
    given: Any = about
    for key in ("modes", mode, record.site.role):
        given = given.get(key) if isinstance(given, Mapping) else None
    if not isinstance(given, Mapping):
        return
    # Their files are rounded to six decimals.
    wrong = numbers.disagreements(record, given, ddof=0, rounding=1e-6)
    if wrong:
        foreign.problems.append(
            Note(
                "formats.stale_array",
                path=foreign.path.with_name(stats_name(foreign.path.name)),
                mode=mode,
                role=record.site.role,
                wrong="; ".join(wrong),
            )
        )


def _input_and_output(run: Run, out: Staging, names: Mapping[str, str], step: int | None) -> dict[str, ChoiceRow]:
    rows = first_of_each(one_step(choose(run, out, roles=ROLES), step, out), out)
    for row in rows:
        if not row.kept:
            out.leave_out(row.record.site, row.why_not)
    rows = [row for row in rows if row.kept]
    if names:
        if not set(names.values()) <= set(ROLES):
            raise BadArgument(tr("formats.npz_names", names=dict(names), roles=" and ".join(ROLES)))
        by_site = {str(row.record.site): row for row in rows}
        chosen = {name: by_site[site] for site, name in with_given({}, names, list(by_site)).items()}
    else:
        layer = _layer(rows)
        chosen = {row.record.site.role: row for row in rows if row.record.site.path == layer}
    if not chosen:
        raise BadArgument(tr("formats.nothing_kept", name=run.name))
    for role in ROLES:
        if role not in chosen:
            out.note(Note("formats.no_role", name=run.name, role=role))
    for path in dict.fromkeys(row.record.site.path for row in chosen.values()):
        if path != LAYER:
            out.note(Note("formats.the_layer", name=run.name, path=path or tr("formats.model_itself")))
    taken = [row.record.site for row in chosen.values()]
    for row in rows:
        if row.record.site not in taken:
            out.leave_out(row.record.site, Note("formats.one_layer"))
    return {role: chosen[role] for role in ROLES if role in chosen}


def _layer(rows: list[ChoiceRow]) -> str | None:
    """The layer that is meant by default: the first block, or else the first module, best with input and output."""
    roles: dict[str, set[str]] = {}
    for row in rows:
        roles.setdefault(row.record.site.path, set()).add(row.record.site.role)
    family = block_family(list(roles))
    outputs = [path for path, found in roles.items() if "output" in found]

    def rank(path: str) -> tuple[bool, bool]:
        return "input" not in roles[path], family is None or re.fullmatch(re.escape(family) + "[0-9]+", path) is None

    return min(outputs, key=rank, default=next(iter(roles), None))


def _entry(record: Record) -> dict[str, Any]:
    stats = record.statistics
    return {"shape": list(record.shape), "first_10": list(stats.first), **numbers.theirs(stats, ddof=0)}


def _origin(chosen: Mapping[str, Mapping[str, ChoiceRow]], runs: Mapping[str, Run]) -> dict[str, Any]:
    info = next(iter(runs.values())).info
    meta = info.get("meta")
    about = {**(meta if isinstance(meta, Mapping) else {}), **info}
    shape = next(iter(next(iter(chosen.values())).values())).record.shape
    length = shape[1] if len(shape) > 1 else None
    return {
        "model": about.get("model"),
        "pretrained_dir": about.get("pretrained_dir"),
        "seq_len": about.get("seq_len", length),
    }
