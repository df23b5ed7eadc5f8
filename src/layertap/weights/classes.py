"""What concerns a model as a whole: the class that was built, and settings that this class ignores."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from layertap.errors import BadArgument
from layertap.result import Note
from layertap.select.collapse import collapse
from layertap.weights.branches import find_branches, kind_of_child
from layertap.weights.entries import Weights


def class_notes(model: Weights, other: Weights) -> tuple[list[str], list[str]]:
    """(Notes, faults): the class against `architectures` and `auto_map`, and skips that nothing carries out."""
    notes: list[str] = []
    faults: list[str] = []
    built = type(model.model).__name__ if model.model is not None else ""
    named = other.config.get("architectures") or []
    if built and named and built not in named:
        text = Note("audit.built", built=built, named=", ".join(map(str, named)))
        (notes if _related(model.model, named) else faults).append(text)
    mapped = other.config.get("auto_map")
    if built and mapped and not type(model.model).__module__.startswith("transformers_modules"):
        own = mapped.get("AutoModelForCausalLM") or next(iter(mapped.values()))
        where = type(model.model).__module__
        faults.append(Note("audit.own_class", own=str(own), built=built, where=where))
    lost = _pruning_lost(model.model, other.config)
    if lost:
        faults.append(lost)
    for config in (model.config, other.config) if not lost else ():
        ignored = _ignored_skips(model.model, config)
        if ignored and ignored not in faults:
            faults.append(ignored)
    return [*notes, *_frozen(model, other)], faults


def _frozen(model: Weights, other: Weights) -> list[str]:
    """Of two live models: parameters that one of them trains and the other does not."""
    if model.model is None or other.model is None:
        return []
    theirs = {name: parameter.requires_grad for name, parameter in other.model.named_parameters()}
    notes: list[str] = []
    for trained, frozen, wanted in ((model, other, True), (other, model, False)):
        names = [n for n, p in model.model.named_parameters() if p.requires_grad == wanted != theirs.get(n, wanted)]
        known = {"model": trained.name, "other": frozen.name}
        notes += [Note("audit.frozen", names=", ".join(collapse(names)), **known)] if names else []
    return notes


def _related(model: Any, named: list[str]) -> bool:
    """A head more or less on one base model: BertModel from BertForMaskedLM."""
    bases = {base.__name__ for base in type(model).__mro__}
    base = type(getattr(model, "base_model", model)).__name__.removesuffix("Model")
    return bool(bases & set(named)) or (bool(base) and any(str(name).startswith(base) for name in named))


def _pruning_lost(model: Any, config: dict[str, Any]) -> Note | None:
    """A checkpoint that was saved pruned, in a model that was built whole."""
    plan = config.get("layertap_pruning")
    if model is None or not isinstance(plan, dict):
        return None
    built = [path for path, module in model.named_modules() if path in plan and any(True for _ in module.parameters())]
    if not built:
        return None
    return Note("audit.pruning_lost", paths=", ".join(collapse(built)), built=type(model).__name__)


def _ignored_skips(model: Any, config: dict[str, Any]) -> Note | None:
    """A configuration that asks for layers to be skipped, and a module that was built in full all the same."""
    asked = config.get("per_layer_config")
    if model is None or not isinstance(asked, dict):
        return None
    kept = []
    try:
        blocks = {branch.block: model.get_submodule(branch.block) for branch in find_branches(model)}
    except BadArgument:
        return None
    for layer, wish in asked.items():
        skips = wish.get("skip", ()) if isinstance(wish, dict) else ()
        for path, module in blocks.items():
            if path.split(".")[-1:] == [str(layer)]:
                held = [skip for skip in skips for name, child in module.named_children() if _names(skip, name, child)]
                kept += [f"{path}.{skip}" for skip in held]
    if not kept:
        return None
    paths = ", ".join(kept[:4]) + (", …" if len(kept) > 4 else "")
    return Note("audit.skip_ignored", paths=paths, built=type(model).__name__)


def _names(skip: str, name: str, child: nn.Module) -> bool:
    return kind_of_child(name) == kind_of_child(skip) != "" and any(True for _ in child.parameters())


def fresh_buffer(model: Any, name: str) -> torch.Tensor | None:
    """A buffer that a module computes for itself, computed once more; None where the module cannot be made again."""
    path, _, own = name.rpartition(".")
    config = getattr(model, "config", None)
    if model is None or config is None:
        return None
    module = model.get_submodule(path)
    if any(True for _ in module.parameters()):
        return None  # making it anew would cost its weights
    try:
        signature = inspect.signature(type(module).__init__).parameters
        if "config" not in signature:
            return None
        with torch.random.fork_rng(devices=[]):
            again = type(module)(config=config)
        found = getattr(again, own, None)
    except Exception:  # noqa: BLE001  a constructor with other arguments: then this check is not to be had
        return None
    return found if isinstance(found, torch.Tensor) and not found.is_meta else None
