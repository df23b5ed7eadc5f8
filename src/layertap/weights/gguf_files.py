"""GGUF files: where each tensor is, read from the header alone; quantised blocks become numbers as they are read.

F32, F16, BF16 and integers need no library. For the block formats the `gguf` package says how they are unpacked, and
what its tensors are called in a model.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from layertap.errors import BadArgument, MissingExtra
from layertap.files import open_regular, reading
from layertap.messages import tr
from layertap.weights.checkpoints import file_blocks
from layertap.weights.entries import BLOCK, Entry, Stored

_PLAIN = {
    0: torch.float32,
    1: torch.float16,
    24: torch.int8,
    25: torch.int16,
    26: torch.int32,
    27: torch.int64,
    28: torch.float64,
    30: torch.bfloat16,
}
"""ggml's types that are a dtype of torch's."""
_SIZES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9
_AXES, _DEPTH = 8, 4


def gguf_entries(path: Path) -> dict[str, Entry]:
    """The tensors of a file under its own names."""
    with reading(str(path), tr("checkpoint.not_gguf"), BadArgument):
        _, places, data = read_header(path)
    size = path.stat().st_size
    found = {}
    for name, (shape, kind, offset) in places.items():
        entry = _entry(path, name, shape, kind, data + offset)
        end = data + offset + _nbytes(path, name, shape, kind)
        if end > size:
            raise BadArgument(tr("checkpoint.ended", path=path, at=size, end=end))
        found[name] = entry
    if not found:
        raise BadArgument(tr("checkpoint.no_tensors", path=path))
    return found


def gguf_names(path: Path) -> Callable[[str], str | None]:
    """What a model calls a tensor → what the file calls it, as the gguf package says; nothing without the package."""
    try:
        import gguf
    except ImportError:
        return lambda _: None
    with reading(str(path), tr("checkpoint.not_gguf"), BadArgument):
        values, places, _ = read_header(path)
    kinds = {text: kind for kind, text in gguf.MODEL_ARCH_NAMES.items()}
    kind = kinds.get(str(values.get("general.architecture")))
    if kind is None:
        return lambda _: None
    numbers = [int(words[1]) for words in (name.split(".") for name in places) if words[0] == "blk" and len(words) > 2]
    table = gguf.get_tensor_name_map(kind, 1 + max(numbers, default=0))
    return lambda name: table.get_name(name, try_suffixes=(".weight", ".bias"))


def read_header(path: Path) -> tuple[dict[str, Any], dict[str, tuple[tuple[int, ...], int, int]], int]:
    """(Numbers and texts, name → (shape, type, offset), where the data begin); lists are passed over."""
    with open_regular(path) as file:
        header = _Header(file, os.fstat(file.fileno()).st_size)
        if file.read(4) != b"GGUF" or header.number("I") not in (2, 3):
            raise ValueError(tr("checkpoint.not_gguf"))
        tensors, pairs = header.count(24), header.count(12)
        values = {}
        for _ in range(pairs):
            key = header.text()
            values[key] = header.value(header.number("I"))
        places = {}
        for _ in range(tensors):
            name, axes = header.text(), header.number("I")
            if axes > _AXES:
                raise ValueError(tr("checkpoint.not_gguf"))
            shape = tuple(header.number("Q") for _ in range(axes))[::-1]  # the axis that lies closest comes first there
            places[name] = shape, header.number("I"), header.number("Q")
        step = values.get("general.alignment", 32)
        step = step if isinstance(step, int) and step > 0 else 32
        return values, places, -(-file.tell() // step) * step


class _Header:
    """Reads little-endian values; a count larger than the file can hold is a ValueError."""

    def __init__(self, file: Any, size: int) -> None:
        self._file, self._size = file, size

    def number(self, kind: str) -> Any:
        return struct.unpack(f"<{kind}", self._file.read(struct.calcsize(f"<{kind}")))[0]

    def count(self, least: int) -> int:
        found = int(self.number("Q"))
        if found * least > self._size:
            raise ValueError(tr("checkpoint.not_gguf"))
        return found

    def text(self) -> str:
        found: bytes = self._file.read(self.count(1))
        return found.decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind != _ARRAY:
            return self.number(_SIZES[kind])
        inner = self.number("I")
        if inner in _SIZES:
            self._file.seek(self.count(struct.calcsize(_SIZES[inner])) * struct.calcsize(_SIZES[inner]), os.SEEK_CUR)
        elif depth < _DEPTH:
            for _ in range(self.count(8)):
                self.value(inner, depth + 1)
        else:
            raise ValueError(tr("checkpoint.not_gguf"))
        return None


def _entry(path: Path, name: str, shape: tuple[int, ...], kind: int, begin: int) -> Entry:
    end = begin + _nbytes(path, name, shape, kind)
    dtype = _PLAIN.get(kind)
    if dtype is not None:
        return Entry(
            name=name,
            shape=shape,
            dtype=dtype,
            blocks=partial(file_blocks, path, begin, end, dtype),
            stored=Stored(path=path, begin=begin, end=end),
        )
    blocks = partial(_unpacked, path, kind, begin, end)
    return Entry(name=name, shape=shape, dtype=torch.float32, blocks=blocks, quantised=_type(path, name, kind).name)


def _nbytes(path: Path, name: str, shape: tuple[int, ...], kind: int) -> int:
    count, dtype = math.prod(shape), _PLAIN.get(kind)
    if dtype is not None:
        return count * dtype.itemsize
    values, size = _package(path).GGML_QUANT_SIZES[_type(path, name, kind)]
    return count // int(values) * int(size)


def _type(path: Path, name: str, kind: int) -> Any:
    gguf = _package(path)
    try:
        return gguf.GGMLQuantizationType(kind)
    except ValueError:
        raise BadArgument(tr("checkpoint.gguf_type", path=path, name=name, type=kind)) from None


def _package(path: Path) -> Any:
    try:
        import gguf
    except ImportError as error:
        raise MissingExtra(tr("checkpoint.gguf_extra", path=path)) from error
    return gguf


def _unpacked(path: Path, kind: int, begin: int, end: int) -> Iterator[torch.Tensor]:
    """The numbers that the blocks represent, some whole blocks at a time."""
    gguf = _package(path)
    own = gguf.GGMLQuantizationType(kind)
    values, size = gguf.GGML_QUANT_SIZES[own]
    step = max(BLOCK // (4 * values), 1) * size
    for start in range(begin, end, step):
        parts = list(file_blocks(path, start, min(start + step, end), torch.uint8))
        raw = torch.cat(parts).numpy().reshape(-1, size)
        try:
            found = gguf.dequantize(raw, own)
        except NotImplementedError:
            raise BadArgument(tr("checkpoint.gguf_type", path=path, name="", type=own.name)) from None
        yield torch.from_numpy(found.reshape(-1).astype("float32", copy=False))
