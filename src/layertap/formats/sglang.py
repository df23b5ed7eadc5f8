"""What SGLang dumps: its dumper's one file for each tensor, and its debug hook's one file for each forward pass.

    step=0___rank=0___dump_index=7___name=attn_output___layer_id=3.pt     {"value": tensor, "meta": {...}}
    TP0_PP0_Rank0_pid17/Pass00000.pt                                      {"model.layers.0.mlp": tensor, ...}

The first is the site layers.3.attn_output, or the module's own path where the hooks were set without touching the code
(`non_intrusive__model.layers.3.mlp.output`). In the second, what is outside of `model` comes after its file has been
written, and is in the next one: it is put back to its own pass.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from layertap.formats.files import take_file
from layertap.formats.safe_load import ForeignFiles, listed
from layertap.formats.values import site_of
from layertap.site import Record, Site, natural_key
from layertap.store.run import Run

_PASS = re.compile(r"Pass(\d+)\.pt")
_RANK = re.compile(r"TP\d+_PP\d+_Rank(\d+)_pid\d+")
_HOOKED = "non_intrusive__"
_HOOK = re.compile(r"(?:(.*?)\.)?(inputs|output)(?:\.(.*))?")
_KNOWN = ("name", "step", "forward_pass_id", "rank", "dump_index", "layer_id", "recompute_status")


def is_dump_file(name: str) -> bool:
    """Whether SGLang's dumper wrote a file, by its name.

    >>> is_dump_file("step=0___rank=0___dump_index=7___name=attn.pt"), is_dump_file("Pass00000.pt")
    (True, False)
    """
    return name.endswith(".pt") and {"name", "dump_index"} <= set(tags_of(name))


def is_passes(folder: Path) -> bool:
    """Whether a folder holds Pass00000.pt ..., or the folders of several ranks with such files."""
    names = listed(folder)
    return any(_PASS.fullmatch(name) for name in names) or any(
        _RANK.fullmatch(name) and (folder / name).is_dir() for name in names
    )


def tags_of(name: str) -> dict[str, str]:
    """The tags in a file name of the dumper.

    >>> tags_of("forward_pass_id=1___rank=0___name=x___dump_index=2.pt")
    {'forward_pass_id': '1', 'rank': '0', 'name': 'x', 'dump_index': '2'}
    """
    parts = [part.partition("=") for part in name.removesuffix(".pt").split("___")]
    return {key: value for key, sign, value in parts if sign}


def read_dumper(path: str | os.PathLike[str]) -> Run:
    """Reads a folder of the dumper's files; the same name twice in a step is a second call."""
    folder = Path(path)
    foreign = ForeignFiles(folder, layout="sglang")
    calls: Counter[tuple[Any, ...]] = Counter()
    files = [(tags_of(name), name) for name in listed(folder) if is_dump_file(name)]
    for tags, name in sorted(files, key=lambda item: (_whole(item[0], "dump_index"), natural_key(item[1]))):
        step = _whole(tags, "step") if "step" in tags else _whole(tags, "forward_pass_id")
        rank = _whole(tags, "rank")
        site = _site(tags)
        call = calls[str(site), step, rank]
        calls[str(site), step, rank] += 1
        take_file(foreign, folder / name, "", pick=_value, change=_changed(site, call, step, rank))
    return foreign.run()


def read_passes(path: str | os.PathLike[str]) -> Run:
    """Reads Pass00000.pt ... of one rank, or of all ranks below a folder."""
    folder = Path(path)
    foreign = ForeignFiles(folder, layout="sglang")
    ranks = [(int(match[1]), folder / name) for name in listed(folder) if (match := _RANK.fullmatch(name))]
    own = _RANK.fullmatch(folder.absolute().name)
    for rank, place in sorted(ranks) or [(int(own[1]) if own else 0, folder)]:
        files = [(int(match[1]), name) for name in listed(place) if (match := _PASS.fullmatch(name))]
        late = True
        for number, name in sorted(files):
            before = len(foreign.rows)
            take_file(foreign, place / name, "", change=_of_pass(number, rank, late=late))
            if number == 0:
                late = all(_inside(record.site) for record, _ in foreign.rows[before:])
    return foreign.run()


def _value(value: Any) -> Any:
    return value["value"] if isinstance(value, Mapping) and set(value) == {"value", "meta"} else value


def _changed(site: Site, call: int, step: int, rank: int) -> Any:
    def change(record: Record) -> Record:
        # A value that is a dict or a tuple has further keys; a lone tensor is called after the file.
        given = record.site
        lone = given.path.startswith("step=") or given.path.startswith("forward_pass_id=")
        leaf = site.leaf if lone else ".".join(part for part in (given.path, given.leaf) if part)
        role = site.role
        asked = site.path != "" or role != "input"
        new = Site(path=site.path, role=role, leaf=leaf, call=call)
        return replace(record, site=new, step=step, rank=rank, asked=asked)

    return change


def _inside(site: Site) -> bool:
    return site.path.startswith("model.") or site.role == "input"


def _of_pass(number: int, rank: int, *, late: bool) -> Any:
    def change(record: Record) -> Record:
        step = number - 1 if late and number and not _inside(record.site) else number
        return replace(record, step=step, rank=rank)

    return change


def _site(tags: Mapping[str, str]) -> Site:
    name = tags["name"]
    if name.startswith(_HOOKED):
        path = name.removeprefix(_HOOKED)
        match = _HOOK.fullmatch(path)
        if match is None:
            return Site(path=path)
        return Site(path=match[1] or "", role="input" if match[2] == "inputs" else "output", leaf=match[3] or "")
    if name in ("input_ids", "attention_mask", "position_ids"):
        return site_of(name)
    more = [f"{key}={value}" for key, value in tags.items() if key not in _KNOWN and not key.endswith("_rank")]
    return Site(path=".".join([*([f"layers.{tags['layer_id']}"] if "layer_id" in tags else []), name, *more]))


def _whole(tags: Mapping[str, str], key: str) -> int:
    text = tags.get(key, "0")
    return int(text) if text.isdigit() else 0
