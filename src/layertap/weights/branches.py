"""The branches of a model's blocks: what attention and the feed-forward part add to the residual stream.

Found from the module tree, and confirmed by a run: what a block returns, less what it was given, is the sum of what its
branches returned. So one description serves Qwen3, Llama, Mixtral, MiniMax-M2, GPT-2 and OPT, sequential or parallel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from layertap.errors import BadArgument
from layertap.messages import tr

ATTENTION, MLP, MODULE = "attention", "mlp", "module"
_ATTENTION = re.compile(r"(self_?)?attn|attention|self_attention|mixer", re.IGNORECASE)
_MLP = re.compile(r"mlp|feed_?forward|ffn|block_sparse_moe|moe|experts?", re.IGNORECASE)
_PLAIN_MLP = (("fc1", "fc2"), ("linear1", "linear2"), ("up_proj", "down_proj"))
"""Feed-forward parts that are in the block itself, without a module of their own."""

CLOSE = 0.02
"""How far a block's sum may be from its branches' by rounding, relative to what they add."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One addition to the residual stream."""

    kind: str
    """`attention`, `mlp`, or `module`: one that a plan names itself, whose output is taken to be what is added."""
    layer: int
    block: str
    """The block's path."""
    path: str
    """The module whose output is added."""
    members: tuple[str, ...]
    """The modules that make it up, the one at `path` among them."""


def find_branches(model: nn.Module) -> list[Branch]:
    """All branches by the module tree, layer by layer; an error where the model has no repeated blocks."""
    found: list[Branch] = []
    for layer, (path, block) in enumerate(_blocks(model)):
        found += _of_block(layer, path, block)
    if not found:
        raise BadArgument(tr("pruning.no_blocks", model=type(model).__name__))
    return found


def _blocks(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The longest list of blocks that have such parts."""
    best: list[tuple[str, nn.Module]] = []
    for path, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) > len(best):
            blocks = [(f"{path}.{name}" if path else name, child) for name, child in module.named_children()]
            if all(_of_block(0, name, child) for name, child in blocks):
                best = blocks
    return best


def _of_block(layer: int, path: str, block: nn.Module) -> Iterator[Branch] | list[Branch]:
    found: dict[str, Branch] = {}
    children = dict(block.named_children())
    for name, child in children.items():
        # A part that pruning left has no parameters any more, and is still a branch.
        if not any(True for _ in child.parameters()) and not hasattr(child, "pruned_branch"):
            continue
        kind = kind_of_child(name)
        if kind and kind not in found:
            own = f"{path}.{name}"
            found[kind] = Branch(kind=kind, layer=layer, block=path, path=own, members=(own,))
    for first, last in _PLAIN_MLP:
        if MLP not in found and first in children and last in children:
            members = (f"{path}.{first}", f"{path}.{last}")
            found[MLP] = Branch(kind=MLP, layer=layer, block=path, path=members[1], members=members)
    return [found[kind] for kind in (ATTENTION, MLP) if kind in found]


def kind_of_child(name: str) -> str:
    """`attention`, `mlp` or neither, by a child's name in its block."""
    return ATTENTION if _ATTENTION.fullmatch(name) else MLP if _MLP.fullmatch(name) else ""


def default_inputs(model: nn.Module) -> Mapping[str, Any]:
    """A few token ids, for a language model of transformers."""
    config = getattr(model, "config", None)
    vocabulary = getattr(config, "vocab_size", None)
    if not isinstance(vocabulary, int):
        raise BadArgument(tr("pruning.no_vocabulary", model=type(model).__name__))
    ids = (torch.arange(8) * 7 + 3) % vocabulary
    device = next(iter(model.parameters())).device
    return {"input_ids": ids[None].to(device), "use_cache": False}


def call(model: nn.Module, inputs: Any) -> Any:
    """Runs the model without gradients."""
    with torch.no_grad():
        if isinstance(inputs, Mapping):
            return model(**inputs)
        return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """What a run showed of a branch."""

    leaf: int | None
    """Which item of the returned tuple is added; None where the branch returns the tensor itself."""
    length: int
    """How many items the tuple has."""
    adds: str = ""
    """The module whose output is added, where that is a norm behind the branch."""


def confirm(model: nn.Module, branches: list[Branch], inputs: Any) -> dict[str, Confirmed]:
    """Runs the model once and proves of every block with one of these branches that they are what it adds."""
    named = [branch for branch in branches if branch.kind == MODULE]
    wanted = {branch.block for branch in branches if branch.kind != MODULE}
    whole = [branch for branch in find_branches(model) if branch.block in wanted] if wanted else []
    seen: dict[str, Any] = {}
    given: dict[str, torch.Tensor] = {}
    handles = []
    inside = [f"{block}.{name}" for block in wanted for name, _ in model.get_submodule(block).named_children()]
    for path in {*wanted, *inside, *(branch.path for branch in (*whole, *named))}:
        module = model.get_submodule(path)

        def after(_: Any, args: Any, kwargs: Any, output: Any, path: str = path) -> None:
            seen.setdefault(path, output)
            first = next((v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)), None)
            if first is not None:
                given.setdefault(path, first.detach().clone())

        handles.append(module.register_forward_hook(after, with_kwargs=True))
    mode = model.training
    try:
        call(model.eval(), inputs)
    finally:
        model.train(mode)
        for handle in handles:
            handle.remove()
    adds: dict[str, str] = {}
    for block in wanted:
        adds |= _adds_up(model, block, whole, seen, given)
    for branch in named:
        output, start = _tensor(seen.get(branch.path)), given.get(branch.path)
        if output is None or start is None or output.shape != start.shape:
            raise BadArgument(tr("pruning.not_its_shape", path=branch.path))
    return {branch.path: _confirmed(branch, seen, adds.get(branch.path, "")) for branch in (*whole, *named)}


def _adds_up(
    model: nn.Module, block: str, branches: list[Branch], seen: dict[str, Any], given: dict[str, torch.Tensor]
) -> dict[str, str]:
    """Branch → the norm behind it; raises where a block adds something else than what its branches return."""
    own = [branch for branch in branches if branch.block == block]
    silent = [branch.path for branch in own if branch.path not in seen]
    if block not in seen or silent:
        raise BadArgument(tr("pruning.did_not_run", path=(silent or [block])[0]))
    output = _tensor(seen[block])
    start = given.get(block)
    if output is None or start is None or output.shape != start.shape:
        raise BadArgument(tr("pruning.block_shape", path=block))
    behind = {branch.path: _norm_behind(model, branch, seen, given) for branch in own}
    norms = {path: norm for path, norm in behind.items() if norm}
    for adds in ({}, norms):
        parts = [_tensor(seen[adds.get(branch.path, branch.path)]) for branch in own]
        if _is_sum([part for part in parts if part is not None], start, output):
            return adds
    raise BadArgument(tr("pruning.adds_else", block=block, branches=", ".join(branch.path for branch in own)))


def _is_sum(parts: list[torch.Tensor], start: torch.Tensor, output: torch.Tensor) -> bool:
    if not parts or any(part.numel() != output.numel() for part in parts):
        return False
    total = torch.stack([part.double().reshape(output.shape) for part in parts]).sum(0)
    added = output.double() - start.double()
    # Rounding of the sum is relative to what is summed, which may be much larger than what is added.
    scale = added.norm() + torch.finfo(output.dtype).eps * 8 * output.double().norm() / CLOSE
    return float((added - total).norm()) <= CLOSE * float(scale)


def _norm_behind(model: nn.Module, branch: Branch, seen: dict[str, Any], given: dict[str, torch.Tensor]) -> str:
    """A module of the block that is given what the branch returns, and makes zeros of zeros; empty if there is none."""
    output = _tensor(seen[branch.path])
    for name, child in model.get_submodule(branch.block).named_children():
        path = f"{branch.block}.{name}"
        fed = given.get(path)
        if path in branch.members or output is None or fed is None or fed.shape != output.shape:
            continue
        if torch.equal(fed, output):
            with torch.no_grad():
                silent = _tensor(child(torch.zeros_like(output)))
            if silent is not None and not silent.any():
                return path
    return ""


def _confirmed(branch: Branch, seen: dict[str, Any], adds: str) -> Confirmed:
    output = seen[branch.path]
    if isinstance(output, torch.Tensor):
        return Confirmed(leaf=None, length=0, adds=adds)
    leaf = next(index for index, item in enumerate(output) if isinstance(item, torch.Tensor))
    return Confirmed(leaf=leaf, length=len(output), adds=adds)


def _tensor(output: Any) -> torch.Tensor | None:
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, (tuple, list)):
        return next((item for item in output if isinstance(item, torch.Tensor)), None)
    return None
