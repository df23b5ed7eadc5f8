"""What a run says of the recording that made it: model, arguments, versions, rank."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from layertap.capture.parcel import dtype_name


def describe(model: nn.Module, arguments: Mapping[str, Any], meta: Mapping[str, Any] | None) -> dict[str, Any]:
    """The part of run.json that the capture knows."""
    return {
        "model": type(model).__qualname__,
        "arguments": _plain(arguments),
        "torch": torch.__version__,
        "parameter_dtypes": sorted({dtype_name(parameter.dtype) for parameter in model.parameters()}),
        "meta": dict(meta or {}),
    }


def _plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return getattr(value, "__name__", None) or repr(value)


def rank() -> int:
    """This process's place in a distributed run; 0 where there is none."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    with contextlib.suppress(ValueError):
        return int(os.environ.get("RANK", "0"))
    return 0
