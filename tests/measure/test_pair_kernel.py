"""The pair kernel, run by triton's interpreter on CPU tensors, against float64."""

from __future__ import annotations

import importlib.util
import json
import math
from typing import Any

import pytest
import torch

CASES = [
    ("float32", "float32", (70, 96)),
    ("float32", "float32", (2, 9, 66)),
    ("float32", "float32", (1003,)),
    ("bfloat16", "bfloat16", (70, 72)),
    ("bfloat16", "bfloat16", (2, 9, 136)),
    ("bfloat16", "bfloat16", (519, 1)),
    ("bfloat16", "float16", (17, 64)),
    ("float16", "float16", (17, 72)),
    ("float32", "bfloat16", (20, 66)),
    ("float32", "float32", (0, 64)),
]
FLAVOURS = ("plain", "holes", "far", "tiny", "huge", "dead", "same", "zeros")
SUMS = ("error", "reference", "product", "apart")


def pair(one: str, two: str, shape: tuple[int, ...], flavour: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A reference, and a candidate that is some thousandths off."""
    make = torch.Generator().manual_seed(math.prod(shape) + len(one))
    a = torch.randn(shape, generator=make, dtype=torch.float64)
    b = a + 0.003 * torch.randn(shape, generator=make, dtype=torch.float64)
    flat_a, flat_b = a.view(-1), b.view(-1)
    flat_a[::7] = 0.0
    if flavour == "far":
        a += 1000.0 if one == "float32" else 8.0
        b += 1000.0 if one == "float32" else 8.0
    elif flavour in ("tiny", "huge"):
        scale = 1e-30 if flavour == "tiny" else 1e30
        a *= scale
        b *= scale
    elif flavour == "holes":
        flat_a[3::101], flat_b[3::101] = math.nan, math.nan
        flat_b[5::203] = math.inf
        flat_a[1::401], flat_b[1::401] = -math.inf, -math.inf
        flat_b[8::501] = math.nan
        flat_a[9::701], flat_b[9::701] = -math.inf, math.inf
    elif flavour == "dead" and a.ndim > 1 and a.numel():
        flat_a.copy_(flat_b)
        b.view(-1, shape[-1])[len(b.view(-1, shape[-1])) // 3] = 0.0
    elif flavour == "same":
        b = a.clone()
    elif flavour == "zeros":
        b.zero_()
    return a.to(getattr(torch, one)), b.to(getattr(torch, two))


def expected(reference: torch.Tensor, candidate: torch.Tensor) -> dict[str, Any]:
    """The definitions, in float64, where the tensors are; of a sum also how large its terms are."""
    x, y = reference.double().flatten(), candidate.double().flatten()
    good = x.isfinite() & y.isfinite()
    nan = x.isnan() != y.isnan()
    alike = ~good & ((x == y) | (x.isnan() & y.isnan()))
    a, b = torch.where(good, x, 0.0), torch.where(good, y, 0.0)
    d = b - a
    sums = {
        "error": (d * d, d * d),
        "reference": (a * a, a * a),
        "product": (a * d, a * a + b * b + d * d),
        "apart": (d, a.abs() + b.abs()),
    }
    found: dict[str, Any] = {name: (one.sum().item(), all_.abs().sum().item()) for name, (one, all_) in sums.items()}
    found |= {"nan": int(nan.sum()), "inf": int((~good & ~nan & ~alike).sum())}
    width = reference.shape[-1]
    if len(x) > width >= 64:
        for name, axis in (("row", 1), ("column", 0)):
            own, size = ((one * one).reshape(-1, width).sum(axis) for one in (d, a))
            found[name] = torch.where(own == 0, 0.0, own / size.clamp(min=size.mean().item())).sqrt()
    return found


def differences(numbers: tuple[float, ...], reference: torch.Tensor, candidate: torch.Tensor) -> list[str]:
    """What the numbers of `read_pairs` get wrong, in words."""
    want, wrong = expected(reference, candidate), []
    for name, number in zip(SUMS, numbers, strict=False):
        total, terms = want[name]
        if not abs(number - total) <= 2e-6 * terms:
            wrong.append(f"{name}: {number} for {total}")
    for name, number in zip(("nan", "inf"), numbers[8:], strict=True):
        if number != want[name]:
            wrong.append(f"{name}: {number} for {want[name]}")
    for name, number, index in (("row", *numbers[4:6]), ("column", *numbers[6:8])):
        if name in want and (name == "row" or reference.shape[-1] <= 8192):
            lines = want[name].nan_to_num(posinf=0.0)
            there, most = lines[int(index)].item(), lines.max().item()
            if not abs(number - most) <= 1e-5 * most or not abs(number - there) <= 1e-5 * most:
                wrong.append(f"{name}: {number} at {int(index)}, {there} there, for {most} at {lines.argmax()}")
    return wrong


def main() -> None:
    from layertap.measure.pair import kernel as pair_kernel
    from layertap.measure.pair.many import read_pairs

    pair_kernel._CHUNK = 1  # so that small tensors have several chunks a program, some to be read again
    found: dict[str, list[str]] = {}
    for number, (one, two, shape) in enumerate(CASES):
        for flavour in FLAVOURS if number in (0, 3) else FLAVOURS[1:2]:
            a, b = pair(one, two, shape, flavour)
            found[f"{one}, {two} {shape} {flavour}"] = differences(read_pairs([pair_kernel.launch_pair(a, b)])[0], a, b)
    print(json.dumps(found))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed: pip install triton")
def test_the_pair_kernel_computes_the_definitions_for_all_dtypes_and_shapes() -> None:
    from measure.interpreter import interpreted

    found = interpreted(__file__)
    assert len(found) > len(CASES)
    assert {case: wrong for case, wrong in found.items() if wrong} == {}


if __name__ == "__main__":
    main()
