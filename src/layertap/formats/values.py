"""Tensors in a nested value, each with its site: what a `.pt`, a `.safetensors`, a JSON file or a Python dict holds.

{"model.layers.0": tensor}                       the site model.layers.0
{"layer_0": {"input": tensor, "output": tensor}} layer_0:input and layer_0
{"model.layers.0": (tensor, None)}               model.layers.0:output.0
(tensor, tensor, ...)                            hidden_states.0, hidden_states.1, ...
{"input_ids": tensor}                            no site, but an input of the run
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from layertap.errors import BadArgument, CorruptRun
from layertap.formats.safe_load import PLACES, record_of
from layertap.messages import tr
from layertap.result import Note
from layertap.site import ROLES, Record, Site
from layertap.store.dtype import SIZES, Bytes
from layertap.store.memory import MemoryWriter
from layertap.store.run import Run

if TYPE_CHECKING:
    import torch

INPUTS = ("input_ids", "attention_mask", "position_ids")
"""Names of what a model is given; they make two runs comparable."""
STATES = "hidden_states"
"""What a bare tuple of tensors is taken for."""
DEPTH = 8
"""How deep a nested value is searched for tensors."""


@dataclass(frozen=True, slots=True)
class NamedValue:
    """One tensor of a nested value."""

    site: Site
    tensor: torch.Tensor
    step: int = 0

    @property
    def asked(self) -> bool:
        return self.site.path != "" or self.site.role != "input"


def read_values(value: Any, *, name: str | None = None) -> Run:
    """A dict (nested or not) of tensors or arrays, or a tuple of them, as a run; nothing is copied.

    >>> import torch
    >>> [str(site) for site in read_values({"layers.0": torch.ones(2), "norm": (torch.ones(2), None)}).sites]
    ['layers.0', 'norm:output.0']
    """
    name = tr("formats.in_memory") if name is None else name
    found, left_out = entries(value)
    if not found:
        some = f" ({', '.join(left_out[:5])})" if left_out else ""
        raise BadArgument(tr("formats.no_tensors_in", name=name, name2=type(value).__name__, some=some))
    writer = MemoryWriter(info={"layout": "values", "unread": left_out, "numbers": numbers_in(value)}, name=name)
    for order, entry in enumerate(found):
        try:
            record = record_of(entry.site, entry.tensor, asked=entry.asked, order=order)
        except ValueError as error:
            writer.info["unread"].append(f"{entry.site} ({error})")
            continue
        writer.add(record_kept(record), raw_bytes(entry.tensor))
    writer.close()
    if not writer.records:
        raise BadArgument(tr("formats.none_measured", name=name, some=", ".join(writer.info["unread"][:5])))
    return Run(writer)


def entries(value: Any, base: str = "") -> tuple[list[NamedValue], list[str]]:
    """The tensors in a value in their order, and in words what else is in it that may be data; `base` is its name."""
    found: list[NamedValue] = []
    search = _Walk()
    taken: set[str] = set()
    for site, tensor in _walk(value, base, search, 0):
        name = str(site)
        if name in taken:
            search.left_out.append(Note("formats.twice", name=name))
            continue
        taken.add(name)
        found.append(NamedValue(site, tensor))
    return found, search.left_out


def numbers_in(value: Any, base: str = "", depth: int = 0) -> dict[str, int | float]:
    """The single numbers in nested dicts by their names: no layers, but what they say may differ between two sides.

    >>> numbers_in({"loss": 0.5, "about": {"step": 3, "done": True}, "text": "x"})
    {'loss': 0.5, 'about.step': 3}
    """
    found: dict[str, int | float] = {}
    if not isinstance(value, Mapping) or depth == DEPTH:
        return found
    for key, item in value.items():
        name = f"{base}.{key}" if base else str(key)
        if type(item) in (int, float):
            found[name] = item
        elif isinstance(item, Mapping):
            found |= numbers_in(item, name, depth + 1)
        if len(found) > PLACES:
            break
    return found


@dataclass(slots=True)
class _Walk:
    """What a walk through a value has seen."""

    left_out: list[str] = field(default_factory=list)
    places: int = 0


def record_kept(record: Record) -> Record:
    """The record of a tensor that is kept whole."""
    return replace(record, kept="tensor", kept_shape=record.shape, kept_dtype=record.dtype)


def raw_bytes(tensor: torch.Tensor) -> Bytes:
    """A tensor's bytes in C order."""
    import torch

    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    raw: Bytes = plain.reshape(-1).view(torch.uint8).numpy()
    return raw


def as_tensor(value: Any) -> torch.Tensor | None:
    """A tensor, an array, or a list of numbers as a tensor; None for anything else.

    >>> as_tensor([1, 2]).tolist(), as_tensor("text")
    ([1, 2], None)
    """
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, (list, tuple)) and value and all(type(item) in (int, float) for item in value):
        value = np.array(value)
    if not isinstance(value, np.ndarray):
        return None
    if value.dtype.name not in SIZES:
        raise ValueError(tr("formats.dtype", dtype=value.dtype))
    return torch.from_numpy(np.array(value.astype(value.dtype.newbyteorder("="), copy=False)))


def _walk(value: Any, path: str, search: _Walk, depth: int) -> Iterator[tuple[Site, torch.Tensor]]:
    search.places += 1
    if search.places > PLACES:  # a list that contains one list many times multiplies at every depth
        raise CorruptRun(tr("formats.path_too_nested", path=path, places=PLACES))
    try:
        tensor = as_tensor(value)
    except ValueError as error:
        search.left_out.append(f"{path or tr('formats.the_value')} ({error})")
        return
    if tensor is not None:
        yield site_of(path or "tensor"), tensor
    elif depth == DEPTH:
        search.left_out.append(Note("formats.nested_deeper", path=path, depth=DEPTH))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk(item, f"{path}.{key}" if path else str(key), search, depth + 1)
    elif isinstance(value, (list, tuple)):
        yield from _places(value, path, search, depth)
    elif value is not None and not isinstance(value, (str, bytes, int, float, bool, complex)):
        # Texts and single numbers say something about a capture; they are no layer.
        search.left_out.append(f"{path or tr('formats.the_value')} ({type(value).__name__})")


def _places(value: Sequence[Any], path: str, search: _Walk, depth: int) -> Iterator[tuple[Site, torch.Tensor]]:
    tensors = [item for item in value if hasattr(item, "shape")]
    # Many of one shape are layers; a few beside each other are what one module returned.
    alike = len(tensors) > 2 and len({tuple(item.shape) for item in tensors}) == 1
    layers = alike or not path or path.endswith(STATES)
    for place, item in enumerate(value):
        if not layers and hasattr(item, "shape"):
            for site, tensor in _walk(item, path, search, depth + 1):
                yield replace(site, leaf=f"{site.leaf}.{place}" if site.leaf else str(place)), tensor
        else:
            yield from _walk(item, f"{path or STATES}.{place}", search, depth + 1)


def site_of(path: str) -> Site:
    """The site that a name means: as `str(site)` writes it, or any other text as a path.

    >>> site_of("layers.0:input.1"), site_of("layers.0.output"), site_of("batch.input_ids"), site_of("x:0")
    (Site('layers.0:input.1'), Site('layers.0'), Site(':input.input_ids'), Site('x%3A0'))
    """
    head, _, last = path.rpartition(".")
    if last in INPUTS:
        return Site(path="", role="input", leaf=last)
    if last in ROLES and head:
        return Site(path=head, role=last)
    try:
        site = Site.parse(path)
    except ValueError:
        return Site(path=path)
    return site if site.path else Site(path=path)
