"""What one pass over a tensor gives, and how the results of its parts become the result of the whole."""

from __future__ import annotations

from dataclasses import dataclass

from layertap.site import Statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Statistics, fingerprint and sketch of one tensor, or of a part of it."""

    statistics: Statistics
    fingerprint: int
    sketch: bytes
    """251 little-endian float32; empty where only statistics were asked for."""
