"""Anything that holds parameters: a live model, a state dict, a checkpoint file or folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from layertap.errors import BadArgument
from layertap.files import parse_json, read_bytes
from layertap.messages import tr
from layertap.weights.checkpoints import checkpoint_entries
from layertap.weights.entries import BLOCK, Entry, Weights
from layertap.weights.fingerprints import Fingerprints, as_weights, read_fingerprints


def open_weights(source: Any) -> Weights:
    """The tensors of `source` by name, none of them read yet."""
    if isinstance(source, Weights):
        return source
    if isinstance(source, nn.Module):
        return _model(source)
    if isinstance(source, Mapping):
        found = {name: tensor for name, tensor in source.items() if isinstance(tensor, torch.Tensor)}
        if not found:
            raise BadArgument(tr("checkpoint.no_tensors"))
        return Weights(
            name=tr("checkpoint.state_dict"), entries={name: of_tensor(name, tensor) for name, tensor in found.items()}
        )
    if isinstance(source, Fingerprints):
        return as_weights(source)
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if path.suffix == ".json" and not path.name.endswith(".index.json") and path.is_file():
            return as_weights(read_fingerprints(path))
        return Weights(name=str(path), entries=checkpoint_entries(path), config=_config(path))
    raise BadArgument(tr("checkpoint.sides", name=type(source).__name__))


def _model(model: nn.Module) -> Weights:
    entries: dict[str, Entry] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        entries[name] = of_tensor(name, parameter)
    for path, module in model.named_modules(remove_duplicate=False):
        for own, buffer in module._buffers.items():
            if buffer is not None:
                name = f"{path}.{own}" if path else own
                persistent = own not in module._non_persistent_buffers_set
                entries[name] = of_tensor(name, buffer, parameter=False, persistent=persistent)
    return Weights(name=type(model).__name__, entries=entries, model=model, config=_model_config(model))


def _model_config(model: nn.Module) -> dict[str, Any]:
    config = getattr(model, "config", None)
    to_dict = getattr(config, "to_dict", None)
    return dict(to_dict()) if callable(to_dict) else {}


def of_tensor(name: str, tensor: torch.Tensor, *, parameter: bool = True, persistent: bool = True) -> Entry:
    """A tensor of this process."""
    plain = tensor.detach()
    quantised = ""
    if plain.is_quantized or (type(plain) not in (torch.Tensor, nn.Parameter) and hasattr(plain, "dequantize")):
        quantised = str(plain.dtype) if plain.is_quantized else f"{type(plain).__name__} {_levels(plain)}".strip()
        plain = plain.dequantize()  # a quantised tensor, of torch or of a subclass: what it stands for
    meta = plain.is_meta
    # Views of one storage are tied only where they are the same view.
    storage = None if meta else (plain.untyped_storage()._cdata, plain.storage_offset(), plain.shape, plain.stride())
    return Entry(
        name=name,
        shape=tuple(plain.shape),
        dtype=plain.dtype,
        blocks=lambda: _pieces(plain),
        storage=storage,
        parameter=parameter,
        persistent=persistent,
        meta=meta,
        live=plain if not meta and plain.device.type == "cpu" and plain.is_contiguous() else None,
        quantised=quantised,
    )


def _levels(tensor: torch.Tensor) -> str:
    """The dtype of the small numbers inside, for the evidence."""
    inner = [getattr(tensor, name, None) for name in ("qdata", "int_data")]
    held = next((part for part in inner if isinstance(part, torch.Tensor)), None)
    return str(held.dtype).removeprefix("torch.") if held is not None else ""


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    step = max(BLOCK // max(tensor.dtype.itemsize, 1), 1)
    if tensor.is_contiguous():
        for part in tensor.reshape(-1).split(step):
            yield part.cpu()
    elif tensor.ndim and tensor.numel() > step:
        for row in tensor:
            yield from _pieces(row)
    else:
        yield tensor.reshape(-1).cpu()


def _config(path: Path) -> dict[str, Any]:
    file = (path if path.is_dir() else path.parent) / "config.json"
    try:
        found = parse_json(read_bytes(file))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
