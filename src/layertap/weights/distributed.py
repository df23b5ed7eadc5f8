"""torch.distributed.checkpoint folders: `.metadata` is a pickle of few, known classes, read by a restricted reader."""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from pathlib import Path
from typing import Any

import torch

from layertap.errors import BadArgument
from layertap.files import check_crcs, open_regular, read_bytes, reading, too_large
from layertap.messages import tr
from layertap.weights.entries import Entry

_PUTS = ("PUT", "BINPUT", "LONG_BINPUT")
_CLASSES = {
    "torch.distributed.checkpoint.metadata": frozenset(
        {"Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties"}
        | {"MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING"}
    ),
    "torch.distributed.checkpoint.filesystem": frozenset({"_StorageInfo"}),
    "torch.distributed.checkpoint._fsspec_filesystem": frozenset(),
    "torch": frozenset({"Size", "device", "strided"}),
    "torch.serialization": frozenset({"_get_layout"}),
    "collections": frozenset({"OrderedDict"}),
    "pathlib": frozenset({"PosixPath", "PurePosixPath", "Path"}),
}


class _ShardReader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        dtype = getattr(torch, name, None) if module == "torch" else None
        if isinstance(dtype, torch.dtype) or name in _CLASSES.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(tr("checkpoint.forbidden", name=f"{module}.{name}"))


def _check_memo(raw: bytes) -> None:
    """Refuses a pickle that numbers an object beyond its own length: the unpickler would make a list of that many."""
    for operation, argument, _ in pickletools.genops(raw):
        if operation.name in _PUTS and not (isinstance(argument, int) and argument <= len(raw)):
            raise pickle.UnpicklingError(tr("checkpoint.memo", index=argument))


def distributed_entries(folder: Path) -> dict[str, Entry]:
    """The tensors of such a folder, each put together from its chunks when it is read."""
    with reading(f"{folder}/.metadata", tr("checkpoint.not_distributed"), BadArgument):
        raw = read_bytes(folder / ".metadata")
        _check_memo(raw)
        metadata = _ShardReader(io.BytesIO(raw)).load()
        described = dict(metadata.state_dict_metadata)
        stored = dict(metadata.storage_data)
        found: dict[str, Entry] = {}
        for name, item in described.items():
            size = getattr(item, "size", None)
            if size is None:
                continue  # not a tensor: a step count, a random state
            dtype = item.properties.dtype
            shape = tuple(int(length) for length in size)
            chunks = [(key, info) for key, info in stored.items() if key.fqn == name]
            short = name.removeprefix("model.") if all(str(n).startswith("model.") for n in described) else name

            def blocks(name: str = name, shape: Any = shape, dtype: Any = dtype, chunks: Any = chunks) -> Any:
                yield _assembled(folder, name, shape, dtype, chunks)

            found[short] = Entry(name=short, shape=shape, dtype=dtype, blocks=blocks)
    if not found:
        raise BadArgument(tr("checkpoint.no_named", folder=folder))
    return found


def _assembled(folder: Path, name: str, shape: tuple[int, ...], dtype: torch.dtype, chunks: list[Any]) -> torch.Tensor:
    with reading(f"{folder}: {name}", tr("checkpoint.not_distributed"), BadArgument):
        stored = sum(_file(folder, name, info).stat().st_size for _, info in chunks)
        if why := too_large(math.prod(shape) * dtype.itemsize, stored):
            raise BadArgument(f"{folder}: {name}: {why}")
        whole = torch.zeros(shape, dtype=dtype)
        there = torch.zeros(shape, dtype=torch.bool)  # parts may lie over each other and leave another part out
        for key, info in chunks:
            with open_regular(_file(folder, name, info)) as file:
                file.seek(info.offset)
                held = io.BytesIO(file.read(info.length))
            check_crcs(held)
            held.seek(0)
            part = torch.load(held, map_location="cpu", weights_only=True)
            offset = tuple(key.offset or (0,) * len(shape))
            place = tuple(slice(start, start + length) for start, length in zip(offset, part.shape, strict=True))
            whole[place] = part
            there[place] = True
        if (filled := int(there.sum())) != whole.numel():
            raise BadArgument(tr("checkpoint.no_shard", folder=folder, name=name, count=filled, total=whole.numel()))
    return whole


def _file(folder: Path, name: str, info: Any) -> Path:
    """The file of a chunk, which is in the checkpoint's own folder."""
    path: Path = folder / info.relative_path
    if Path(info.relative_path).name != str(info.relative_path) or not path.is_file():
        raise BadArgument(tr("checkpoint.lies_in", folder=folder, name=name, file=info.relative_path))
    return path
