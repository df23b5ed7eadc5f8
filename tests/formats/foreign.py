"""Runs to export, without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from layertap.measure import measure
from layertap.site import Site
from layertap.store import MemoryWriter, Run, SiteRecords
from store.making import record


def bits(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], bytes]:
    """All of a tensor, to compare to the bit."""
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return str(tensor.dtype), tuple(tensor.shape), raw


def recorded(
    sites: Sequence[str] | Mapping[str, torch.Tensor],
    *,
    dtype: torch.dtype = torch.float32,
    steps: int = 1,
    keep: bool = True,
    seed: int = 0,
    info: Mapping[str, Any] | None = None,
    moments: Sequence[tuple[int | None, int | None]] = (),
    **inputs: torch.Tensor,
) -> Run:
    """A run with a measured tensor at every site and step, as the recorder leaves it; `inputs` are the model's own."""
    writer = MemoryWriter(info={"model": "Toy", **(info or {})})
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        epoch, batch = moments[step] if moments else (None, None)
        for order, (name, tensor) in enumerate(inputs.items()):
            _add(writer, Site(path="", role="input", leaf=name), tensor, True, step=step, order=order, asked=False)
        for order, name in enumerate(sites, len(inputs)):
            made = (torch.randn(2, 5, generator=generator) * 8).to(dtype)
            tensor = sites[name] if isinstance(sites, Mapping) else made
            _add(writer, Site.parse(name), tensor, keep, step=step, order=order, epoch=epoch, batch=batch)
    writer.close()
    return Run(writer)


def same(one: SiteRecords, two: SiteRecords) -> None:
    """Asserts that two records are of the same tensor, to the bit, and say the same of it."""
    assert bits(one.tensor()) == bits(two.tensor())
    assert one.record.fingerprint == two.record.fingerprint
    assert one.record.sketch == two.record.sketch
    assert repr(one.statistics) == repr(two.statistics)


def _add(writer: MemoryWriter, site: Site, tensor: torch.Tensor, keep: bool, **more: Any) -> None:
    found = measure(tensor)
    dtype = str(tensor.dtype).removeprefix("torch.")
    given = {"shape": tuple(tensor.shape), "dtype": dtype, "statistics": found.statistics}
    given |= {"fingerprint": found.fingerprint, "sketch": found.sketch}
    if keep:
        given |= {"kept": "tensor", "kept_shape": tuple(tensor.shape), "kept_dtype": dtype}
    raw = tensor.clone().contiguous().reshape(-1).view(torch.uint8).numpy()
    writer.add(record(str(site), **{**given, **more}), raw if keep else None)
