"""One of each result that has a report, made once for all tests."""

from __future__ import annotations

import copy
import functools
from pathlib import Path

import numpy as np
import torch
from torch import nn

import layertap as lt
from layertap.compare.training import diff_training
from layertap.fault import find_fault
from layertap.store import Run, RunWriter
from layertap.sweeping.result import Matrix, ModeResult, SiteRow, Sweep
from layertap.weights.doctor import Diagnosis
from layertap.weights.knockout import Knockout, KnockoutRow
from layertap.weights.result import Audit, AuditRow
from store.making import kept, receipt, record, statistics

HOSTILE = "x<script>alert(1)</script>\"'><img src=//evil.example/x onerror=alert(1)>|`**\u202e"
"""What a name may hold; `.` would part it into modules."""


def model(blocks: int = 8) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(blocks)]
    return nn.Sequential(*layers, nn.Linear(8, 4)).eval()


def broken() -> nn.Module:
    net = copy.deepcopy(model())
    with torch.no_grad():
        net[3][0].weight[2] = 0
    return net


def recorded(net: nn.Module, x: torch.Tensor | None = None, path: Path | None = None) -> Run:
    with torch.no_grad(), lt.record(net, path, sites="**", keep="tensor") as rec:
        net(torch.linspace(-1, 1, 32).reshape(4, 8) if x is None else x)
    return rec.run


@functools.cache
def pair(name: str):
    """Two runs, and their comparison."""
    if name == "nonfinite":
        bad = broken()
        with torch.no_grad():
            bad[4][0].weight[1] = float("nan")
        sides = recorded(model()), recorded(bad)
    elif name == "inconclusive":
        sides = recorded(model()), recorded(model(), torch.ones(4, 8))
    else:
        sides = recorded(model()), recorded(broken() if name == "fault" else model())
    return (*sides, lt.diff(*sides))


def training(folder, scale: float = 1.0, bad: bool = True, steps: int = 40) -> Run:
    """Records of a training, in which NaN appears at step 9."""
    writer = RunWriter(folder, info={"model": "Net", "meta": {"training": True}})
    for step in range(steps):
        for order, site in enumerate(("embed", "layers.0", "layers.1", "loss")):
            nan = 2 if bad and step >= 9 and order else 0
            size = scale * (1 + order + step / 4) if step else 1.0 + order
            first = (float("nan") if nan else 3.0 / (step + 1),)
            stats = statistics(abs_mean=size, l2=size * 2, nan=nan, first=first)
            kind = "loss" if site == "loss" else "Linear"
            mark = hash((step, site, scale if step else 1)) & (2**64 - 1)
            writer.add(
                record(
                    site, step, kind=kind, order=order, phase="train", statistics=stats, fingerprint=mark, sketch=b""
                )
            )
    writer.close(receipt())
    return Run(folder)


@functools.cache
def finding():
    return find_fault(model(), broken(), (torch.linspace(-1, 1, 32).reshape(4, 8),))


def audit() -> Audit:
    rows = [
        AuditRow(
            name=f"layers.{n}.weight", other=f"h.{n}.w", status="exact", rule="renamed", shape=(8, 8), dtype="float32"
        )
        for n in range(4)
    ]
    rows += [
        AuditRow(name="head.weight", other="", status="missing", detail="nothing in the checkpoint has its values"),
        AuditRow(name="norm.weight", other="norm.w", status="nonfinite", detail="3 of 8 values are NaN", shape=(8,)),
    ]
    return Audit(model="model", other="checkpoint", rows=tuple(rows), notes=("a note",), bytes=4096, seconds=0.1)


def knockout() -> Knockout:
    rows = [
        KnockoutRow(
            site=f"layers.{n}.{part}",
            kind=part,
            layer=n,
            kl=0.01 * (n + 1),
            kl_low=0.005,
            kl_high=0.04 * (n + 1),
            top1=0.9,
            perplexity=12.0 if n else float("nan"),
            cosine=0.98,
            change=0.1,
            share=0.05,
        )
        for n in range(3)
        for part in ("attention", "mlp")
    ]
    rows.append(
        KnockoutRow(
            site="layers.3.mlp",
            kind="mlp",
            layer=3,
            kl=float("inf"),
            kl_low=0.1,
            kl_high=float("nan"),
            top1=0.0,
            perplexity=float("inf"),
            cosine=0.1,
            change=3.0,
            share=0.05,
        )
    )
    return Knockout(rows=tuple(rows), tokens=64, perplexity=11.0)


def diagnosis() -> Diagnosis:
    return Diagnosis(
        answer="idea",
        sentence="the cuts themselves cost it",
        evidence=("weights: those of the reference", "cache: as without one"),
        audit=audit(),
        cuts=("layers.0.attention",),
        harm=knockout().rows,
    )


def hostile(folder, name: str = HOSTILE) -> Run:
    """A run in which everything that may hold a text holds this one."""
    writer = RunWriter(folder, info={"model": name, "meta": {"mode": name}})
    for number in range(4):
        array = np.full((2, 2), number, np.float32)
        row, raw = kept(array, f"{lt.Site(path=name)!s}{number}", kind=name, order=number)
        writer.add(row, raw)
    writer.problems.append(name)
    writer.close(receipt())
    return Run(folder)


def trainings(folder):
    sides = training(folder / "one"), training(folder / "two", scale=1.01)
    return (*sides, diff_training(*sides))


def sweep() -> Sweep:
    """Four modes; two are the same, one has no run."""

    def rows(error: float) -> tuple[SiteRow, ...]:
        known = {
            "kind": "Block",
            "floor": 1e-6,
            "floor_kind": "modelled",
            "sqnr": 30.0,
            "ideal_sqnr": 42.0,
            "stands_out": 1.0,
        }
        return tuple(
            SiteRow(
                site=f"layers.{n}",
                order=n,
                verdict="fault" if error else "identical",
                error=error * (n + 1),
                ratio=error * 1e6,
                **known,
            )
            for n in range(5)
        )

    names = {"fp32": 0.0, "0": 0.0, "2-1": 0.01, "3": float("nan")}
    modes = {
        name: ModeResult(name=name, verdict="fault" if error else "identical", rows=rows(error))
        for name, error in names.items()
    }
    modes["lost"] = ModeResult(name="lost", error="killed")
    errors = {a: {b: {"layers.0": abs(names[a] - names[b])} for b in names if b != a} for a in names}
    return Sweep(
        name="modes.toml",
        target="net.py:make",
        folder="runs",
        reference="fp32",
        verdict="inconclusive",
        modes=modes,
        groups=(("fp32", "0"), ("2-1",), ("3",)),
        matrix=Matrix(errors),
    )
