"""What the bytes of the 8-bit floats mean, without torch."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt


@cache
def float8_values(dtype: str) -> npt.NDArray[np.float32]:
    """What each of the 256 bytes means in one of the fp8 types."""
    codes = np.arange(256)
    if dtype == "float8_e8m0fnu":  # an exponent and nothing else: a block's scale
        return np.where(codes == 255, np.nan, np.exp2(codes - 127.0)).astype(np.float32)
    mantissa_bits = 3 if "e4m3" in dtype else 2
    unsigned = dtype.endswith("fnuz")  # finite, unsigned zero: the code of -0 is the only NaN, the bias is one more
    bias = (1 << (6 - mantissa_bits)) - 1 + unsigned
    exponent = (codes & 0x7F) >> mantissa_bits
    fraction = (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    subnormal = exponent == 0
    scale = np.exp2(np.where(subnormal, 1 - bias, exponent - bias))
    values = scale * np.where(subnormal, fraction, 1 + fraction)
    if unsigned:
        values[0x80] = np.nan
    elif dtype == "float8_e4m3fn":
        values[[0x7F, 0xFF]] = np.nan
    else:
        values[[0x7C, 0xFC]] = np.inf
        values[[0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]] = np.nan
    return np.where(codes >= 0x80, -values, values).astype(np.float32)
