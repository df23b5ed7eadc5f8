"""Pruned models on disk: saved with their plan, checked, and loaded again as what they are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from layertap.durable import replacing
from layertap.errors import BadArgument, WeightsWrong
from layertap.files import open_regular, parse_json, read_bytes, reading, reason
from layertap.messages import tr
from layertap.targets.hf import load_hf
from layertap.weights.branches import confirm, default_inputs
from layertap.weights.plan import Plan, read_plan
from layertap.weights.pruning import Pruning, branches_for, remember, same_outputs, skips_of, without
from layertap.weights.skip import SkippedBranch, is_bypassed

PLAN_FILE = "pruning.json"
BUFFERS = "pruning_buffers.safetensors"
"""Where buffers are kept that the class would compute otherwise; not a name that loaders of models look for."""


def save_pruned(model: nn.Module | Pruning, folder: str | os.PathLike[str], *, inputs: Any = None) -> Path:
    """Writes a pruned model, loads it again, and compares the two bit by bit.

    A model that goes round its branches is saved without their weights. The plan is in `pruning.json` and in the
    configuration: `load_pruned` makes the same model of it, and `audit` finds one that was loaded without it.
    """
    path = Path(folder)
    model = model.model if isinstance(model, Pruning) else model
    given = inputs if inputs is not None else default_inputs(model)
    bypassed = {name for name, module in model.named_modules() if is_bypassed(module)}
    removed = {name for name, module in model.named_modules() if isinstance(module, SkippedBranch)}
    if not bypassed and not removed:
        raise BadArgument(tr("pruning.not_pruned", model=type(model).__name__))
    marked = bypassed | removed
    branches = [b for b in branches_for(model, dict.fromkeys(marked, "skip")) if b.path in marked]
    plan = Plan(branches=tuple(branches))
    small = model
    if bypassed:
        skips = {name: model.get_submodule(name).__dict__["_layertap_skip"] for name in bypassed}
        gone = Plan(branches=tuple(b for b in branches if b.path in bypassed))
        small = without(model, gone, skips)
    remember(small, plan)
    path.mkdir(parents=True, exist_ok=True)
    saves: Any = getattr(small, "save_pretrained", None)
    if saves is not None:
        saves(path)
    else:
        from safetensors.torch import save_model

        save_model(small, str(path / "model.safetensors"))
    held = {"format": 1, "class": type(small).__name__, "plan": plan.to_dict()}
    skeleton = None if saves is not None else model
    _write(path / PLAN_FILE, json.dumps(held, indent=1))
    (path / BUFFERS).unlink(missing_ok=True)
    own = _other_buffers(small, load_pruned(path, skeleton, inputs=given))
    if own:
        save_file(own, path / BUFFERS)
    again = load_pruned(path, skeleton, inputs=given)
    if not same_outputs(small, again, given):
        raise WeightsWrong(tr("pruning.loaded_differs", path=path))
    return path


def load_pruned(folder: str | os.PathLike[str], model: nn.Module | None = None, *, inputs: Any = None) -> nn.Module:
    """The pruned model that `save_pruned` wrote; `model` is a whole one of the class, where transformers has none."""
    path = Path(folder)
    try:
        held = parse_json(read_bytes(path / PLAN_FILE))
        plan = {str(name): str(wish) for name, wish in held["plan"].items()}
    except (FileNotFoundError, NotADirectoryError):
        raise BadArgument(tr("pruning.no_file", path=path, file=PLAN_FILE)) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadArgument(tr("pruning.damaged", path=path / PLAN_FILE, error=reason(error))) from None
    if model is None:
        return _with_buffers(_of_transformers(path, str(held.get("class", "")), plan, inputs), path)
    return _with_buffers(_of_skeleton(path, model, plan, inputs), path)


def _other_buffers(small: nn.Module, again: nn.Module) -> dict[str, torch.Tensor]:
    """Buffers that no checkpoint holds, and that are other ones than loading makes: those of a model that was cast."""
    fresh = dict(again.named_buffers())
    return {
        name: tensor.detach().clone().contiguous()
        for name, tensor in small.named_buffers()
        if name not in small.state_dict() and not (name in fresh and _same_tensor(tensor, fresh[name]))
    }


def _same_tensor(one: torch.Tensor, two: torch.Tensor) -> bool:
    return one.dtype == two.dtype and torch.equal(one, two)


def _with_buffers(model: nn.Module, path: Path) -> nn.Module:
    if (path / BUFFERS).is_file():
        with reading(str(path / BUFFERS), tr("checkpoint.not_of_model"), WeightsWrong):
            for name, tensor in load_file(path / BUFFERS).items():
                above, _, own = name.rpartition(".")
                module = model.get_submodule(above)
                held = module._buffers.get(own)
                module._buffers[own] = tensor if held is None else tensor.to(held.device)
    return model


def _of_transformers(path: Path, name: str, plan: dict[str, str], inputs: Any) -> nn.Module:
    # The folder may be anyone's: no code of its own, no kernel from elsewhere, no class that is no model.
    full, loading = load_hf(path, f"hf:{path}", name)
    full.eval()
    pruned = _pruned(full, plan, inputs)
    gone = set(full.state_dict()) - set(pruned.state_dict())
    lost = sorted(set(loading["missing_keys"]) - gone) + sorted(loading["unexpected_keys"])
    if lost:
        raise WeightsWrong(tr("pruning.beyond", path=path, count=len(lost), first=lost[0]))
    return pruned


def _of_skeleton(path: Path, model: nn.Module, plan: dict[str, str], inputs: Any) -> nn.Module:
    from safetensors.torch import load_model

    small = _pruned(model, plan, inputs)
    file = path / "model.safetensors"
    with reading(str(file), tr("checkpoint.not_of_model"), WeightsWrong):
        open_regular(file).close()
        load_model(small, str(file), strict=True)
    return small


def _pruned(full: nn.Module, plan: dict[str, str], inputs: Any) -> nn.Module:
    whole = [module for module in full.modules() if not isinstance(module, SkippedBranch) and not is_bypassed(module)]
    if len(whole) != sum(1 for _ in full.modules()):
        skips = {
            name: module.skip if isinstance(module, SkippedBranch) else module.__dict__["_layertap_skip"]
            for name, module in full.named_modules()
            if isinstance(module, SkippedBranch) or is_bypassed(module)
        }
        kept = read_plan(plan, branches_for(full, plan))
        return without(full, kept, skips)
    chosen = read_plan(plan, branches_for(full, plan))
    given = inputs if inputs is not None else default_inputs(full)
    return without(full, chosen, skips_of(full, chosen, confirm(full, list(chosen.branches), given)))


def _write(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode())
