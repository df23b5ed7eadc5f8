"""Folders and files of tensors that follow no layout: `NAME.pt`, `NAME.npy`, `.safetensors`, and dicts in any of them.

    layer_0.pt  layer_1.npy  lm_head.safetensors       one tensor each: the sites layer_0, layer_1, lm_head
    hidden.pt                                          a dict, a tuple or a nest of them: see values.py
    outputs.json                                       Polygraphy's results or inputs: see polygraphy.py

Nothing is unpickled but plain tensors and containers. What of a folder is not read is in `run.info["unread"]`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layertap.errors import CorruptRun, NotARun
from layertap.files import open_regular, reading
from layertap.formats import polygraphy
from layertap.formats.npy import read_npy
from layertap.formats.safe_load import ForeignFiles, Stamp, listed, load_pt, record_of, regular
from layertap.formats.values import NamedValue, entries, numbers_in
from layertap.messages import tr
from layertap.result import Note
from layertap.site import Record, Site, natural_key
from layertap.store.run import Run

if TYPE_CHECKING:
    import torch

_NUMBER = re.compile(r"(?:^|[._])[0-9]+(?=$|[._])|(?<=[A-Za-z])[0-9]+$")
_END = re.compile(r"embed|norm|head|logits|last_hidden_state|ln_f")

Found = tuple[list[NamedValue], list[str], dict[str, int | float]]


def is_tensor_file(name: str, folder: Path) -> bool:
    """Whether a file of a folder is read here, by its name; JSON only if it looks like Polygraphy's."""
    suffix = Path(name).suffix.lower()
    if name.startswith(".") or suffix not in LOADERS:
        return False
    return suffix != ".json" or polygraphy.is_polygraphy(folder / name)


def read_files(path: str | os.PathLike[str]) -> Run:
    """Reads a folder of such files, or one file; sites are called as the files are, or as their keys.

    run = read_files("dump"); run = read_files("hidden_states.pt")
    """
    source = Path(path)
    foreign = ForeignFiles(source, layout="files")
    if not source.is_dir():
        take_file(foreign, source, "")
        # What a dict or a tuple holds is in its order; a safetensors file is sorted by name.
        return foreign.run(order if source.suffix.lower() == ".safetensors" else None)
    for name in sorted(listed(source), key=natural_key):
        if is_tensor_file(name, source):
            take_file(foreign, source / name)
    return foreign.run(order)


def take_file(
    foreign: ForeignFiles,
    path: Path,
    base: str | None = None,
    *,
    pick: Callable[[Any], Any] = lambda value: value,
    change: Callable[[Record], Record] = lambda record: record,
) -> None:
    """Puts the tensors of one file on the foreign, below the file's own name if no `base` is given.

    `pick` takes what is wanted out of the file's value; `change` may give a record another site or moment.
    """
    own = path.stem.removesuffix("_output")
    loaded = _loaded(foreign)
    name = own if base is None else base
    try:
        before = regular(path)
        found, left_out, numbers = loaded.entries(path, before, name, pick)
    except CorruptRun as error:
        foreign.problems.append(str(error))
        return
    if not found:
        foreign.problems.append(Note("formats.no_tensor", path=path))
    foreign.unread += [f"{path.name}: {text}" for text in left_out]
    foreign.numbers |= numbers
    for place, entry in enumerate(found):
        site = entry.site
        if site.path == "tensor" and not name:
            site = replace(site, path=own)
        elif base is None and len(found) == 1 and entry.asked:
            site = Site(path=own)  # {"hidden_states": tensor} in layer_3.pt is layer_3
        try:
            record = change(record_of(site, entry.tensor, asked=entry.asked, step=entry.step))
        except ValueError as error:
            foreign.problems.append(Note("formats.site_contains", path=path, site=site, error=error))
            foreign.unread.append(f"{path.name}: {site}")
            continue
        foreign.put(record, path, before, partial(loaded.tensor, path, before, name, pick, place))


class _Loaded:
    """The tensors of the file that was loaded last: they are asked for one after the other."""

    def __init__(self) -> None:
        self._key: tuple[Path, Stamp] | None = None
        self._found: Found = ([], [], {})

    def entries(self, path: Path, before: Stamp, name: str, pick: Callable[[Any], Any]) -> Found:
        if self._key != (path, before):
            self._key, self._found = None, ([], [], {})  # never two files at a time
            self._found = _entries(path, name, pick)
            self._key = (path, before)
        return self._found

    def tensor(self, path: Path, before: Stamp, name: str, pick: Callable[[Any], Any], place: int) -> torch.Tensor:
        return self.entries(path, before, name, pick)[0][place].tensor


def _loaded(foreign: ForeignFiles) -> _Loaded:
    if not isinstance(foreign.loaded, _Loaded):
        foreign.loaded = _Loaded()
    return foreign.loaded


def _entries(path: Path, name: str, pick: Callable[[Any], Any]) -> Found:
    found: list[NamedValue] = []
    left_out: list[str] = []
    numbers: dict[str, int | float] = {}
    for step, value in LOADERS[path.suffix.lower()](path):
        picked = pick(value)
        here, out = entries(picked, name)
        found += [replace(entry, step=step) for entry in here]
        left_out += out
        numbers |= numbers_in(picked, name)
    return found, left_out, numbers


Steps = list[tuple[int, Any]]


def _load_pt(path: Path) -> Steps:
    return [(0, load_pt(path))]


def _load_npy(path: Path) -> Steps:
    with reading(str(path), tr("formats.not_array")), open_regular(path) as raw:
        return [(0, read_npy(raw, str(path), regular(path)[1]))]


def _load_safetensors(path: Path) -> Steps:
    from safetensors.torch import load_file

    regular(path)
    with reading(str(path), tr("formats.not_safetensors")):
        return [(0, load_file(path))]


LOADERS: dict[str, Callable[[Path], Steps]] = {
    ".pt": _load_pt,
    ".pth": _load_pt,
    ".npy": _load_npy,
    ".safetensors": _load_safetensors,
    ".json": polygraphy.load,
}
"""How a file is loaded, by its suffix: one value for each step. None of them runs code."""


def read_runner(path: Path, runner: str) -> Run:
    """Reads one runner of Polygraphy's results, where a file holds several: `file.json#runner`."""
    names = polygraphy.runners(path)
    if runner not in names:
        raise NotARun(tr("formats.no_runner", path=path, runner=runner, value=", ".join(names) or "none"))
    foreign = ForeignFiles(path, layout="files", name=f"{path}#{runner}")
    take_file(foreign, path, "", pick=partial(polygraphy.only, runner))
    return foreign.run()


def order(record: Record) -> tuple[Any, ...]:
    """Inputs, the embedding, layers by number, the final norm, the head: files do not say in which order they came."""
    path = record.site.path
    last = path.rpartition(".")[2]
    if record.site.role == "input" and not path:
        place = 0
    elif _NUMBER.search(path):
        place = 2
    elif not _END.search(last):
        place = 3
    else:
        place = 1 if "embed" in last else 5 if "head" in last or "logits" in last else 4
    return place, natural_key(path), record.site.role != "input", natural_key(str(record.site))
