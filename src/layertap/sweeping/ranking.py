"""The layers of a mode by what their own error does to the output: one pass forced to the reference, then grafts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from layertap.capture import taps
from layertap.capture.leaves import call_leaves, leaves, map_tensors
from layertap.files import parse_json, read_bytes
from layertap.sweeping.opening import Opened, open_mode
from layertap.sweeping.teaching import ABOUT, FILE, cache_in, cache_state, parameters_of, ranked_modules
from layertap.sweeping.tokens import ids_of, logits_of

WORST = 5
"""So many of the worst layers are confirmed by putting the reference back."""
WIDEST = 8192
"""The weights of a wider layer are not asked for one by one."""


@dataclass(slots=True)
class _Score:
    kind: str = ""
    total: float = 0.0
    weights: float = 0.0
    activations: float = 0.0
    cache: float = 0.0
    error: float = 0.0
    norm: float = 0.0
    errors: dict[str, torch.Tensor] = field(default_factory=dict)
    """By call and leaf, the module's own error: what a graft takes away."""


class _Forced:
    """One pass in which every module is given, and hands on, what the reference had."""

    def __init__(self, folder: Path) -> None:
        from safetensors import safe_open

        open_file: Any = safe_open  # it has no types

        self.about: dict[str, Any] = parse_json(read_bytes(folder / ABOUT))
        self.file = open_file(folder / FILE, framework="pt")
        self.keys = set(self.file.keys())
        self.fresh = set(self.about["fresh"])
        self.scores: dict[str, _Score] = defaultdict(_Score)
        self.calls: Counter[str] = Counter()
        self.inside: list[tuple[str, bool]] = []

    def value(self, key: str, like: torch.Tensor) -> torch.Tensor | None:
        name = f"value {key}"
        if name not in self.keys:
            return None
        found: torch.Tensor = self.file.get_tensor(name)
        return found.to(like.device, like.dtype) if found.shape == like.shape else None

    def score(self, key: str, found: torch.Tensor, expected: torch.Tensor) -> tuple[float, torch.Tensor]:
        """½ (gradient · error)² row by row over the scale, and the error."""
        error = found.detach().float() - expected.float()
        name = f"grad {key}"
        if name not in self.keys:
            return 0.0, error
        return self.weigh(name, error), error

    def weigh(self, name: str, error: torch.Tensor) -> float:
        gradient = self.file.get_tensor(name).to(error.device).float()
        rows = (gradient * error).reshape(-1, error.shape[-1] if error.ndim else 1).double().sum(-1)
        return float(rows.square().sum() / max(self.about["scale"], 1e-300))


class _RankingTap:
    def __init__(self, forced: _Forced, path: str, module: nn.Module) -> None:
        self._forced, self._path, self._module = forced, path, module

    def enter(self, args: Any, kwargs: Any, direct: bool) -> tuple[Any, Any, Any]:
        forced = self._forced
        call = f"{self._path}@{forced.calls[self._path]}"
        forced.calls[self._path] += 1
        names = iter([leaf.path for leaf in call_leaves(args, kwargs) if leaf.tensor is not None])

        def force(tensor: torch.Tensor) -> torch.Tensor:
            key = f"{call}:in.{next(names, '?')}"
            expected = forced.value(key, tensor) if tensor.is_floating_point() else None
            if expected is None:
                return tensor
            if key in forced.fresh and forced.inside:
                self._glue(key, tensor, expected)
            return expected

        args, kwargs = map_tensors((args, kwargs), force)
        cache = cache_in(kwargs)
        forced.inside.append((self._path, cache is not None))
        return args, kwargs, (call, cache, args, kwargs)

    def _glue(self, key: str, tensor: torch.Tensor, expected: torch.Tensor) -> None:
        """What the caller made between two of its parts is the caller's own error."""
        score, error = self._forced.score(key, tensor, expected)
        caller, cached = self._forced.inside[-1]
        held = self._forced.scores[caller]
        held.total += score
        held.error += float(error.square().sum())
        held.norm += float(expected.float().square().sum())
        if cached:
            held.cache += score  # taken back when the call ends with the reference's cache
        else:
            held.activations += score

    def leave(self, token: Any, output: Any) -> Any:
        forced = self._forced
        call, cache, args, kwargs = token
        forced.inside.pop()
        held = forced.scores[self._path]
        held.kind = type(self._module).__name__
        if cache is not None and cache_state(cache) == forced.about["caches"].get(call):
            held.activations, held.cache = held.activations + held.cache, 0.0
        names = iter([leaf.path for leaf in leaves(output) if leaf.tensor is not None])

        def force(tensor: torch.Tensor) -> torch.Tensor:
            key = f"{call}:out.{next(names, '?')}"
            expected = forced.value(key, tensor) if tensor.is_floating_point() else None
            if expected is None:
                return tensor
            score, error = forced.score(key, tensor, expected)
            held.total += score
            held.error += float(error.square().sum())
            held.norm += float(expected.float().square().sum())
            held.errors[key] = error
            weights = self._by_weights(key, score, args, kwargs, expected)
            held.weights += weights
            held.activations += max(0.0, score - weights)
            return expected

        return map_tensors(output, force)

    def _by_weights(self, key: str, score: float, args: Any, kwargs: Any, expected: torch.Tensor) -> float:
        """The part of the score that the weights alone make, with the reference's activations as they are."""
        module, forced = self._module, self._forced
        if not score:
            return 0.0
        given = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if isinstance(module, nn.Linear) and given is not None and module.in_features <= WIDEST:
            with taps.unseen(module):
                effective = _effective(module, given)
            if effective is not None:
                weight, bias = effective
                error = nn.functional.linear(given.float(), weight, bias) - expected.float()
                return min(score, forced.weigh(f"grad {key}", error)) if f"grad {key}" in forced.keys else 0.0
        changed = parameters_of(module) != forced.about["parameters"].get(self._path)
        return score if changed else 0.0


def _effective(module: nn.Linear, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The weights and offsets that a linear layer multiplies with: what it makes of each input alone."""
    try:
        none = module.forward(like.new_zeros(1, module.in_features))
        each = module.forward(torch.eye(module.in_features, device=like.device, dtype=like.dtype))
    except Exception:  # noqa: BLE001  a packed layer may want other shapes: then its weights are not known
        return None
    return (each - none).float().T, none.float()[0]


def rank(task: Mapping[str, Any]) -> dict[str, Any]:
    """Ranks the layers of the task's mode against the reference that was written down."""
    torch.set_num_threads(task["threads"])
    folder = Path(task["teacher"])
    opened = open_mode(task)
    forced = _Forced(folder)
    modules = ranked_modules(opened.plain)
    standing = {module: _RankingTap(forced, path, module) for path, module in modules.items()}
    with torch.no_grad():
        taps.attach(standing)
        try:
            _run(opened)
        finally:
            taps.detach(standing)
        divergence = _ModeDivergence(forced, ids_of(opened.inputs))
        total = divergence(_run(opened))
        scores = {path: one for path, one in forced.scores.items() if one.norm}
        worst = sorted(scores, key=lambda path: -scores[path].total)
        confirmed = _confirm(task, opened, worst[:WORST], divergence, total)
    errors = "" if confirmed or not total else _keep_errors(Path(task["folder"]), scores, worst[:WORST])
    whole = sum(one.total for one in scores.values()) or 1.0
    rows = [
        {
            "path": path,
            "kind": scores[path].kind or type(modules[path]).__name__,
            "score": scores[path].total,
            "share": scores[path].total / whole,
            "weights": scores[path].weights,
            "activations": scores[path].activations,
            "cache": scores[path].cache,
            "own_error": (scores[path].error / scores[path].norm) ** 0.5,
            "confirmed": confirmed.get(path),
        }
        for path in worst
    ]
    return {
        "rows": rows,
        "output": forced.about["output"],
        "total": total,
        "errors": errors,
        "quantised": list(opened.quantised),
    }


def _keep_errors(folder: Path, scores: Mapping[str, _Score], worst: list[str]) -> str:
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "errors.safetensors"
    kept = {key: error for name in worst for key, error in scores[name].errors.items()}
    save_file({key: error.detach().cpu().contiguous().clone() for key, error in kept.items()}, path)
    return str(path)


class _ModeDivergence:
    """How far an output is from the reference's: mean KL of a language model, else the squared relative error."""

    def __init__(self, forced: _Forced, ids: torch.Tensor | None) -> None:
        self._ids = ids
        self._expected = {
            key.removeprefix("output "): forced.file.get_tensor(key) for key in forced.keys if key.startswith("output ")
        }
        self._logits = forced.about["output"] == "kl"

    def __call__(self, output: Any) -> float:
        found = {leaf.path: leaf.tensor for leaf in leaves(output) if leaf.tensor is not None}
        if self._logits:
            logits = logits_of(output, self._ids)
            assert logits is not None
            path = next(path for path, tensor in found.items() if tensor is logits)
            p = self._expected[path].double().log_softmax(-1)
            q = logits.double().cpu().log_softmax(-1)
            return float((p.exp() * (p - q)).sum(-1).mean())
        error = total = 0.0
        for path, expected in self._expected.items():
            if path in found and expected.is_floating_point() and found[path].shape == expected.shape:
                error += float((found[path].double().cpu() - expected.double()).square().sum())
                total += float(expected.double().square().sum())
        return error / total if total else 0.0


def _confirm(
    task: Mapping[str, Any], opened: Opened, worst: list[str], divergence: Callable[[Any], float], total: float
) -> dict[str, float]:
    """The share of the divergence that goes away with the float module put back, one layer at a time."""
    mode = task["mode"]
    if not total or not mode["quantize"]:
        return {}
    floats = open_mode({**task, "mode": {**mode, "quantize": ""}}).plain
    confirmed = {}
    for path in worst:
        parent, _, name = path.rpartition(".")
        holder, quantised = opened.plain.get_submodule(parent), opened.plain.get_submodule(path)
        setattr(holder, name, floats.get_submodule(path))
        try:
            confirmed[path] = 1 - divergence(_run(opened)) / total
        finally:
            setattr(holder, name, quantised)
    return confirmed


def inject(task: Mapping[str, Any]) -> dict[str, Any]:
    """Puts the errors of single layers into the reference, and measures what each alone does to the output.

    For modes of which the float module cannot be had in the same process.
    """
    from safetensors.torch import load_file

    torch.set_num_threads(task["threads"])
    opened = open_mode(task)
    divergence = _ModeDivergence(_Forced(Path(task["teacher"])), ids_of(opened.inputs))
    errors: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    for key, error in load_file(task["errors"]).items():
        path, _, call = key.partition("@")
        errors[path][call] = error
    found = {}
    with torch.no_grad():
        for path, own in errors.items():
            standing = {opened.plain.get_submodule(path): _Added(own)}
            taps.attach(standing)
            try:
                found[path] = divergence(_run(opened))
            finally:
                taps.detach(standing)
    return {"alone": found}


class _Added:
    """Adds an error to what a module returns."""

    def __init__(self, errors: Mapping[str, torch.Tensor]) -> None:
        self._errors, self._calls = errors, 0

    def enter(self, args: Any, kwargs: Any, direct: bool) -> tuple[Any, Any, Any]:
        self._calls += 1
        return args, kwargs, self._calls - 1

    def leave(self, token: Any, output: Any) -> Any:
        names = iter([leaf.path for leaf in leaves(output) if leaf.tensor is not None])

        def add(tensor: torch.Tensor) -> torch.Tensor:
            error = self._errors.get(f"{token}:out.{next(names, '?')}")
            return tensor if error is None else (tensor.float() + error.to(tensor.device)).to(tensor.dtype)

        return map_tensors(output, add)


def _run(opened: Opened) -> Any:
    inputs = opened.inputs
    return opened.plain(**inputs) if isinstance(inputs, dict) else opened.plain(*inputs)
