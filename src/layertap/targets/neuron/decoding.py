"""What came back from the device: which tensor is which site, and which are none. No device, no app, no state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from layertap.errors import NothingCaptured
from layertap.site import Site
from layertap.store.foreign.neuron import no_capture, to_hf

if TYPE_CHECKING:
    import torch

NOTHING = (
    "the device handed out no captures. They are None, without any error, unless the model was compiled with "
    "tensor_capture_config, output_logits=True and an on_device_sampling_config together: "
    "layertap.targets.neuron.prepare(neuron_config, sites) sets all three; then compile again"
)


@dataclass(kw_only=True)
class Decoded:
    """Captures by site, and what is to be said about them."""

    captures: dict[Site, torch.Tensor] = field(default_factory=dict)
    lost: dict[Site, str] = field(default_factory=dict)
    """Asked for, and not captured: placeholders, padding, tensors that did not come."""
    notes: dict[Site, str] = field(default_factory=dict)
    """Captured, but not whole: rank 0's shard; or cut to the true length."""
    manual: list[torch.Tensor] = field(default_factory=list)
    """Registered by hand in the model's source; they have no site."""
    padding: int = 0
    """Places at the end that hold NaN."""


def decode(
    tensors: Sequence[torch.Tensor] | None,
    modules: Sequence[str],
    *,
    capture_inputs: bool = False,
    span: tuple[int, int] | None = None,
    shapes: Mapping[Site, Sequence[int]] | None = None,
    tp_degree: int = 1,
    hidden_size: int | None = None,
) -> Decoded:
    """Lays the tensors beside the modules that were asked for: output, then input, in the order of the configuration.

    `span` is the first and the last true token plus one; what is padded to the bucket's length is cut to it. `shapes`,
    for instance a reference's, tell a rank's shard from a whole tensor; so does `hidden_size`, for decoder layers.
    """
    if not tensors:
        raise NothingCaptured(NOTHING)
    found = Decoded()
    rest = list(tensors)
    for module in modules:
        for role in ("output", "input") if capture_inputs else ("output",):
            site = Site(path=to_hf(module), role=role)
            if not rest:
                found.lost[site] = "no tensor came for it: the compiled model captures fewer modules than are listed"
                continue
            tensor = rest.pop(0)
            why = no_capture(tensor)
            if why:
                found.lost[site] = why
                continue
            tensor, cut = _cut(tensor, span)
            shard = _shard(site, tensor, (shapes or {}).get(site), tp_degree, hidden_size)
            if cut or shard:
                found.notes[site] = "; ".join(part for part in (cut, shard) if part)
            found.captures[site] = tensor
    for tensor in rest:
        if no_capture(tensor).startswith("NaN"):
            found.padding += 1
        else:
            found.manual.append(tensor)
    return found


def _cut(tensor: torch.Tensor, span: tuple[int, int] | None) -> tuple[torch.Tensor, str]:
    if span is None or tensor.ndim < 2 or tensor.shape[1] <= 1 or tensor.shape[1] < span[1]:
        return tensor, ""
    length = tensor.shape[1]
    if span == (0, length):
        return tensor, ""
    return tensor[:, span[0] : span[1]], f"padded to {length} tokens, cut to the true {span[1] - span[0]}"


def _shard(
    site: Site, tensor: torch.Tensor, shape: Sequence[int] | None, tp_degree: int, hidden_size: int | None
) -> str:
    if tp_degree < 2:
        return ""
    if shape is not None and len(shape) == tensor.ndim:
        split = [axis for axis, (whole, part) in enumerate(zip(shape, tensor.shape, strict=True)) if whole != part]
        if len(split) == 1 and shape[split[0]] == tensor.shape[split[0]] * tp_degree:
            return f"rank 0's shard, 1 of {tp_degree} along axis {split[0]}"
    elif hidden_size is not None and tensor.ndim and tensor.shape[-1] * tp_degree == hidden_size:
        return f"rank 0's shard, 1 of {tp_degree} along the last axis"
    return ""
