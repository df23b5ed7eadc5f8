"""The fingerprint of bytes that lie in memory or in a mapped file, without torch: what a reader checks them by.

fingerprint(raw, dtype)   the same 64 bits that `measure` gives of the tensor (definition.py)
plain(raw, dtype)         the same, with numpy alone
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from layertap.measure.definition import fingerprint_of
from layertap.measure.pair import native as pair_native
from layertap.messages import tr

Bytes = npt.NDArray[np.uint8]

BLOCK = 1 << 22
"""Bytes that numpy widens at a time."""
_SIZES = dict.fromkeys(("uint16", "int16", "float16", "bfloat16", "complex32", "bits16"), 2)
_SIZES |= dict.fromkeys(("uint32", "int32", "float32", "uint64", "int64", "float64", "complex64", "complex128"), 4)


def word_size(dtype: str) -> int:
    """Bytes of a word of the fingerprint: of an element, or of its real part, and at most 4.

    >>> word_size("bfloat16"), word_size("complex128"), word_size("float8_e5m2")
    (2, 4, 1)
    """
    return _SIZES.get(dtype, 1)


def fingerprint(raw: Bytes, dtype: str, *, offset: int = 0) -> int:
    """The fingerprint of a tensor's bytes; `offset` is the index of their first word in the tensor they are a part of.

    >>> whole = np.float32([1, 2, 3]).view(np.uint8)
    >>> parts = fingerprint(whole[:4], "float32") + fingerprint(whole[4:], "float32", offset=1)
    >>> parts % 2**64 == fingerprint(whole, "float32")
    True
    """
    size = word_size(dtype)
    if not raw.flags.c_contiguous or raw.size % size:
        raise ValueError(tr("measure.words", size=raw.size, size2=size))
    if pair_native.available():
        return pair_native.fingerprint(raw, size, offset)
    return plain(raw, dtype, offset=offset)


def plain(raw: Bytes, dtype: str, *, offset: int = 0) -> int:
    """The same with numpy alone."""
    size = word_size(dtype)
    blocks = ((begin, raw[begin : begin + BLOCK].view(f"<u{size}")) for begin in range(0, raw.size, BLOCK))
    return sum(fingerprint_of(words, offset + begin // size) for begin, words in blocks) % 2**64
