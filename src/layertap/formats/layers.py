"""The layout of the users' compiled model: a folder of `layer_{n}_output.pt`, statistics.pt and metadata.pt.

    embedding_output.pt, layer_1_output.pt ... layer_62_output.pt    one tensor each
    layer_0_output.pt ... layer_61_output.pt, final_norm_output.pt   how their GPU script numbers the same layers
    statistics.pt    {"layer_1": {shape, dtype, mean, std, min, max, has_nan, has_inf}}, std as torch gives it (ddof 1)
    metadata.pt      {prompt, input_ids, attention_mask, statistics}

Numbers are kept as they are in the files: which `layer_30` is whose is for the comparison to find out.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layertap.errors import BadArgument, CorruptRun
from layertap.formats import numbers
from layertap.formats.choosing import choose, first_of_each, inputs, one_step
from layertap.formats.files import is_tensor_file, take_file
from layertap.formats.naming import layer_names, with_given
from layertap.formats.safe_load import ForeignFiles, leaves, listed, load_pt, record_of, regular
from layertap.formats.staging import Staging
from layertap.messages import tr
from layertap.result import Note
from layertap.site import Record, Site, natural_key
from layertap.store.run import Run

if TYPE_CHECKING:
    import torch

STATISTICS = "statistics.pt"
METADATA = "metadata.pt"
DDOF = 1
_OTHERS = r"epoch_\d+_batch_|captured_tensors_"
"""How the files of the other layouts begin."""
_FILE = re.compile(rf"(?!{_OTHERS})([^.].*)_output\.pt", re.DOTALL)
INPUTS = ("input_ids", "attention_mask")


def is_layers_file(name: str) -> bool:
    """Whether a file name belongs to this layout.

    >>> is_layers_file("layer_1_output.pt"), is_layers_file("epoch_1_batch_0_attention_output.pt")
    (True, False)
    """
    return name in (STATISTICS, METADATA) or _FILE.fullmatch(name) is not None


def read_layers(path: str | os.PathLike[str]) -> Run:
    """Reads such a folder; sites are called as the files are: `embedding`, `layer_1`, ..., `final_norm`, `logits`.

        run = read_layers("traced_model/test_layers/full_model")
        run["layer_30"].tensor()

    The prompt's ids and mask become the run's inputs. Statistics that are not those of the tensor beside them are named
    in `run.problems`, and so are files that are missing or cannot be read; what only has statistics keeps its numbers.
    """
    folder = Path(path)
    foreign = ForeignFiles(folder, layout="layers")
    files = {match[1]: name for name in listed(folder) if (match := _FILE.fullmatch(name))}
    metadata = _mapping(foreign, METADATA)
    _take_inputs(foreign, metadata)
    statistics = _statistics(foreign, metadata, set(files))
    for name, file in files.items():
        found = _take(foreign, name, folder / file)
        wrong = numbers.disagreements(found, statistics[name], ddof=DDOF) if found and name in statistics else []
        if wrong:
            foreign.problems.append(
                Note("formats.stale", value=folder / STATISTICS, name=name, file=file, wrong="; ".join(wrong))
            )
    for name in listed(folder):
        mine = name in (STATISTICS, METADATA) or name in files.values()
        if is_tensor_file(name, folder) and not mine and not re.match(_OTHERS, name):
            take_file(foreign, folder / name)  # logits.pt, lm_head.npy: whatever is beside them
    have = {record.site.path for record, _ in foreign.rows}
    _take_statistics(foreign, {name: given for name, given in statistics.items() if name not in have}, bool(files))
    prompt = metadata.get("prompt")
    return foreign.run(_order, **({"prompt": prompt} if isinstance(prompt, str) else {}))


def write_layers(run: Run, out: Staging, *, names: Mapping[str, str], step: int | None) -> None:
    """Writes one step of a run as such a folder. Where no tensor was kept, the statistics are written all the same."""
    import torch

    rows = first_of_each(one_step(choose(run, out), step, out), out)
    paths = [row.record.site.path for row in rows]
    named = with_given(layer_names(paths), names, paths)
    if not named:
        raise BadArgument(
            tr("formats.no_blocks", name=run.name, value=", ".join(paths[:8]) or tr("formats.no_outputs"))
        )
    out.total = len(named) + 2
    statistics = {}
    for row in rows:
        site = row.record.site
        name = named.get(site.path)
        if name is None:
            out.leave_out(site, Note("formats.no_place"))
            continue
        statistics[name] = _entry(row.record)
        if not row.kept:
            out.leave_out(site, Note("formats.stats_written", why_not=row.why_not))
            continue
        with out.file(f"{name}_output.pt") as file:
            torch.save(row.tensor(), file)
    with out.file(STATISTICS) as file:
        torch.save(statistics, file)
    with out.file(METADATA) as file:
        torch.save({**_metadata(run, rows[0].record.step, out), "statistics": statistics}, file)


def _metadata(run: Run, step: int, out: Staging) -> dict[str, Any]:
    meta = run.info.get("meta")
    prompt = run.info.get("prompt") or (meta.get("prompt") if isinstance(meta, Mapping) else None)
    found: dict[str, Any] = {"prompt": prompt if isinstance(prompt, str) else None}
    given = inputs(run, step)
    for name in INPUTS:
        row = given.pop(name, None)
        found[name] = row.tensor() if row is not None and row.kept else None
        if row is not None and not row.kept:
            out.leave_out(row.record.site, row.why_not)
    for row in given.values():
        out.leave_out(row.record.site, Note("formats.metadata_place", inputs=" and ".join(INPUTS)))
    return found


def _entry(record: Record) -> dict[str, Any]:
    stats = record.statistics
    return {
        "shape": list(record.shape),
        "dtype": f"torch.{record.dtype}",
        **numbers.theirs(stats, ddof=DDOF),
        "has_nan": stats.nan > 0,
        "has_inf": stats.pos_inf + stats.neg_inf > 0,
    }


def _take(foreign: ForeignFiles, name: str, path: Path) -> Record | None:
    """Puts the tensors of one file on the foreign; gives back the first one's record."""
    try:
        before = regular(path)
        tensors = leaves(load_pt(path))
        records = {leaf: record_of(Site(path=name, leaf=leaf), tensor) for leaf, tensor in tensors.items()}
    except CorruptRun as error:
        foreign.problems.append(str(error))
        return None
    except ValueError as error:
        foreign.problems.append(Note("formats.path_contains", path=path, error=error))
        return None
    if not records:
        foreign.problems.append(Note("formats.no_tensor", path=path))
    for leaf, record in records.items():
        foreign.put(record, path, before, partial(_leaf, path, leaf))
    return next(iter(records.values()), None)


def _leaf(path: Path, leaf: str) -> torch.Tensor:
    return leaves(load_pt(path))[leaf]


def _take_inputs(foreign: ForeignFiles, metadata: Mapping[str, Any]) -> None:
    path = foreign.path / METADATA
    for name in INPUTS:
        if metadata.get(name) is None:
            continue
        try:
            record = record_of(Site(path="", role="input", leaf=name), leaves(metadata[name])[""], asked=False)
        except (KeyError, ValueError):
            foreign.problems.append(
                Note("formats.expected_tensor", path=path, name=name, name2=type(metadata[name]).__name__)
            )
            continue
        foreign.put(record, path, regular(path), partial(_input, path, name))


def _input(path: Path, name: str) -> torch.Tensor:
    tensor: torch.Tensor = load_pt(path)[name]
    return tensor


def _statistics(foreign: ForeignFiles, metadata: Mapping[str, Any], files: set[str]) -> dict[str, Mapping[str, Any]]:
    given: Any = _mapping(foreign, STATISTICS) or metadata.get("statistics") or {}
    found: dict[str, Mapping[str, Any]] = {}
    for key, value in given.items() if isinstance(given, Mapping) else ():
        name = str(key).removesuffix("_output")
        # Their guide calls the embedding layer_0 in some places; a real layer_0 has a file of that name.
        if name == "layer_0" and "layer_0" not in files and "embedding" in files:
            name = "embedding"
        if isinstance(value, Mapping):
            found[name] = value
        else:
            foreign.problems.append(
                Note("formats.expected_dict", value=foreign.path / STATISTICS, name=name, name2=type(value).__name__)
            )
    return found


def _take_statistics(foreign: ForeignFiles, given: Mapping[str, Mapping[str, Any]], some: bool) -> None:
    path = foreign.path / STATISTICS
    for name, entry in given.items():
        shape = numbers.shape_of(entry)
        if shape is None:
            foreign.problems.append(Note("formats.no_shape", path=path, name=name))
            continue
        if some:
            foreign.problems.append(
                Note("formats.no_file", path=foreign.path, name=name, stats_only=tr("formats.stats_only"))
            )
        record = Record(
            site=Site(path=name),
            kind="",
            order=0,
            step=0,
            phase="eval",
            shape=shape,
            dtype=numbers.dtype_of(entry),
            device="unknown",
            statistics=numbers.ours(entry, math.prod(shape), ddof=DDOF),
            fingerprint=0,
            sketch=b"",
        )
        foreign.put_statistics(record)
    if given and not some:
        foreign.problems.append(Note("formats.all_stats_only", path=path, stats_only=tr("formats.stats_only")))


def _mapping(foreign: ForeignFiles, file: str) -> Mapping[str, Any]:
    path = foreign.path / file
    if not path.exists():
        return {}
    foreign.used.add(path)
    value = foreign.attempt(load_pt, path)
    if value is not None and not isinstance(value, Mapping):
        foreign.problems.append(Note("formats.path_expected_dict", path=path, name=type(value).__name__))
    return value if isinstance(value, Mapping) else {}


def _order(record: Record) -> tuple[Any, ...]:
    """Inputs, the embedding, layers by number (what is inside a layer before it), others, the norm, the head."""
    path = record.site.path
    numbered = re.fullmatch(r"layer_([0-9]+)(.*)", path, re.DOTALL)
    if record.site.role == "input":
        place = 0
    elif numbered:
        place = 2
    elif "embed" in path:
        place = 1
    else:
        place = 5 if path in ("logits", "lm_head") else 4 if "norm" in path else 3
    inside = (int(numbered[1]), not numbered[2]) if numbered else (0, False)
    return place, inside, natural_key(path)
