"""What the Triton kernels share: how the bits of an element, or of two in one word, become a number."""

from __future__ import annotations

from typing import Any

try:
    import triton
    import triton.language as tl
except ImportError:  # no GPU build of torch: `kernel.available` says no, and nothing below is called
    triton = None

FOUND = triton is not None

# One compiled kernel serves all sizes: triton would make others where such a number is 1, or a multiple of 16.
_SIZES = ["count", "full", "width", "rows", "tiles", "segments", "row_folds", "slots", "stride", "programs", "step"]


def jit(function: Any) -> Any:
    """A function of the device; as it is where triton is missing, since it is not called then."""
    if triton is None:
        return function
    return triton.jit(function, do_not_specialize=_SIZES)


@jit
def hash_of(h, SEED: tl.constexpr):  # type: ignore[no-untyped-def]
    h = tl.cast(h, tl.uint32) + SEED
    h = (h ^ (h >> 16)) * 0x85EBCA6B
    h = (h ^ (h >> 13)) * 0xC2B2AE35
    return (h ^ (h >> 16)) | 1


@jit
def value_of(bits, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """Decoded by hand where older chips, or the interpreter, don't know the type."""
    if KIND == "bfloat16":
        value = (bits.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    elif KIND == "float16":
        value = bits.to(tl.float16, bitcast=True).to(tl.float32)
    elif KIND == "float8_e5m2":  # the upper half of a float16
        value = (bits.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)
    elif KIND == "float8_e4m3fn":  # a float16 with fewer digits, the exponent's bias 8 less, and NaN in place of 480
        half = ((bits & 0x80).to(tl.uint16) << 8) | ((bits & 0x7F).to(tl.uint16) << 7)
        number = half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
        value = tl.where((bits & 0x7F) == 0x7F, float("nan"), number)
    elif KIND == "float32":
        value = bits.to(tl.float32, bitcast=True)
    elif KIND == "float64":
        value = bits.to(tl.float64, bitcast=True)
    elif KIND == "int32" or KIND == "int64":
        value = bits.to(tl.float64)
    # A small integer is put into the digits of 2^23, which is then taken away: converting it takes four times as long.
    elif KIND == "int8":
        value = (bits.to(tl.uint32) ^ 0x4B000080).to(tl.float32, bitcast=True) - 8388736.0
    elif KIND == "int16":
        word = bits.to(tl.uint16, bitcast=True).to(tl.uint32)
        value = (word ^ 0x4B008000).to(tl.float32, bitcast=True) - 8421376.0
    else:
        value = (bits.to(tl.uint32) | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0  # uint8, bool
    return value


@jit
def word_of(bits):  # type: ignore[no-untyped-def]
    """The fingerprint's word, as a uint64 whose upper half is known to be zero: the product is one instruction."""
    if bits.dtype == tl.int16:
        word = bits.to(tl.uint16, bitcast=True)
    elif bits.dtype == tl.int32:
        word = bits.to(tl.uint32, bitcast=True)
    else:
        word = bits
    return word.to(tl.uint64)


@jit
def half(words, ODD: tl.constexpr, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """Value and fingerprint word of one of the two 16-bit numbers in each of `words`."""
    bits = words >> 16 if ODD else words & 0xFFFF
    if KIND == "bfloat16":
        value = (bits << 16).to(tl.float32, bitcast=True)
    else:
        value = bits.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    return value, bits.to(tl.uint64)


@jit
def two(ASM: tl.constexpr, left, right):  # type: ignore[no-untyped-def]
    """One instruction for two 16-bit numbers, which triton has no types for."""
    return tl.inline_asm_elementwise(ASM, "=r,r,r", [left, right], dtype=tl.uint32, is_pure=True, pack=1)
