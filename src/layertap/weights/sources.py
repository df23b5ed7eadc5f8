"""Anything that contains parameters: a live model, a state dict, a checkpoint file or folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
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
            raise BadArgument(tr("audit.empty_mapping"))
        return Weights(
            name=tr("audit.state_dict"), entries={name: of_tensor(name, tensor) for name, tensor in found.items()}
        )
    if isinstance(source, Fingerprints):
        return as_weights(source)
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if path.suffix == ".json" and not path.name.endswith(".index.json") and path.is_file():
            return replace(as_weights(read_fingerprints(path)), source=(str(path),))
        entries = checkpoint_entries(path)
        return Weights(name=str(path), entries=entries, config=_config(path), source=(str(path),), called=_names(path))
    if isinstance(source, (list, tuple)) and source:
        return _joined([open_weights(part) for part in source])
    raise BadArgument(tr("audit.bad_source", type=type(source).__name__))


def _names(path: Path) -> Callable[[str], str | None] | None:
    """How a format that names tensors in its own way calls them."""
    file = next(iter(sorted(path.glob("*.gguf"))), path) if path.is_dir() else path
    if file.suffix != ".gguf":
        return None
    from layertap.weights.gguf_files import gguf_names

    return gguf_names(file)


def _joined(parts: list[Weights]) -> Weights:
    """Several sources as one: shards, or a base and its adapter."""
    entries: dict[str, Entry] = {}
    config: dict[str, Any] = {}
    for part in parts:
        for name, entry in part.entries.items():
            if name in entries:
                raise BadArgument(tr("audit.twice", name=name))
            entries[name] = entry
        config = {**part.config, **config}
    models = [part.model for part in parts if part.model is not None]
    model = models[0] if len(models) == len(parts) == 1 else None
    sources = tuple(path for part in parts for path in part.source) if all(part.source for part in parts) else ()
    return Weights(
        name=tr("audit.sources", count=len(parts)), entries=entries, model=model, config=config, source=sources
    )


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
        entries.update(_packed(path, module))
    return Weights(name=type(model).__name__, entries=entries, model=model, config=_model_config(model))


def _packed(path: str, module: nn.Module) -> dict[str, Entry]:
    """Weights that torch's own quantised modules keep in an object, and give by a call."""
    found: dict[str, Entry] = {}
    for own in ("weight", "bias") if hasattr(module, "_packed_params") else ():
        give = getattr(module, own, None)
        held = give() if callable(give) else None
        if isinstance(held, torch.Tensor):
            name = f"{path}.{own}" if path else own
            found[name] = of_tensor(name, held)
    return found


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
        plain = plain.dequantize()  # a quantised tensor, of torch or of a subclass: what it represents
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
    """What the numbers inside are, for the evidence: by the values that they have, where each is by itself."""
    inner = [getattr(tensor, name, None) for name in ("qdata", "int_data")]
    held = next((part for part in inner if isinstance(part, torch.Tensor)), None)
    if held is None:
        return ""
    if held.dtype.is_floating_point or held.shape != tensor.shape or not held.numel():
        return str(held.dtype).removeprefix("torch.")
    span = int(held.max()) - int(held.min())
    return f"int{max(span.bit_length(), 1)}"


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
    folder, config = path if path.is_dir() else path.parent, {}
    for name in ("config.json", "adapter_config.json"):
        try:
            found = parse_json(read_bytes(folder / name))
        except (OSError, ValueError):
            continue
        config.update(found if isinstance(found, dict) else {})
    return config
