"""`prune`: a model without some of its branches, by going round them or by removing them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Literal

import torch
from torch import nn

from layertap.errors import BadArgument, WeightsWrong
from layertap.messages import tr
from layertap.weights.branches import ATTENTION, MODULE, Branch, Confirmed, call, confirm, default_inputs, find_branches
from layertap.weights.plan import Plan, named_modules, read_plan
from layertap.weights.skip import Skip, SkippedBranch, bypass, is_bypassed, restore

PLAN_KEY = "layertap_pruning"
"""Where a model's configuration keeps its plan."""


class Pruning:
    """A model that goes round some branches until `undo`, or until the `with` block ends."""

    def __init__(self, model: nn.Module, plan: Plan, skips: dict[str, Skip]) -> None:
        self.model, self.plan = model, plan
        self._undone = False
        for path, skip in skips.items():
            bypass(model.get_submodule(path), skip)

    def undo(self) -> None:
        """The model is whole again. Calling it twice does nothing."""
        if not self._undone:
            self._undone = True
            for branch in self.plan.branches:
                for path in branch.members:
                    restore(self.model.get_submodule(path))

    def __enter__(self) -> Pruning:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def __str__(self) -> str:
        return tr("pruning.still_there", model=type(self.model).__name__, plan=str(self.plan))


def prune(model: nn.Module, plan: Any, *, how: Literal["bypass", "physical"] = "bypass", inputs: Any = None) -> Any:
    """Skips branches of the model: `{path: "skip"}`, or text such as `attention[:3] mlp[n//2:]`, n being all layers.

    `bypass` goes round them in this very model, whose weights stay, and returns a handle: a `with` block, or `undo()`.
    `physical` returns a copy without their parameters. What a branch is, is confirmed by one run, for which language
    models of transformers need no `inputs`. That both ways give the same bits is checked.
    """
    if how not in ("bypass", "physical"):
        raise BadArgument(tr("pruning.how", how=repr(how)))
    chosen = read_plan(plan, branches_for(model, plan))
    done = [path for path in chosen.paths if already(model.get_submodule(path))]
    if done:
        raise BadArgument(tr("pruning.already", path=done[0]))
    given = inputs if inputs is not None else default_inputs(model)
    confirmed = confirm(model, list(chosen.branches), given)
    skips = skips_of(model, chosen, confirmed)
    if how == "bypass":
        handle = Pruning(model, chosen, skips)
        try:
            _called(model, chosen, given)
        except BaseException:
            handle.undo()
            raise
        return handle
    small = without(model, chosen, skips)
    with Pruning(model, chosen, skips):
        if not same_outputs(model, small, given):
            raise WeightsWrong(tr("pruning.ways_differ", plan=str(chosen)))
    return small


def _called(model: nn.Module, plan: Plan, inputs: Any) -> None:
    """Raises where a branch of the plan is not called: it would not be skipped, whatever is in its place."""
    ran: set[str] = set()
    modules = {path: model.get_submodule(path) for path in plan.paths}
    own = {path: module.__dict__["_layertap_skip"] for path, module in modules.items()}
    for path, module in modules.items():
        module.__dict__["_layertap_skip"] = _Counted(own[path], partial(ran.add, path))
    mode = model.training
    try:
        call(model.eval(), inputs)
    finally:
        model.train(mode)
        for path, module in modules.items():
            module.__dict__["_layertap_skip"] = own[path]
    for path in plan.paths:
        if path not in ran:
            raise BadArgument(tr("pruning.not_called", path=path))


class _Counted:
    """A skip that says when it ran."""

    def __init__(self, skip: Skip, ran: Callable[[], None]) -> None:
        self._skip, self._ran = skip, ran

    def output(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._ran()
        return self._skip.output(args, kwargs)


def already(module: nn.Module) -> bool:
    return is_bypassed(module) or isinstance(module, SkippedBranch)


def skips_of(model: nn.Module, plan: Plan, confirmed: dict[str, Confirmed]) -> dict[str, Skip]:
    """What each module of the plan's branches does instead."""
    found = {}
    for branch in plan.branches:
        for path in branch.members:
            known = confirmed[branch.path]
            passes = path != branch.path
            place = _cache_place(model.get_submodule(path), model) if branch.kind == ATTENTION else {}
            leaf = None if passes else known.leaf
            found[path] = Skip(leaf=leaf, length=known.length, passes=passes, **place)
    return found


def _cache_place(module: nn.Module, model: nn.Module) -> dict[str, int]:
    """Where this attention keeps its keys, and of what shape."""
    layer = getattr(module, "layer_idx", None)
    config = getattr(module, "config", None) or getattr(model, "config", None)
    if config is None or not isinstance(layer, int) or not hasattr(config, "num_attention_heads"):
        return {}
    heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", 1)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return {"layer": layer, "heads": heads, "head_dim": width}


def without(model: nn.Module, plan: Plan, skips: dict[str, Skip]) -> nn.Module:
    """A copy whose branches are replaced; the parameters that go are not copied on the way."""
    kept = {}
    try:
        for branch in plan.branches:
            for path in branch.members:
                kept[path] = model.get_submodule(path)
                _set(model, path, SkippedBranch(skips[path], kept[path]))
        small = copy.deepcopy(model)
    finally:
        for path, module in kept.items():
            _set(model, path, module)
    remember(small, plan)
    return small


def _set(model: nn.Module, path: str, module: nn.Module) -> None:
    above, _, name = path.rpartition(".")
    module.train(model.training)
    model.get_submodule(above)._modules[name] = module


def remember(model: nn.Module, plan: Plan) -> None:
    """Writes the plan into the configuration, in layertap's form and in that which transformers reads where it can."""
    config = getattr(model, "config", None)
    if config is None:
        return
    setattr(config, PLAN_KEY, plan.to_dict())
    layers: dict[str, dict[str, list[str]]] = {}
    for branch in plan.branches:
        if branch.kind != MODULE:
            layers.setdefault(str(branch.layer), {"skip": []})["skip"].append(branch.kind)
    if layers and not getattr(config, "is_encoder_decoder", False):  # of two stacks, a number names no layer
        config.per_layer_config = layers


def same_outputs(model: nn.Module, other: nn.Module, inputs: Any) -> bool:
    """Whether two models give the same bits in evaluation; both are left in the mode of the first."""
    mode = model.training
    try:
        one, two = outputs(call(model.eval(), inputs)), outputs(call(other.eval(), inputs))
    finally:
        model.train(mode)
        other.train(mode)
    return len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def outputs(value: Any) -> list[torch.Tensor]:
    """The tensors of an output, caches left out."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [item for item in value if isinstance(item, torch.Tensor)] if isinstance(value, (list, tuple)) else []


def branches_for(model: nn.Module, plan: Any) -> list[Branch]:
    """The model's branches; where it has none that are known, the modules that the plan names."""
    try:
        found = find_branches(model)
    except BadArgument:
        found = []
    named = named_modules(plan, model)
    known = {path for branch in found for path in (branch.path, branch.block, *branch.members)}
    found += [branch for branch in named if branch.path not in known]
    return found or find_branches(model)
