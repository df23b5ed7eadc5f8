"""What a definition's `quantize` is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def declared(spec: str | Mapping[str, Any]) -> str:
    """The configuration's name.

    >>> declared("int8_dynamic"), declared({"config": "IntxWeightOnlyConfig", "weight_dtype": "int4"})
    ('int8_dynamic', 'IntxWeightOnlyConfig weight_dtype=int4')
    """
    if isinstance(spec, str):
        return spec
    return " ".join([str(spec["config"]), *(f"{key}={value}" for key, value in spec.items() if key != "config")])
