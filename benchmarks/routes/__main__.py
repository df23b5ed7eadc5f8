"""The table: route × (fresh, right values, structure kept, drift, overhead as a ratio), for two small real models.

    python -m benchmarks.routes [--model minimax_m2|qwen3] [--only WORD,WORD] [--keep tensor|stats]

Each route is compiled on one input and checked on another; what is saved runs in a process of its own. Exits 1 if a
route fails in any way.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from benchmarks.routes.routes import ROUTES, Inputs, Route, Run, quiet
from torch import nn

import layertap as lt
from layertap.targets.checking import Trust, check_baked
from layertap.targets.trust import floor_of, largest_difference

ROOT = Path(__file__).resolve().parents[2]
SITES = ("model.layers.*", "model.layers.0.**", "model.norm", "lm_head")
EXCLUDED = {"minimax_m2": ("**.gate", "**.act_fn"), "qwen3": None}
"""Which of two experts comes first is left to the compiler (topk without sorting), and ONNX Runtime chooses anew."""
PASSES = 30
VOCAB, LENGTH = 128, 32
Sites = dict[str, Any]
"""What is tapped: `sites` and `exclude`."""


def build(name: str) -> nn.Module:
    """A small model with random weights."""
    small = dict(
        vocab_size=VOCAB, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=128, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    if name == "qwen3":
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**small)).eval()
    config = transformers.MiniMaxM2Config(**small, num_local_experts=4, num_experts_per_tok=2)
    model = transformers.MiniMaxM2ForCausalLM(config).eval()
    # The default is an operation of transformers' own, which no other process and no exporter knows.
    model.set_experts_implementation("batched_mm")
    return model


class Bare(nn.Module):
    """The model without taps, its output flat."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.model(input_ids=input_ids)[0],)


@dataclass(frozen=True)
class Line:
    """One row of the table."""

    trust: Trust
    again: str
    """What a process of its own said; empty where nothing is saved."""
    overhead: float

    def text(self) -> str:
        trust = self.trust
        moving = len(trust.fresh)
        fresh = f"{moving} of {moving + len(trust.stale)}" + (
            f" (+{len(trust.constant)} const)" if trust.constant else ""
        )
        right = f"{trust.error:.1e} {'ok' if trust.error <= trust.floor else 'WRONG'}"
        drift = trust.drift or 0.0
        drifted = f"{drift:.1e} {'ok' if drift <= trust.floor else 'DRIFTS'}"
        kept = "yes" if trust.structure else "NO"
        return f"{fresh:21}{right:15}{kept:11}{drifted:15}{self.overhead:9.2f}×  {self.again or '-'}"

    @property
    def good(self) -> bool:
        return self.trust.right and (self.trust.drift or 0.0) <= self.trust.floor and self.again in ("", "same")


def ratio(tapped: Run, bare: Run, inputs: Inputs) -> float:
    """Time with taps over time without, the least of interleaved passes."""
    best = {"tapped": float("inf"), "bare": float("inf")}
    ways: dict[str, Callable[[Inputs], object]] = {"tapped": tapped, "bare": bare}
    for _ in range(PASSES):
        for name, run in ways.items():
            start = time.perf_counter()
            run(inputs)
            best[name] = min(best[name], time.perf_counter() - start)
    return best["tapped"] / best["bare"]


def least_ms(compiled: nn.Module, inputs: Inputs, recorder: lt.capture.Recorder | None = None) -> float:
    """The least time of many passes, recorded or not."""
    best = float("inf")
    with recorder or contextlib.nullcontext():
        compiled(**inputs)
        for _ in range(PASSES):
            start = time.perf_counter()
            compiled(**inputs)
            best = min(best, time.perf_counter() - start)
    return best


def in_another_process(route: Route, artefact: Path, inputs: Inputs, want: dict[str, object]) -> str:
    """Runs the saved artefact where the model was never seen; says whether the same came."""
    np.savez(artefact.with_suffix(".in.npz"), **{name: value.numpy() for name, value in inputs.items()})
    files = [str(artefact), str(artefact.with_suffix(".in.npz")), str(artefact.with_suffix(".out.npz"))]
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.routes.fresh", route.kind, *files]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ})
    if ran.returncode:
        return f"FAILED: {ran.stderr.strip().splitlines()[-1] if ran.stderr.strip() else ran.returncode}"
    with np.load(files[2]) as found:
        if set(found.files) - {"__output__"} != set(want):
            return "OTHER SITES"
        same = all(np.array_equal(found[name], np.asarray(value), equal_nan=True) for name, value in want.items())
    return "same" if same else "OTHER VALUES"


def try_route(route: Route, model: nn.Module, first: Inputs, second: Inputs, sites: Sites, keep: str) -> Line:
    """Compiles with and without taps, and compares."""
    tapped = lt.bake(model, **sites, keep=keep)
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as other:
        run, artefact = route.run(tapped, first, Path(name))
        bare, _ = route.run(Bare(model), first, Path(other))
        trust = check_baked(tapped, run, first, second, untapped=bare)
        again = ""
        if artefact is not None and keep == "tensor":
            tapped.layout.save(artefact)
            want = {str(site): value for site, value in tapped.split(run(second))[1].items()}
            again = in_another_process(route, artefact, second, want)
        return Line(trust, again, ratio(run, bare, second))


def try_record(model: nn.Module, first: Inputs, second: Inputs, sites: Sites, keep: str) -> Line:
    """No bake: `record` on the model that torch.compile returned, beside `record` on the model itself."""
    compiled = torch.compile(model, fullgraph=True)
    with torch.no_grad():
        bare = compiled(**second)[0]
        with lt.record(model, **sites, keep="tensor") as right:
            for inputs in (first, second):
                model(**inputs)
                right.step()
        with lt.record(compiled, **sites, keep="tensor") as rec:
            outputs = []
            for inputs in (first, second, first):
                outputs.append(compiled(**inputs)[0])
                rec.step()
        overhead = least_ms(compiled, second, lt.record(compiled, **sites, keep=keep)) / least_ms(compiled, second)
    found: dict[str, list[lt.Site]] = {"fresh": [], "constant": [], "stale": [], "unsteady": []}
    errors = {}
    for site in right.run.sites:
        one, two, again = (rec.run[site].at(step=step) for step in range(3))
        before, after = (right.run[site].at(step=step) for step in range(2))
        moved, moves = (a.record.fingerprint != b.record.fingerprint for a, b in ((one, two), (before, after)))
        steady = one.record.fingerprint == again.record.fingerprint
        kind = "unsteady" if not steady else "fresh" if moved else "stale" if moves else "constant"
        found[kind].append(site)
        errors[site] = largest_difference(after.tensor(), two.tensor())[0]
    worst = max(errors, key=lambda site: errors[site])
    trust = Trust(
        **{name: tuple(sites) for name, sites in found.items()},
        structure=set(rec.run.sites) == set(right.run.sites),
        error=errors[worst],
        worst=worst,
        floor=floor_of(bare, layers=len(errors)),
        drift=largest_difference(bare, outputs[1])[0],
    )
    return Line(trust, "", overhead)


def refuses(way: str, model: nn.Module, inputs: Inputs) -> str:
    """In words, if the compiler does not take the model without taps either; empty if it does."""
    route = next((route for route in ROUTES if route.name == way), None)
    if route is None:
        return ""
    try:
        with quiet(), tempfile.TemporaryDirectory() as folder:
            route.run(Bare(model), inputs, Path(folder))
    except Exception as error:  # noqa: BLE001
        return f"this compiler does not take the model, with taps or without: {told(error)}"
    return ""


def told(error: Exception) -> str:
    """Its name and the line that says what is wrong."""
    lines = str(error).strip().splitlines() or [""]
    line = next((line for line in lines if " error: " in line), lines[0])
    return f"{type(error).__name__}: {line.partition(' error: ')[2][:80] or line[:80]}"


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--model", choices=["minimax_m2", "qwen3"], action="append")
    asked.add_argument("--only", default="", help="words that the route's name holds, with commas between them")
    asked.add_argument("--keep", default="tensor", choices=["tensor", "stats"])
    given = asked.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    words = [word for word in given.only.split(",") if word]
    failed = False
    for name in given.model or ["minimax_m2", "qwen3"]:
        model = build(name)
        first, second = ({"input_ids": torch.randint(3, VOCAB, (2, LENGTH))} for _ in range(2))
        print(f"\n{type(model).__name__}: compiled on one input, checked on another; taps: {', '.join(SITES)}")
        print(f"{'route':20}{'fresh':21}{'right values':15}{'structure':11}{'drift':15}{'overhead':>10}  own process")
        tries: dict[str, Callable[..., Line]] = {route.name: partial(try_route, route) for route in ROUTES}
        tries["record(compiled)"] = try_record
        for way, attempt in tries.items():
            if words and not any(word in way for word in words):
                continue
            torch._dynamo.reset()
            try:
                with quiet():
                    line = attempt(model, first, second, {"sites": SITES, "exclude": EXCLUDED[name]}, given.keep)
            except Exception as error:  # noqa: BLE001
                refused = refuses(way, model, first)
                failed |= not refused
                print(f"{way:20}{refused or f'FAILED {told(error)}'}", flush=True)
                continue
            failed |= not line.good
            print(f"{way:20}{line.text()}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
