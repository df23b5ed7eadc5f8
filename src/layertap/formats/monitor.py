"""The layout of the users' training monitor: one `epoch_{e}_batch_{b}_{alias}.pt` for each recorded output.

Each holds a dict: epoch, batch_idx, layer, alias, output_shape, output (a tensor, or a tuple of tensors and None).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layertap.errors import BadArgument, CorruptRun
from layertap.formats.choosing import ChoiceRow, choose
from layertap.formats.naming import with_given
from layertap.formats.safe_load import ForeignFiles, Stamp, leaves, listed, load_pt, record_of, regular
from layertap.formats.staging import Staging
from layertap.messages import tr
from layertap.result import Note, jsonable
from layertap.site import Record, Site, natural_key
from layertap.store.run import Run

if TYPE_CHECKING:
    import torch

KEYS = ("epoch", "batch_idx", "layer", "alias", "output_shape", "output")
_FILE = re.compile(r"epoch_(\d+)_batch_(\d+|[A-Za-z]+)_(.+)\.pt", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Output:
    """What is remembered of one file once its tensors are measured and dropped."""

    path: Path
    before: Stamp
    epoch: int
    batch: int | None
    layer: str
    alias: str
    records: dict[str, Record]
    length: int
    """Of a tuple; 0 for a lone tensor."""

    @property
    def moment(self) -> tuple[int, int, int]:
        # What was made of a whole epoch comes when its batches are done.
        return self.epoch, self.batch is None, self.batch or 0


def is_monitor_file(name: str) -> bool:
    """Whether a file name belongs to this layout.

    >>> is_monitor_file("epoch_3_batch_0_attention_weights.pt"), is_monitor_file("layer_3_output.pt")
    (True, False)
    """
    return _FILE.fullmatch(name) is not None


def read_monitor(path: str | os.PathLike[str]) -> Run:
    """Reads such a folder: the site is the layer's name, a leaf is a place in the tuple, a step is an (epoch, batch).

        run = read_monitor("monitor_outputs")
        run["transformer.layers.0.self_attn:output.1"].at(epoch=5, batch=0).tensor()

    Steps are numbered in the order of (epoch, batch). A layer recorded under several aliases has them as calls 0, 1,
    ...; `run.info["aliases"]` says which. Order within a step is not in the files; it is taken from the names.
    """
    folder = Path(path)
    foreign = ForeignFiles(folder, layout="monitor")
    found = [_open(foreign, folder / name) for name in sorted(listed(folder), key=natural_key) if is_monitor_file(name)]
    outputs = sorted((output for output in found if output is not None), key=lambda output: natural_key(output.layer))
    steps = {moment: step for step, moment in enumerate(sorted({output.moment for output in outputs}))}
    aliases: dict[str, list[str]] = {}
    for output in sorted(outputs, key=lambda output: natural_key(output.alias)):
        names = aliases.setdefault(output.layer, [])
        if output.alias not in names:
            names.append(output.alias)
    lengths: dict[str, int] = {}
    for output in outputs:
        step, call = steps[output.moment], aliases[output.layer].index(output.alias)
        site = Site(path=output.layer, call=call)
        lengths[f"{step}/{site}"] = output.length
        for leaf, record in output.records.items():
            moved = replace(record, site=replace(site, leaf=leaf), step=step, epoch=output.epoch, batch=output.batch)
            foreign.put(moved, output.path, output.before, partial(_leaf, output.path, leaf))
    known = {
        str(Site(path=layer, call=call)): name for layer, names in aliases.items() for call, name in enumerate(names)
    }
    return foreign.run(_order, aliases=known, lengths=lengths)


def write_monitor(run: Run, out: Staging, *, names: Mapping[str, str]) -> None:
    """Writes one file for each call of a module at each step."""
    import torch

    rows = choose(run, out)
    groups: dict[tuple[int, str, int], list[ChoiceRow]] = {}
    for row in rows:
        groups.setdefault((row.record.step, row.record.site.path, row.record.site.call), []).append(row)
    paths = list(dict.fromkeys(row.record.site.path for row in rows))
    aliases = _aliases(run, groups, with_given({}, names, paths))
    moments = _moments(rows, out)
    lengths = _known(run, "lengths")
    out.total = len(groups)
    for (step, path, call), group in groups.items():
        kept = {row.record.site.leaf: row.tensor() for row in group if row.kept}
        for row in group:
            if not row.kept:
                out.leave_out(row.record.site, row.why_not)
        if not kept:
            continue
        site = Site(path=path, call=call)
        length = lengths.get(f"{step}/{site}")
        output = rebuild(kept, length if isinstance(length, int) and 0 < length < 10_000 else 0)
        epoch, batch = moments[step]
        alias = aliases[path, call]
        name = file_name(epoch, batch, alias)
        if name in out.files:  # a validation pass, or two paths that differ in signs a file name cannot have
            alias = f"{alias}_step{step}_{len(out.files)}"
            name = file_name(epoch, batch, alias)
            out.note(Note("formats.alias_taken", site=site, step=step, epoch=epoch, batch=batch, alias=alias))
        saved = (epoch, batch, path, alias, shapes(output), output)
        with out.file(name) as file:
            torch.save(dict(zip(KEYS, saved, strict=True)), file)
    if not out.files:
        raise BadArgument(tr("formats.no_output_kept", name=run.name))


def rebuild(leaves: Mapping[str, Any], length: int = 0) -> Any:
    """A value from its leaves by key path: a tensor, a tuple with None in the gaps, or a dict.

    >>> rebuild({"0": "a", "2": "c"}), rebuild({"0": "a"}, length=2), rebuild({"x.0": "a"}), rebuild({"": "a"})
    (('a', None, 'c'), ('a', None), {'x': ('a',)}, 'a')
    """
    if "" in leaves:
        return leaves[""]
    inner: dict[str, dict[str, Any]] = {}
    for path, value in leaves.items():
        head, _, rest = path.partition(".")
        inner.setdefault(head, {})[rest] = value
    built = {head: rebuild(below) for head, below in inner.items()}
    if not all(re.fullmatch("[0-9]{1,4}", head) for head in built):
        return built
    places = {int(head): value for head, value in built.items()}
    return tuple(places.get(place) for place in range(max(length, max(places) + 1)))


def shapes(output: Any) -> Any:
    """`output_shape`: a tensor's shape, or a list of those of a tuple."""
    if isinstance(output, Mapping):
        return {key: shapes(item) for key, item in output.items()}
    return [shapes(item) for item in output] if isinstance(output, (tuple, list)) else _shape(output)


def _shape(leaf: Any) -> list[int] | None:
    # A module may also return numbers and None beside its tensors.
    return list(leaf.shape) if hasattr(leaf, "shape") else None


def _open(foreign: ForeignFiles, path: Path) -> _Output | None:
    return foreign.attempt(partial(_read, foreign), path)


def _read(foreign: ForeignFiles, path: Path) -> _Output:
    before = regular(path)
    value = load_pt(path)
    if not isinstance(value, Mapping):
        raise CorruptRun(tr("formats.expected_dict_with", path=path, name=type(value).__name__, keys=", ".join(KEYS)))
    missing = [key for key in KEYS if key not in value and key not in ("alias", "output_shape")]
    if missing:
        raise CorruptRun(tr("formats.missing_keys", path=path, missing=", ".join(missing), keys=", ".join(KEYS)))
    epoch, batch, layer = value["epoch"], value["batch_idx"], value["layer"]
    alias = value.get("alias") or layer
    if type(epoch) is not int or type(batch) not in (int, type(None)) or not isinstance(layer, str):
        raise CorruptRun(tr("formats.epoch_batch_layer", path=path, epoch=epoch, batch=batch, layer=layer))
    name = _FILE.fullmatch(path.name)
    assert name is not None
    if int(name[1]) != epoch or (name[2].isdigit() and int(name[2]) != batch):
        foreign.problems.append(
            Note("formats.name_and_file", path=path, name=name[1], name2=name[2], epoch=epoch, batch=batch)
        )
    try:
        records = {
            leaf: record_of(Site(path=layer, leaf=leaf), tensor) for leaf, tensor in leaves(value["output"]).items()
        }
    except ValueError as error:
        raise CorruptRun(tr("formats.output_contains", path=path, error=error)) from None
    if not records:
        raise CorruptRun(tr("formats.output_no_tensor", path=path))
    stated, found = value.get("output_shape"), shapes(value["output"])
    if stated is not None and jsonable(stated) != found:
        foreign.problems.append(Note("formats.output_shape", path=path, stated=jsonable(stated), found=found))
    length = len(value["output"]) if isinstance(value["output"], (tuple, list)) else 0
    return _Output(path, before, epoch, batch, layer, str(alias), records, length)


def _leaf(path: Path, leaf: str) -> torch.Tensor:
    return leaves(load_pt(path)["output"])[leaf]


def _order(record: Record) -> tuple[Any, ...]:
    return natural_key(record.site.path), record.site.call


def _known(run: Run, name: str) -> Mapping[str, Any]:
    found = run.info.get(name)
    return found if run.info.get("layout") == "monitor" and isinstance(found, Mapping) else {}


def _aliases(
    run: Run, groups: Mapping[tuple[int, str, int], list[ChoiceRow]], given: Mapping[str, str]
) -> dict[tuple[str, int], str]:
    known = _known(run, "aliases")
    found = {}
    for _, path, call in groups:
        default = known.get(str(Site(path=path, call=call))) or (
            f"{path or 'model'}_call{call}" if call else path or "model"
        )
        found[path, call] = (f"{given[path]}_call{call}" if call else given[path]) if path in given else str(default)
    return found


def _moments(rows: list[ChoiceRow], out: Staging) -> dict[int, tuple[int, int]]:
    """The epoch and batch of each step; where they are not known, epoch 1 and the step's number within its epoch."""
    moments: dict[int, tuple[int, int]] = {}
    counts: dict[int, int] = {}
    for row in rows:
        record = row.record
        if record.step in moments:
            continue
        epoch = 1 if record.epoch is None else record.epoch
        counts[epoch] = counts.get(epoch, -1) + 1
        moments[record.step] = (epoch, counts[epoch] if record.batch is None else record.batch)
        if record.epoch is None or record.batch is None:
            missing = [name for name in ("epoch", "batch") if getattr(record, name) is None]
            out.note(Note("formats.no_epoch", missing=" and ".join(missing)))
    return moments


def file_name(epoch: int, batch: int | str, alias: str) -> str:
    """The name of the file that contains one output.

    >>> file_name(5, 0, "attention/out")
    'epoch_5_batch_0_attention_out.pt'
    """
    safe = re.sub(r"[/\\\0]", "_", alias)
    return f"epoch_{epoch}_batch_{batch}_{safe}.pt"
