"""Runs to align, made of arrays: no model, but real statistics, fingerprints and sketches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from layertap.measure import measure
from layertap.site import Record, Site
from layertap.store import MemoryWriter, Run


def make_run(
    *steps: Mapping[str, Any],
    inputs: Mapping[str, Any] | list[Mapping[str, Any]] | None = None,
    sketches: bool = True,
    kinds: Mapping[str, str] | None = None,
    info: Mapping[str, Any] | None = None,
    receipt: Any = None,
    numbers: list[int] | None = None,
    change: Any = None,
) -> Run:
    """A run of {site: array} for each step, in the given order; `numbers` are the steps' numbers."""
    writer = MemoryWriter(info=dict(info or {}))
    for at, step in enumerate(steps):
        number = at if numbers is None else numbers[at]
        given = inputs[at] if isinstance(inputs, list) else (inputs or {})
        for order, (name, value) in enumerate(given.items()):
            site = Site(path="", role="input", leaf=name)
            writer.add(*_record(site, value, order, number, asked=False, kept=True))
        for order, (text, value) in enumerate(step.items(), start=len(given)):
            site = Site.parse(text)
            record, _ = _record(site, value, order, number)
            record = replace(record, kind=(kinds or {}).get(text, ""))
            record = record if sketches else replace(record, sketch=b"", fingerprint=0)
            writer.add(change(record) if change else record)
    writer.close(receipt)
    return Run(writer)


def stream(layers: int, *, seed: int = 0, size: tuple[int, ...] = (1, 8, 32), change: float = 0.25) -> list[Any]:
    """A residual stream: embedding, then each layer, which changes it by a part of its length."""
    random = np.random.default_rng(seed)
    found = [random.standard_normal(size).astype(np.float32)]
    for _ in range(layers):
        new = random.standard_normal(size) * np.sqrt((found[-1] ** 2).mean()) * change
        found.append((found[-1] + new).astype(np.float32))
    return found


def noisy(value: Any, part: float = 0.005, seed: int = 1) -> Any:
    random = np.random.default_rng(seed)
    return (value + part * np.sqrt((value**2).mean()) * random.standard_normal(value.shape)).astype(np.float32)


def pairs(alignment: Any) -> dict[str, str]:
    return {str(pair.reference.site): str(pair.candidate.site) for pair in alignment.pairs}


def ways(alignment: Any) -> set[str]:
    return {pair.rung for pair in alignment.pairs}


def _record(
    site: Site, value: Any, order: int, step: int, *, asked: bool = True, kept: bool = False
) -> tuple[Record, Any]:
    tensor = value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))
    found = measure(tensor)
    whole = kept and not tensor.is_floating_point()
    record = Record(
        site=site,
        kind="",
        order=order,
        step=step,
        phase="eval",
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        device="cpu",
        statistics=found.statistics,
        fingerprint=found.fingerprint,
        sketch=found.sketch,
        asked=asked,
    )
    if not whole:
        return record, None
    record = replace(record, kept="tensor", kept_shape=record.shape, kept_dtype=record.dtype)
    return record, np.frombuffer(tensor.numpy().tobytes(), np.uint8)
