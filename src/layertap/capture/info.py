"""What a run says about its making."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from layertap.artefact import artefact_of, artefacts_in
from layertap.capture.pending_record import dtype_name


def run_info(model: nn.Module, *, kind: str, arguments: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    """For `run.json`."""
    artefact = artefact_of(model)
    return {
        "model": kind,
        "arguments": {name: _plain(value) for name, value in arguments.items()},
        "torch": torch.__version__,
        "parameter_dtypes": sorted({dtype_name(parameter.dtype) for parameter in model.parameters()}),
        "meta": dict(meta),
        "artefact": artefact.format if artefact is not None and artefact.format else None,
    }


def computes_of(model: Any) -> list[str]:
    """The coarser dtypes in which the runtimes of compiled files in a model said that they compute, once they ran."""
    return sorted({dtype for state in artefacts_in(model) for dtype in state.computes_in})


def checking_of(model: Any) -> float:
    """The seconds that compiled files in a model have spent on runs of layertap's own, to check their captures."""
    return sum(state.seconds_checking for state in artefacts_in(model))


def rank() -> int:
    """This process among those that run the model together."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    with contextlib.suppress(ValueError):
        return int(os.environ.get("RANK", "0"))
    return 0


def world_size() -> int:
    """How many processes run the model together."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_world_size())
    with contextlib.suppress(ValueError):
        return int(os.environ.get("WORLD_SIZE", "1"))
    return 1


def _plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return getattr(value, "__name__", None) or repr(value)
