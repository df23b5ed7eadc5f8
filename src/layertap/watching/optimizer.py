"""What an optimizer does to the watched parameters: the norms of its state, and the updates that it makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from layertap.capture import Recorder
from layertap.site import Site
from layertap.store import Run
from layertap.watching.trigger import GRADIENT, STATE, UPDATE


class OptimizerTap:
    """Notes, on steps that are recorded, `path:param.weight.update` and `path:param.weight.exp_avg` beside the weight,
    and `path:param_grad.weight.step`, the gradient that the optimizer uses.

    An update is the difference of a parameter after and before the step, so the watched parameters are copied for as
    long as the optimizer works.
    """

    def __init__(self, recorder: Recorder, what: tuple[str, ...]) -> None:
        self._recorder = recorder
        self._state, self._update, self._gradient = ("optimizer" in what, "update" in what, "step_grad" in what)
        self._before: dict[int, torch.Tensor] = {}
        self._places: dict[int, tuple[str, str]] | None = None

    def before(self, optimizer: Optimizer) -> None:
        """The optimizer is about to step."""
        self._before = {}
        if self._update and self._recorder.live:
            self._before = {id(p): p.detach().clone() for p, _, _ in self._watched(optimizer)}
        if self._gradient and self._recorder.live:
            kind = f"{type(optimizer).__name__} {GRADIENT}"
            for parameter, path, leaf in self._watched(optimizer):
                if parameter.grad is not None:
                    self._recorder.note(path, kind, "param_grad", f"{leaf}.step", parameter.grad)

    def after(self, optimizer: Optimizer) -> None:
        """It has stepped."""
        if not (self._state or self._update) or not self._recorder.live:
            return
        name = type(optimizer).__name__
        for parameter, path, leaf in self._watched(optimizer):
            old = self._before.pop(id(parameter), None)
            if old is not None:
                self._recorder.note(path, f"{name} {UPDATE}", "param", f"{leaf}.{UPDATE}", parameter.detach() - old)
            if self._state:
                for key, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(value, torch.Tensor) and value.numel() > 1:
                        self._recorder.note(path, f"{name} {STATE}", "param", f"{leaf}.{key}", value)
        self._before = {}

    def _watched(self, optimizer: Optimizer) -> Iterator[tuple[nn.Parameter, str, str]]:
        if self._places is None:
            self._places = _places(self._recorder)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                place = self._places.get(id(parameter))
                if place is not None:
                    yield parameter, *place


def parameters_of(optimizer: Optimizer) -> set[int]:
    """The ids of what it optimizes."""
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def proves_a_past(optimizer: Optimizer) -> bool:
    """Whether an optimizer that makes its first step here brings state from steps before."""
    return any(bool(state) for state in optimizer.state.values())


def learning_rate(optimizer: Optimizer) -> float | None:
    """Of its first group; None where asking would wait for a device."""
    rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
    if isinstance(rate, torch.Tensor):
        return float(rate) if rate.device.type == "cpu" else None
    return None if rate is None else float(rate)


def steps_done(optimizer: Optimizer) -> int | None:
    """How many steps the optimizer says it has made, in this process and those before it; None if it does not count."""
    counts = [state["step"] for state in optimizer.state.values() if isinstance(state, dict) and "step" in state]
    if counts and isinstance(counts[0], torch.Tensor) and counts[0].device.type != "cpu":
        counts = counts[:1]  # each one asked for is a wait for the device
    return int(max(float(count) for count in counts)) if counts else None


def update_ratios(run: Run) -> list[dict[str, Any]]:
    """‖update‖ / ‖weight‖ of every recorded update, by step: about 1e-3 is healthy, 1 is a parameter thrown away."""
    table = run.table(["step", "rank", "path", "role", "leaf", "kind", "l2"]).to_pylist()
    norms = {(r["step"], r["rank"], r["path"], r["leaf"]): r["l2"] for r in table if r["role"] == "param"}
    found = []
    for row in table:
        if row["role"] != "param" or not row["kind"].endswith(f" {UPDATE}"):
            continue
        leaf = row["leaf"].removesuffix(f".{UPDATE}")
        weight = norms.get((row["step"], row["rank"], row["path"], leaf))
        if weight is not None:
            ratio = row["l2"] / weight if weight else float("inf")
            site = str(Site(path=row["path"], role="param", leaf=leaf))
            found.append({"step": row["step"], "rank": row["rank"], "site": site, "ratio": ratio})
    return found


def _places(recorder: Recorder) -> dict[int, tuple[str, str]]:
    """Each parameter at or below a selected module: the lowest such module, and the parameter's name in it."""
    paths = sorted(recorder.selection.paths, key=len, reverse=True)
    places: dict[int, tuple[str, str]] = {}
    for name, parameter in recorder.model.named_parameters():
        for path in paths:
            if not path or name.startswith(f"{path}."):
                places[id(parameter)] = (path, name[len(path) + 1 :] if path else name)
                break
    return places
