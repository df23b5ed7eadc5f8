"""What is known of each number format: one table for everything that asks how coarse a dtype is."""

from __future__ import annotations

from typing import NamedTuple


class NumberFormat(NamedTuple):
    """How the numbers of a dtype lie on the line."""

    mantissa: int
    """Bits after the point."""
    least_exponent: int
    """Of the smallest normal number."""

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next number."""
        return 2.0**-self.mantissa


_WHOLE = NumberFormat(24, 24)
_LONG = NumberFormat(64, 64)
FORMATS = {
    "float64": NumberFormat(52, -1022),
    "float32": NumberFormat(23, -126),
    "float16": NumberFormat(10, -14),
    "bfloat16": NumberFormat(7, -126),
    "float8_e8m0fnu": NumberFormat(0, -127),
    "float8_e4m3fn": NumberFormat(3, -6),
    "float8_e4m3fnuz": NumberFormat(3, -7),
    "float8_e5m2": NumberFormat(2, -14),
    "float8_e5m2fnuz": NumberFormat(2, -15),
    **dict.fromkeys(("bool", "uint8", "int16", "uint16"), _WHOLE),
    "int8": _WHOLE,
    **dict.fromkeys(("uint32", "int32", "uint64", "int64"), _LONG),
}
"""By torch's name of the dtype. An integer counts as a float whose steps are 1 throughout."""
