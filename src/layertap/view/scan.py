"""The scanner: a model runs a prompt with and without a plan, and what happens inside is measured layer by layer.

Of each layer and token: the norm of the activation, and the norm of the gradient of the token's own loss at that
token, both per 64 features and not rounded; the scale of the layer's weights; the text that follows. Runs in a worker
thread of the server; this file imports torch.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.targets import open_target
from layertap.targets.target import Target
from layertap.weights.branches import Branch, find_branches
from layertap.weights.plan import read_plan
from layertap.weights.pruning import prune

FEATURES = 64
"""Features of a block of columns."""
TOKENS = 96
"""Tokens whose own loss is taken back through the model; of a longer prompt the last ones."""
TOGETHER = 8
"""Copies of the prompt that go through the model at once, each for another token's loss."""
FOLLOWING = 16
"""Tokens of the text that follows."""

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One model on one prompt. NaN stands where nothing was measured: a token without a next one has no loss."""

    activation: Numbers
    """Norms: layer, token, block of 64 features."""
    gradient: Numbers
    """The same of the gradient of each token's own loss."""
    loss: list[float]
    """Of each token: minus the log probability of the next."""
    text: str
    ids: list[int]
    """What follows, greedily."""


@dataclass(frozen=True, kw_only=True)
class Scan:
    """The model as it is (A), and without the branches that were clicked off (B)."""

    number: int
    tokens: list[str]
    layers: list[str]
    weights: Numbers
    """Root mean square of the weights of each layer that write to a block of features: layer, block."""
    a: Reading
    b: Reading
    skipped: list[str]


@dataclass
class Scanner:
    """A model that is opened once, and run when it is asked for."""

    spec: str
    plan: str = ""
    prompt: str = ""
    scan: Scan | None = None
    doing: str = ""
    """What the run is at, for the page."""
    _target: Target | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    branches: list[Branch] = field(default_factory=list)
    layers: list[tuple[str, nn.Module]] = field(default_factory=list, repr=False)
    why_no_branches: str = ""

    def open(self) -> None:
        """Opens the model; an error states what is wrong with it, before a page is shown."""
        target = open_target(self.spec)
        target.model.eval()
        try:
            self.branches = find_branches(target.model)
        except BadArgument as error:
            self.why_no_branches = str(error)
        paths = dict.fromkeys(branch.block for branch in self.branches) or _longest_list(target.model)
        self.layers = [(path, target.model.get_submodule(path)) for path in paths]
        if not self.layers:
            raise BadArgument(tr("scan.no_layers", model=type(target.model).__name__))
        if self.plan:
            read_plan(self.plan, self.branches)  # what is wrong with it is reported at once
        self._target = target

    @property
    def target(self) -> Target:
        assert self._target is not None
        return self._target

    @property
    def planned(self) -> list[str]:
        """The branches that the plan skips."""
        return list(read_plan(self.plan, self.branches).paths) if self.plan else []

    def run(self, *, prompt: str = "", ids: Sequence[int] = (), skipped: Sequence[str] = ()) -> Scan:
        """Runs the prompt both ways; one at a time."""
        known = {branch.path for branch in self.branches}
        unknown = [path for path in skipped if path not in known]
        if unknown:
            raise BadArgument(tr("scan.no_branch", path=unknown[0]))
        with self._lock, self._told():
            inputs, tokens = self._inputs(prompt, ids)
            a = self._reading(inputs, "A")
            b = a
            if skipped:
                with prune(self.target.model, dict.fromkeys(skipped, "skip"), inputs=self._bare(inputs)):
                    b = self._reading(inputs, "B")
            number = 1 if self.scan is None else self.scan.number + 1
            self.scan = Scan(
                number=number,
                tokens=tokens,
                layers=[path for path, _ in self.layers],
                weights=self._weights(a.activation.shape[-1]),
                a=a,
                b=b,
                skipped=list(skipped),
            )
        return self.scan

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.doing = ""

    def _inputs(self, prompt: str, ids: Sequence[int]) -> tuple[torch.Tensor, list[str]]:
        tokenizer = self.target.load_tokenizer() if self.target.load_tokenizer is not None else None
        if ids:
            found = torch.tensor([list(ids)])
        elif prompt:
            if tokenizer is None:
                raise BadArgument(tr("scan.no_tokenizer"))
            found = tokenizer(prompt, return_tensors="pt")["input_ids"]
        else:
            found = self._own_ids()
        vocabulary = _vocabulary(self.target.model)
        if found.numel() == 0 or int(found.min()) < 0 or (vocabulary and int(found.max()) >= vocabulary):
            raise BadArgument(tr("scan.bad_ids", count=vocabulary or "?"))
        device = next(iter(self.target.model.parameters())).device
        values = found[0].tolist()
        texts = [tokenizer.decode([one]) for one in values] if tokenizer is not None else [str(one) for one in values]
        return found[:1].to(device), texts

    def _own_ids(self) -> torch.Tensor:
        own = self.target.inputs
        values = list(own.values()) if isinstance(own, Mapping) else list(own or ())
        found = [
            one for one in values if isinstance(one, torch.Tensor) and not one.is_floating_point() and one.dim() == 2
        ]
        if not found:
            raise BadArgument(tr("scan.nothing_to_run"))
        return found[0]

    def _bare(self, ids: torch.Tensor) -> Any:
        """The ids as the model takes them; without a cache, so that a skipped attention cannot put one out of step."""
        return {"input_ids": ids, "use_cache": False} if hasattr(self.target.model, "config") else (ids,)

    def _logits(self, ids: torch.Tensor) -> torch.Tensor:
        inputs = self._bare(ids)
        output = self.target.model(**inputs) if isinstance(inputs, dict) else self.target.model(*inputs)
        logits = getattr(output, "logits", None)
        logits = logits if logits is not None else (output[0] if isinstance(output, (tuple, list)) else output)
        if not isinstance(logits, torch.Tensor) or logits.dim() != 3 or logits.shape[:2] != ids.shape:
            raise BadArgument(tr("scan.no_logits", model=type(self.target.model).__name__))
        return logits

    def _reading(self, ids: torch.Tensor, name: str) -> Reading:
        held: dict[int, torch.Tensor] = {}
        with _parameters_frozen(self.target.model):
            with torch.no_grad(), _watched([module for _, module in self.layers], held):
                loss = _losses(self._logits(ids), ids)[0]
            states = [held[place][0] if place in held else None for place in range(len(self.layers))]
            width = max((state.shape[-1] for state in states if state is not None), default=1)
            activation = np.full((len(states), ids.shape[1], math.ceil(width / FEATURES)), np.nan)
            for place, state in enumerate(states):
                if state is not None:
                    norms = _norms(state)
                    activation[place, :, : norms.shape[1]] = norms
            gradient = np.full_like(activation, np.nan)
            wanted = range(max(0, len(loss) - TOKENS), len(loss))
            for begin in range(wanted.start, wanted.stop, TOGETHER):
                self.doing = tr("scan.doing_gradients", side=name, token=begin + 1, count=len(loss))
                self._gradients(ids, range(begin, min(begin + TOGETHER, wanted.stop)), gradient)
        following = self._following(ids, name)
        return Reading(
            activation=activation,
            gradient=gradient,
            loss=[*(float(one) for one in loss), math.nan],
            text=self._decoded(following),
            ids=following,
        )

    def _gradients(self, ids: torch.Tensor, tokens: range, into: Numbers) -> None:
        """Each token's own loss back to what every layer hands on at that token: one copy of the prompt for each."""
        held: dict[int, torch.Tensor] = {}
        with torch.enable_grad(), _watched([module for _, module in self.layers], held):
            copies = ids.expand(len(tokens), -1)
            losses = _losses(self._logits(copies), copies)
            own = losses[torch.arange(len(tokens)), torch.tensor(list(tokens))].sum()
        wanted = {place: state for place, state in held.items() if state.requires_grad}
        if not wanted or not own.requires_grad:
            return
        found = torch.autograd.grad(own, list(wanted.values()), allow_unused=True)
        for place, gradient in zip(wanted, found, strict=True):
            if gradient is not None:
                for copy, token in enumerate(tokens):
                    norms = _norms(gradient[copy, token : token + 1])
                    into[place, token, : norms.shape[1]] = norms[0]

    def _following(self, ids: torch.Tensor, name: str) -> list[int]:
        found: list[int] = []
        limit = getattr(getattr(self.target.model, "config", None), "max_position_embeddings", None)
        with torch.no_grad():
            for place in range(FOLLOWING):
                self.doing = tr("scan.doing_text", side=name, token=place + 1, count=FOLLOWING)
                if isinstance(limit, int) and ids.shape[1] >= limit:
                    break
                chosen = self._logits(ids)[:, -1:].argmax(-1)
                found.append(int(chosen))
                ids = torch.cat([ids, chosen.to(ids)], 1)
        return found

    def _decoded(self, ids: list[int]) -> str:
        if self.target.load_tokenizer is None:
            return " ".join(map(str, ids))
        return str(self.target.load_tokenizer().decode(ids))

    def _weights(self, blocks: int) -> Numbers:
        found = np.full((len(self.layers), blocks), np.nan)
        for place, (_, module) in enumerate(self.layers):
            squares, counts = np.zeros(blocks), np.zeros(blocks)
            for weight in module.parameters():
                if weight.dim() != 2 or not weight.is_floating_point() or math.ceil(len(weight) / FEATURES) != blocks:
                    continue
                rows = weight.detach().float().square().sum(1).cpu().double().numpy()
                for block in range(blocks):
                    part = rows[block * FEATURES : (block + 1) * FEATURES]
                    squares[block] += part.sum()
                    counts[block] += part.size * weight.shape[1]
            known = counts > 0
            found[place, known] = np.sqrt(squares[known] / counts[known])
        return found


@contextmanager
def _parameters_frozen(model: nn.Module) -> Iterator[None]:
    """The gradients are those of activations: none is left on a parameter."""
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in wanted:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in wanted:
            parameter.requires_grad_(True)


@contextmanager
def _watched(modules: Sequence[nn.Module], held: dict[int, torch.Tensor]) -> Iterator[None]:
    """What each module returns; the first one's becomes a leaf that asks for gradients."""

    def keep(place: int) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            state = output[0] if isinstance(output, (tuple, list)) else output
            if not isinstance(state, torch.Tensor) or place in held:
                return None
            if not state.requires_grad and torch.is_grad_enabled():
                state = state.detach().requires_grad_()
            held[place] = state
            return (state, *output[1:]) if isinstance(output, (tuple, list)) else state

        return hook

    with ExitStack() as hooks:
        for place, module in enumerate(modules):
            hooks.callback(module.register_forward_hook(keep(place)).remove)
        yield


def _losses(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Minus the log probability of each next token."""
    chances = torch.log_softmax(logits[:, :-1].float(), -1)
    return -chances.gather(-1, ids[:, 1:, None].to(chances.device))[..., 0]


def _norms(rows: torch.Tensor) -> Numbers:
    """The norm of each block of 64 features, in double precision: small gradients are not rounded away."""
    values = rows.detach().double()
    blocks = math.ceil(values.shape[-1] / FEATURES)
    padded = nn.functional.pad(values, (0, blocks * FEATURES - values.shape[-1]))
    found: Numbers = padded.unflatten(-1, (blocks, FEATURES)).norm(dim=-1).cpu().numpy()
    return found


def _longest_list(model: nn.Module) -> list[str]:
    best: list[str] = []
    for path, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) > len(best):
            best = [f"{path}.{name}" if path else name for name, _ in module.named_children()]
    return best


def _vocabulary(model: nn.Module) -> int:
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    if isinstance(size, int):
        return size
    return next((module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)), 0)
