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
STEPS = {"float32": (23, -126), "bfloat16": (7, -126), "float16": (10, -14)}


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
    """The definitions, in float64, where the tensors are."""
    x, y = reference.double().flatten(), candidate.double().flatten()
    good = x.isfinite() & y.isfinite()
    nan = x.isnan() != y.isnan()
    alike = ~good & ((x == y) | (x.isnan() & y.isnan()))
    a, b = x[good], y[good]
    d = (a - b).abs()
    steps = [STEPS[str(side.dtype).removeprefix("torch.")] for side in (reference, candidate)]
    mantissa = min(bits for bits, _ in steps)
    least = max(low - bits for bits, low in steps) + mantissa
    exponent = torch.frexp(a.abs().clamp(min=2.0**least)).exponent - 1
    n = max(1, len(a))
    found = {
        "finite": len(a),
        "nan_mismatch": int(nan.sum()),
        "nonfinite": int(alike.sum()),
        "inf_mismatch": int((~good & ~nan & ~alike).sum()),
        "max_abs": d.max().item() if len(a) else 0.0,
        "mean_abs": d.sum().item() / n,
        "max_relative": (d / (a.abs() + 1e-8)).max().item() if len(a) else 0.0,
        "mean_relative": (d / (a.abs() + 1e-8)).sum().item() / n,
        "mse": (d * d).sum().item() / n,
        "reference_square": (a * a).sum().item() / n,
        "reference_abs": a.abs().sum().item() / n,
        "max_ulp": torch.ldexp(d, mantissa - exponent).max().item() if len(a) else 0.0,
        "close": (d <= 1e-3 + 1e-3 * a.abs()).double().sum().item() / n if len(a) else 1.0,
        "cosine": cosine(a, b),
        "pearson": cosine(a - a.mean(), b - b.mean()) if len(a) else 1.0,
    }
    width = reference.shape[-1]
    if len(x) > width >= 64:
        error = torch.where(good, (x - y) ** 2, 0.0).reshape(-1, width)
        square = torch.where(good, x * x, 0.0).reshape(-1, width)
        for name, axis in (("row", 1), ("column", 0)):
            own, size = error.sum(axis), square.sum(axis)
            relative = torch.where(own == 0, 0.0, own / size.clamp(min=size.mean().item())).sqrt()
            found[name] = [relative, own / max(own.sum().item(), 1e-300)]
    return found


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    norms = a.norm() * b.norm()
    if norms == 0:
        return 1.0 if a.norm() == b.norm() else 0.0
    return (a @ b / norms).item()


def differences(found: Any, reference: torch.Tensor, candidate: torch.Tensor) -> list[str]:
    """What the result gets wrong, in words."""
    want, wrong = expected(reference, candidate), []
    exact = ("finite", "nan_mismatch", "inf_mismatch", "nonfinite")
    wrong += [
        f"{name}: {getattr(found, name)} for {want[name]}" for name in exact if getattr(found, name) != want[name]
    ]
    for name in ("max_abs", "mean_abs", "max_relative", "mean_relative", "mse", "reference_square", "reference_abs"):
        if not abs(getattr(found, name) - want[name]) <= 2e-6 * abs(want[name]):
            wrong.append(f"{name}: {getattr(found, name)} for {want[name]}")
    if not abs(found.max_ulp - want["max_ulp"]) <= (1e-6 if want["max_ulp"] <= 256 else 8e-3) * want["max_ulp"]:
        wrong.append(f"max_ulp: {found.max_ulp} for {want['max_ulp']}")
    if abs(found.close - want["close"]) > 1e-6:
        wrong.append(f"close: {found.close} for {want['close']}")
    for name in ("cosine", "pearson"):
        if not abs(getattr(found, name) - want[name]) <= 2e-6 + 1e-2 * (1 - want[name]) * (want[name] > 0.9):
            wrong.append(f"{name}: {getattr(found, name)} for {want[name]}")
    for name in ("row", "column"):
        part, typical = getattr(found, name), getattr(found, f"{name}_typical")
        if name not in want or (name == "column" and reference.shape[-1] > 8192):
            wrong += [f"{name}: {part} for None"] if part is not None else []
            continue
        relative, share = want[name]
        flat = 0
        for size, index in zip(
            reference.shape[:-1] if name == "row" else reference.shape[-1:], part.index, strict=True
        ):
            flat = flat * size + index
        close = abs(part.relative - relative.max().item()) <= 1e-5 * relative.max().item()
        if not close or abs(part.relative - relative[flat].item()) > 1e-5 * part.relative:
            wrong.append(f"{name}: {part}, {relative[flat]} there, for {relative.max()} at {relative.argmax()}")
        if abs(part.share - share[flat].item()) > 1e-5 * share[flat].item():
            wrong.append(f"{name}: share {part.share} for {share[flat]}")
        middle = relative.quantile(0.5).item() if len(relative) <= 4096 else typical
        if abs(typical - middle) > 1e-5 * middle:
            wrong.append(f"{name}_typical: {typical} for {middle}")
    return wrong


def main() -> None:
    from layertap.measure.pair import kernel as pair_kernel

    pair_kernel._CHUNK = 1  # so that small tensors have several chunks a program, some to be read again
    found: dict[str, list[str]] = {}
    for number, (one, two, shape) in enumerate(CASES):
        for flavour in FLAVOURS if number in (0, 3) else FLAVOURS[1:2]:
            a, b = pair(one, two, shape, flavour)
            found[f"{one}, {two} {shape} {flavour}"] = differences(pair_kernel.compare_cuda(a, b), a, b)
    print(json.dumps(found))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed: pip install triton")
def test_the_pair_kernel_computes_the_definitions_for_all_dtypes_and_shapes() -> None:
    from measure.interpreter import interpreted

    found = interpreted(__file__)
    assert len(found) > len(CASES)
    assert {case: wrong for case, wrong in found.items() if wrong} == {}


if __name__ == "__main__":
    main()
