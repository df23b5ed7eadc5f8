"""Checkpoints on disk: safetensors, torch's own files read as weights only, and torch.distributed.checkpoint folders.

Nothing here runs code from a file: safetensors has none, torch files go through `weights_only=True`, and the metadata
of a distributed checkpoint is a pickle of few, known classes, which a restricted reader turns into data.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from layertap.errors import BadArgument
from layertap.files import open_regular, parse_json, read_bytes, reading
from layertap.messages import tr
from layertap.store.tensorfile import read_header
from layertap.weights.entries import BLOCK, Entry, Stored

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "BOOL": torch.bool,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    **({"F8_E8M0": torch.float8_e8m0fnu} if hasattr(torch, "float8_e8m0fnu") else {}),
}
_TORCH = (".bin", ".pt", ".pth", ".ckpt")
_SUFFIXES = ", ".join((*_TORCH, ".gguf"))
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def checkpoint_entries(path: Path) -> dict[str, Entry]:
    """The tensors of a checkpoint file or folder, by name."""
    if not path.exists():
        raise BadArgument(tr("checkpoint.nowhere", path=path))
    if not path.is_dir():
        if path.name.endswith(".index.json"):
            return _indexed(path)
        return _file(path)
    for name in _INDEXES:
        if (path / name).is_file():
            return _indexed(path / name)
    if (path / ".metadata").is_file():
        from layertap.weights.distributed import distributed_entries

        return distributed_entries(path)
    files = sorted(path.glob("*.safetensors")) or sorted(file for file in path.iterdir() if file.suffix in _TORCH)
    files = files or sorted(path.glob("*.gguf"))
    if not files:
        raise BadArgument(tr("checkpoint.none", path=path, suffixes=_SUFFIXES))
    found: dict[str, Entry] = {}
    for file in files:
        for name, entry in _file(file).items():
            if name in found:
                raise BadArgument(tr("checkpoint.twice", path=path, name=name))
            found[name] = entry
    return found


def _indexed(index: Path) -> dict[str, Entry]:
    with reading(str(index), tr("checkpoint.not_index"), BadArgument):
        placed = parse_json(read_bytes(index))["weight_map"]
        files = sorted(set(placed.values()))
    found: dict[str, Entry] = {}
    for name in files:
        if not isinstance(name, str) or Path(name).name != name:
            raise BadArgument(tr("checkpoint.names_elsewhere", index=index, name=repr(name)))
        with reading(f"{index}: {name[:80]!r}", tr("checkpoint.not_name"), BadArgument):
            there = (index.parent / name).is_file()  # a name may be longer than a system allows
        if not there:
            raise BadArgument(tr("checkpoint.incomplete", index=index, name=name))
        held = _file(index.parent / name)
        found.update({tensor: held[tensor] for tensor in held if placed.get(tensor) == name})
    lost = sorted(set(placed) - set(found))
    if lost:
        raise BadArgument(tr("checkpoint.lost", index=index, count=len(lost), first=lost[0]))
    return found


def _file(path: Path) -> dict[str, Entry]:
    if path.suffix == ".safetensors":
        return _safetensors(path)
    if path.suffix in _TORCH:
        from layertap.weights.torch_files import torch_entries

        return torch_entries(path)
    if path.suffix == ".gguf":
        from layertap.weights.gguf_files import gguf_entries

        return gguf_entries(path)
    raise BadArgument(tr("checkpoint.kind", path=path, suffixes=_SUFFIXES))


def _safetensors(path: Path) -> dict[str, Entry]:
    found = {}
    for name, place in read_header(path, str(path)).items():
        dtype = _DTYPES.get(place.dtype)
        if dtype is None:
            raise BadArgument(tr("checkpoint.dtype", path=path, name=name, dtype=place.dtype))
        found[name] = Entry(
            name=name,
            shape=place.shape,
            dtype=dtype,
            blocks=partial(file_blocks, path, place.begin, place.end, dtype),
            storage=(str(path), place.begin, place.end) if place.end > place.begin else None,
            stored=Stored(path=path, begin=place.begin, end=place.end),
        )
    return found


def file_blocks(path: Path, begin: int, end: int, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    # Read, not mapped: the pages of a map count as this process's memory, and a file that shrinks would kill it.
    with open_regular(path, buffering=0) as file:
        file.seek(begin)
        while begin < end:
            size = min(BLOCK, end - begin)
            held = bytearray(size)
            view, got = memoryview(held), 0
            while got < size:
                count = file.readinto(view[got:])
                if not count:
                    raise BadArgument(tr("checkpoint.ended", path=path, at=begin + got, end=end))
                got += count
            begin += size
            yield torch.frombuffer(held, dtype=dtype)
