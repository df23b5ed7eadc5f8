"""torch's own files, `weights_only=True`: where each tensor is in the archive, none of them loaded."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from layertap.errors import BadArgument
from layertap.files import attempt, check_crcs, open_regular, reading
from layertap.messages import tr
from layertap.weights.entries import Entry, Stored

_BELOW = ("state_dict", "model_state_dict", "model", "module")


def torch_entries(path: Path) -> dict[str, Entry]:
    """The tensors of a file, by name, also below `state_dict`, `model` or `module`, as trainers save them."""
    with reading(str(path), tr("checkpoint.not_file"), BadArgument):
        open_regular(path).close()  # torch would wait on a pipe
    if attempt(lambda: zipfile.is_zipfile(path), str(path), tr("checkpoint.not_weights"), BadArgument):
        attempt(lambda: check_crcs(path), str(path), tr("checkpoint.not_weights"), BadArgument)
    held = _placed(path)
    make: Callable[[str, torch.Tensor], Entry] = _in_memory
    if held is not None:
        make = _reader(path)
    else:
        held = attempt(lambda: _loaded(path), str(path), tr("checkpoint.not_weights"), BadArgument)
    found = {name: make(name, tensor) for name, tensor in _flat(held, "")}
    if not found:
        raise BadArgument(tr("checkpoint.no_tensors", path=path))
    return found


def _placed(path: Path) -> Any:
    """The file's structure with tensors that have a place and contain nothing; None where torch cannot give it."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                return None
        with warnings.catch_warnings(), FakeTensorMode():
            warnings.simplefilter("ignore")
            held = torch.load(path, weights_only=True)
        for _, tensor in _flat(held, ""):
            if getattr(tensor.untyped_storage(), "_checkpoint_offset", None) is None or tensor.is_quantized:
                return None
    except Exception:  # noqa: BLE001  a file of another kind, or a torch without this: read as a whole, or refused there
        return None
    return held


def _reader(path: Path) -> Callable[[str, torch.Tensor], Entry]:
    def entry(name: str, tensor: torch.Tensor) -> Entry:
        storage: Any = tensor.untyped_storage()
        size, shape, stride = tensor.element_size(), tuple(tensor.shape), tensor.stride()
        extent = 1 + sum((length - 1) * step for length, step in zip(shape, stride, strict=True))
        begin = int(storage._checkpoint_offset) + int(tensor.storage_offset()) * size
        place = Stored(path=path, begin=begin, end=begin + (extent * size if tensor.numel() else 0))
        whole = tensor.is_contiguous()
        dtype = tensor.dtype

        def blocks() -> Iterator[torch.Tensor]:
            from layertap.weights.checkpoints import file_blocks

            parts = file_blocks(path, place.begin, place.end, dtype)
            if whole:
                yield from parts
            else:
                yield torch.cat(list(parts)).as_strided(shape, stride).reshape(-1)

        return Entry(
            name=name,
            shape=shape,
            dtype=dtype,
            blocks=blocks,
            storage=(str(path), begin, shape, stride) if tensor.numel() else None,
            stored=place if whole else None,
        )

    return entry


def _in_memory(name: str, tensor: torch.Tensor) -> Entry:
    from layertap.weights.sources import of_tensor

    return of_tensor(name, tensor)


def _loaded(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:
        return torch.load(path, map_location="cpu", weights_only=True)  # the format before 1.6 cannot be mapped


def _flat(value: Any, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    """A state dict, alone or below one of the names that trainers give it."""
    if not isinstance(value, dict):
        return
    for below in _BELOW:
        if not prefix and isinstance(value.get(below), dict) and any(True for _ in _flat(value[below], below)):
            yield from _flat(value[below], "")
            return
    for key, item in value.items():
        if isinstance(item, torch.Tensor):
            yield str(key), item
        elif isinstance(item, dict) and prefix != "":
            yield from _flat(item, f"{prefix}.{key}")
