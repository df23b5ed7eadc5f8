"""What came back from the device: which tensor is which site, and which are none. No device, no app, no state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from layertap.errors import NothingCaptured
from layertap.formats.neuron import is_padding, no_capture, to_hf
from layertap.messages import tr
from layertap.result import Note, joined
from layertap.site import Sharding, Site
from layertap.targets.neuron.layout import Asked, Compiled, place, split_qkv

if TYPE_CHECKING:
    import torch

NOTHING = "neuron.nothing"
_LATER = "neuron.later"


@dataclass(kw_only=True)
class Decoded:
    """Captures by site, and what is to be said about them."""

    captures: dict[Site, torch.Tensor] = field(default_factory=dict)
    shardings: dict[Site, Sharding] = field(default_factory=dict)
    """Of captures that are a part of the whole tensor: which part."""
    lost: dict[Site, str] = field(default_factory=dict)
    """Asked for, and not captured: placeholders, padding, tensors that did not come."""
    notes: dict[Site, str] = field(default_factory=dict)
    """Captured, but not whole: rank 0's shard; or cut to the true length."""
    manual: list[torch.Tensor] = field(default_factory=list)
    """Registered by hand in the model's source; they have no site."""
    padding: int = 0
    """Places at the end that contain NaN."""


def decode(
    tensors: Sequence[torch.Tensor] | None,
    modules: Sequence[str],
    *,
    capture_inputs: bool = False,
    compiled: Compiled | None = None,
    asked: Asked | None = None,
) -> Decoded:
    """Lays the tensors beside the modules that were asked for: output, then input, in the order of the configuration.

    `compiled` names the tensors that are rank 0's shards, `asked` how many tokens are true.
    """
    if not tensors:
        raise NothingCaptured(tr(NOTHING))
    compiled = compiled or Compiled()
    found = Decoded()
    rest = list(tensors)
    for module in modules:
        for role in ("output", "input") if capture_inputs else ("output",):
            site = Site(path=to_hf(module), role=role)
            if not rest:
                _lose(found, site, Note("neuron.no_tensor"))
                continue
            tensor = rest.pop(0)
            why = no_capture(tensor)
            if why:
                _lose(found, site, why)
                continue
            for its, part in _what(site, tensor, compiled, asked, found):
                _keep(found, its, part, compiled, asked)
    for tensor in rest:
        if is_padding(tensor):
            found.padding += 1
        else:
            found.manual.append(tensor)
    return found


def _what(
    site: Site, tensor: torch.Tensor, compiled: Compiled, asked: Asked | None, found: Decoded
) -> Iterator[tuple[Site, torch.Tensor]]:
    """The captures in one tensor, each under the name of the module that holds these values elsewhere."""
    head, _, name = site.path.rpartition(".")
    if name == "Wqkv" and site.role == "output":
        split = split_qkv(tensor, compiled)
        if split is None:
            found.notes[site] = Note("neuron.qkv")
            yield site, tensor
            return
        owner = head.removesuffix(".qkv_proj")
        yield from ((Site(path=f"{owner}.{name}_proj"), part) for name, part in zip("qkv", split, strict=True))
    elif compiled.fused_residual and (asked is None or asked.prefill) and _is_layer(site.path):
        if site.role == "output":
            _lose(found, site, Note(_LATER, what=Note("neuron.its_output")))
            yield replace(site, path=f"{site.path}.mlp"), tensor
        elif name == "0":
            yield site, tensor
        else:
            _lose(found, site, Note(_LATER, what=Note("neuron.its_input")))
    else:
        yield site, tensor


def _keep(found: Decoded, site: Site, tensor: torch.Tensor, compiled: Compiled, asked: Asked | None) -> None:
    placed = place(site, tensor, compiled, asked)
    if placed.tensor is None:
        _lose(found, site, placed.note)
        return
    found.captures[site] = placed.tensor
    found.lost.pop(site, None)
    if placed.sharding is not None:
        found.shardings[site] = placed.sharding
    if placed.note:
        found.notes[site] = joined(found.notes[site], placed.note) if site in found.notes else placed.note


def _lose(found: Decoded, site: Site, why: str) -> None:
    # Two modules may represent one site, of which one model runs the one and another the other (`cte_`, `tkg_`).
    if site not in found.captures:
        found.lost.setdefault(site, why)


def _is_layer(path: str) -> bool:
    head, _, number = path.rpartition(".")
    return head.endswith("layers") and number.isdigit()


def layers_of(sites: Mapping[Site, object]) -> list[int]:
    """The numbers of the decoder layers among sites."""
    paths = [site.path for site in sites if site.role == "output" and _is_layer(site.path)]
    return [int(path.rpartition(".")[2]) for path in paths]
