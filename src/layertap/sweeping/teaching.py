"""The reference written down for ranking: what goes into and out of every module, and the gradient of the output there.

The gradient is that of a random direction of the output. For a language model the direction is the log-probability of
tokens drawn from its own distribution: then ½ (gradient · error)² is, on average, the divergence that the error makes.
For other outputs it is drawn from a normal distribution: then (gradient · error)² is the squared error of the output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from layertap.capture import taps
from layertap.capture.leaves import call_leaves, leaves, map_tensors
from layertap.errors import LayertapError
from layertap.measure import measure
from layertap.messages import tr
from layertap.sweeping.opening import open_mode
from layertap.sweeping.seeds import set_seeds
from layertap.sweeping.task import write_json
from layertap.sweeping.tokens import ids_of, logits_of

FILE = "teacher.safetensors"
ABOUT = "teacher.json"
CACHES = ("past_key_values", "past_key_value", "cache_params", "cache", "kv_cache", "layer_past")


class Teacher:
    """Sees one pass; keeps each call's tensors, and hooks for their gradients."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.gradients: dict[str, torch.Tensor] = {}
        self.fresh: set[str] = set()
        """Inputs that are neither a module's output nor another module's input: the caller has made them itself."""
        self.caches: dict[str, dict[str, str]] = {}
        self.calls: Counter[str] = Counter()
        self.kinds: dict[str, str] = {}
        self._seen: dict[int, torch.Tensor] = {}

    def keep(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        if not tensor.requires_grad:
            tensor = tensor.detach().requires_grad_()  # nothing before it has a gradient, so nothing is cut off
        self.tensors[key] = tensor.detach().clone()

        def back(gradient: torch.Tensor) -> None:
            self.gradients[key] = gradient.detach()

        tensor.register_hook(back)
        if id(tensor) not in self._seen:
            self.fresh.add(key)
        self._seen[id(tensor)] = tensor  # alive, so that its identity is not given to another
        return tensor


class TeachingTap:
    """Stands at one module of the reference."""

    def __init__(self, teacher: Teacher, path: str) -> None:
        self._teacher, self._path = teacher, path

    def enter(self, args: Any, kwargs: Any, direct: bool) -> tuple[Any, Any, Any]:
        teacher = self._teacher
        call = f"{self._path}@{teacher.calls[self._path]}"
        teacher.calls[self._path] += 1
        names = iter([leaf.path for leaf in call_leaves(args, kwargs) if leaf.tensor is not None])
        args, kwargs = map_tensors((args, kwargs), lambda tensor: teacher.keep(f"{call}:in.{next(names, '?')}", tensor))
        return args, kwargs, (call, cache_in(kwargs))

    def leave(self, token: Any, output: Any) -> Any:
        call, cache = token
        if cache is not None:
            self._teacher.caches[call] = cache_state(cache)
        names = iter([leaf.path for leaf in leaves(output) if leaf.tensor is not None])
        return map_tensors(output, lambda tensor: self._teacher.keep(f"{call}:out.{next(names, '?')}", tensor))


def cache_in(kwargs: Mapping[str, Any]) -> Any:
    """The cache that a call is given; None without one."""
    return next((kwargs[name] for name in CACHES if kwargs.get(name) is not None), None)


def cache_state(cache: Any) -> dict[str, str]:
    """Fingerprints of what a cache holds."""
    return {
        leaf.path: f"{measure(leaf.tensor.detach().cpu()).fingerprint:016x}"
        for leaf in leaves(cache)
        if leaf.tensor is not None and leaf.tensor.numel()
    }


def ranked_modules(model: nn.Module) -> dict[str, nn.Module]:
    """All modules but the model itself, containers, and compiled ones."""
    skipped = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict, torch.jit.ScriptModule)
    return {path: module for path, module in model.named_modules() if path and not isinstance(module, skipped)}


def teach(task: Mapping[str, Any]) -> dict[str, Any]:
    """Runs the reference once forward and once back, and writes what was seen into the task's folder."""
    torch.set_num_threads(task["threads"])
    opened = open_mode(task)
    teacher = Teacher()
    modules = ranked_modules(opened.plain)
    standing = {module: TeachingTap(teacher, path) for path, module in modules.items()}
    taps.attach(standing)
    try:
        with torch.enable_grad():
            inputs = opened.inputs
            output = opened.plain(**inputs) if isinstance(inputs, dict) else opened.plain(*inputs)
            kind, scale = _backward(output, ids_of(inputs), task["seed"])
    finally:
        taps.detach(standing)
    if not teacher.gradients:
        raise LayertapError(tr("sweeping.no_gradient"))
    folder = Path(task["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"value {key}": tensor for key, tensor in teacher.tensors.items()}
    tensors |= {f"grad {key}": tensor for key, tensor in teacher.gradients.items()}
    tensors |= {f"output {leaf.path}": leaf.tensor for leaf in leaves(output) if leaf.tensor is not None}
    _save(tensors, folder / FILE)
    about = {
        "output": kind,
        "scale": scale,
        "fresh": sorted(teacher.fresh),
        "caches": teacher.caches,
        "parameters": {path: parameters_of(module) for path, module in modules.items()},
    }
    write_json(folder / ABOUT, about)
    return {"teacher": str(folder)}


def parameters_of(module: nn.Module) -> str:
    """One fingerprint of the module's own parameters and buffers."""
    own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    total = 0
    for name, tensor in own:
        try:
            total += hash(name) % 997 + measure(tensor.detach().cpu()).fingerprint
        except (RuntimeError, LayertapError, NotImplementedError):  # a quantised tensor, which is another's anyway
            total += 1
    return f"{total % 2**64:016x}"


def _backward(output: Any, ids: torch.Tensor | None, seed: int) -> tuple[str, float]:
    """Sends a random direction of the output back; returns what the scores predict, and by what they are divided."""
    set_seeds(seed)
    logits = logits_of(output, ids)
    if logits is not None:
        flat = logits.reshape(-1, logits.shape[-1]).float().log_softmax(-1)
        drawn = torch.multinomial(flat.detach().exp(), 1)
        flat.gather(-1, drawn).sum().backward()
        return "kl", 2.0 * len(flat)
    parts = [leaf.tensor for leaf in leaves(output) if leaf.tensor is not None and leaf.tensor.requires_grad]
    if not parts:
        raise LayertapError(tr("sweeping.no_gradient"))
    total = torch.stack([(part.float() * torch.randn_like(part, dtype=torch.float32)).sum() for part in parts]).sum()
    total.backward()
    return "relative", float(torch.stack([part.detach().float().square().sum() for part in parts]).sum())


def _save(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    save_file({key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}, path)
