"""Element types by torch's name: their size, their name in safetensors, and how numpy reads them without torch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from layertap.errors import RunError
from layertap.measure.float8 import float8_values
from layertap.messages import tr

SIZES = {
    **dict.fromkeys(("bool", "uint8", "int8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("uint16", "int16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("uint32", "int32", "float32", "complex32"), 4),
    **dict.fromkeys(("uint64", "int64", "float64", "complex64"), 8),
    "complex128": 16,
}
"""Bytes of an element. A type that is not here (packed 4-bit, quantised) is stored as the bytes it consists of."""

# Only the names that safetensors 0.5 knows: one newer name makes the whole file unreadable to an older library.
SAFETENSORS = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
}
"""torch's name → safetensors' name. What is missing here is stored as U8."""

Bytes = npt.NDArray[np.uint8]


def stored_as(dtype: str, shape: tuple[int, ...], nbytes: int) -> tuple[str, tuple[int, ...]]:
    """The type and shape under which a tensor is in a safetensors file.

    >>> stored_as("bfloat16", (2, 3), 12)
    ('BF16', (2, 3))
    >>> stored_as("complex128", (2, 3), 96)
    ('U8', (96,))
    """
    name = SAFETENSORS.get(dtype)
    return (name, shape) if name else ("U8", (nbytes,))


def size_of(dtype: str, shape: tuple[int, ...]) -> int | None:
    """How many bytes a tensor has; None where the type's size is not known here."""
    size = SIZES.get(dtype)
    return None if size is None else size * math.prod(shape)


def to_numpy(raw: Bytes, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """The bytes as an array; where numpy has no type they are widened, to float32 (bfloat16, fp8) or complex64."""
    if dtype == "bfloat16":
        flat: npt.NDArray[Any] = (raw.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif dtype.startswith("float8_") and dtype in SIZES:
        flat = float8_values(dtype)[raw]
    elif dtype == "complex32":
        flat = raw.view("<f2").astype(np.float32).view(np.complex64)
    elif dtype == "bool":
        flat = raw != 0
    elif dtype in SIZES:
        flat = raw.view(np.dtype(dtype).newbyteorder("<"))
    else:
        raise RunError(tr("store.numpy_dtype", dtype=dtype))
    return flat.reshape(shape)
