"""One of the two models: run again and again from the same state on the same inputs, and left as it was."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from layertap.capture import taps
from layertap.capture.leaves import leaves, map_tensors
from layertap.fault.local import Local
from layertap.targets.target import expect_inputs

Inputs = Mapping[str, Any] | Sequence[Any] | torch.Tensor | Callable[[nn.Module], Any]
"""Keywords, positional arguments, the one tensor, or a function that runs a model."""

SEED = 20_240_229
"""Both sides draw the same random numbers."""


class ModelRunner:
    """A model, what it is run on, and how often it was run."""

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        self.model = model
        self.dtype = main_dtype(model)
        devices = (p.device for p in model.parameters() if not p.is_meta)  # a file's weights are in its runtime
        self.device = next(devices, torch.device("cpu"))
        self.forwards = 0
        self.autocast: torch.dtype | None = None
        """The dtype that its operators are brought to, where it is to be run as a model under autocast."""
        self.draws = False
        """Whether a run has used random numbers."""
        self._inputs = inputs if callable(inputs) else expect_inputs(inputs)
        self._training = {module: module.training for module in model.modules()}
        self._grads = {parameter: parameter.grad for parameter in model.parameters()}
        # Code that is not ours may take an optimizer's step; a plain forward pass changes buffers at most.
        kinds = ("_parameters", "_buffers") if callable(inputs) else ("_buffers",)
        self._state = [_KeptTensor(own, name) for own in _own(model, kinds) for name in own]

    def run(self, watchers: Mapping[nn.Module, taps.Tap] | None = None, within: Any = None) -> Any:
        """Runs the model with taps on it; `within` is one more context to run it in."""
        self._prepare(grads=None)
        self.forwards += 1
        with ExitStack() as stack:
            # At the end, not at the next beginning: in between, the two models' numbers are compared and copied.
            stack.callback(self.rest)
            stack.enter_context(_seeded(self.device))
            if watchers and torch.distributed.is_available() and torch.distributed.is_initialized():
                watchers = {module: Local(tap) for module, tap in watchers.items()}
            if watchers:
                taps.attach(watchers)
                stack.callback(taps.detach, watchers)
            if within is not None:
                stack.enter_context(within)
            if self.autocast is not None:
                stack.enter_context(torch.autocast(self.device.type, self.autocast))
            before = torch.get_rng_state()
            cuda = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
            output = self._call()
            self.draws |= not torch.equal(before, torch.get_rng_state())
            if cuda is not None:
                self.draws |= not torch.equal(cuda, torch.cuda.get_rng_state(self.device))
            return self._detached(output)

    @property
    def returns_output(self) -> bool:
        """Whether what a run returns is what the model returned, and not a function that calls it."""
        return not callable(self._inputs)

    def like(self, model: nn.Module) -> ModelRunner:
        """Another model, run on the same inputs."""
        return ModelRunner(model, self._inputs)

    def rest(self) -> None:
        """Parameters and buffers as they were before the runs."""
        for kept in self._state:
            kept.restore()

    def leave(self) -> None:
        """Everything as it was found."""
        self._prepare(grads=self._grads)
        self.rest()

    def _call(self) -> Any:
        if callable(self._inputs):
            with torch.enable_grad():
                return self._inputs(self.model)
        with torch.no_grad():
            if isinstance(self._inputs, Mapping):
                return self.model(**{name: self._fit(value) for name, value in self._inputs.items()})
            return self.model(*(self._fit(value) for value in self._inputs))

    def _fit(self, value: Any) -> Any:
        """Each run has its own copy, a cache included, on the model's device and in its dtype."""

        def fit(tensor: torch.Tensor) -> torch.Tensor:
            floating = tensor.is_floating_point() and self.dtype is not None
            return tensor.detach().to(self.device, self.dtype if floating else tensor.dtype, copy=True)

        # What deepcopy finds in its memo it does not copy: so a cache comes out with its tensors fitted too.
        met = [leaf.tensor for leaf in leaves(value) if leaf.tensor is not None]
        return copy.deepcopy(value, {id(tensor): fit(tensor) for tensor in met})

    def _detached(self, output: Any) -> Any:
        """The output, with copies in the place of parameters and buffers: those are put back after the run."""
        kept = {one.storage for one in self._state} - {None}
        if not any(leaf.tensor is not None and _storage(leaf.tensor) in kept for leaf in leaves(output)):
            return output

        def apart(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.detach().clone() if _storage(tensor) in kept else tensor

        return map_tensors(output, apart)

    def _prepare(self, grads: dict[nn.Parameter, torch.Tensor | None] | None) -> None:
        for module, training in self._training.items():
            if module.training != training:  # asked first: to set it takes ten times as long
                module.training = training
        for parameter in self._grads:
            parameter.grad = grads[parameter] if grads is not None else None


class _KeptTensor:
    """A parameter or buffer by its name, so that one that was exchanged comes back too."""

    def __init__(self, own: dict[str, torch.Tensor | None], name: str) -> None:
        self._own, self._name, self._tensor = own, name, own[name]
        self._value = None if self._tensor is None else self._tensor.detach().clone()
        self._version = version(self._tensor)
        self._small = type(self._tensor) is torch.Tensor and not self._tensor.is_meta
        self.storage = _storage(self._tensor)

    @torch.no_grad()
    def restore(self) -> None:
        self._own[self._name] = self._tensor
        if self._tensor is None or self._value is None:
            return
        # torch's batch normalisation writes its running statistics without counting it.
        if version(self._tensor) != self._version or (self._small and not torch.equal(self._tensor, self._value)):
            self._tensor.copy_(self._value)
            self._version = version(self._tensor)


def _own(model: nn.Module, kinds: tuple[str, ...]) -> Iterator[dict[str, torch.Tensor | None]]:
    for module in model.modules():
        yield from (getattr(module, kind) for kind in kinds)


def _storage(tensor: torch.Tensor | None) -> int | None:
    """Where the bytes of a plain tensor lie; None of any other."""
    if tensor is None or type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.layout != torch.strided:
        return None
    return tensor.untyped_storage().data_ptr() or None if tensor.device.type in ("cpu", "cuda", "mps") else None


def version(tensor: torch.Tensor | None) -> int:
    """How often a tensor was written into; -1 where torch does not count it."""
    return -1 if tensor is None or tensor.is_inference() else tensor._version


def main_dtype(model: nn.Module) -> torch.dtype | None:
    """The dtype that most of the parameters have; None where there are none."""
    sizes: Counter[torch.dtype] = Counter()
    for parameter in model.parameters():
        if parameter.is_floating_point() and parameter.dtype.itemsize > 1:
            sizes[parameter.dtype] += parameter.numel()
    return sizes.most_common(1)[0][0] if sizes else None


def autocast_now() -> torch.dtype | None:
    """The dtype that autocast brings operators to at this moment."""
    for kind in ("cuda", "cpu"):
        if torch.is_autocast_enabled(kind):
            return torch.get_autocast_dtype(kind)
    return None


@contextmanager
def _seeded(device: torch.device) -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  models draw from the global generator
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        seed(SEED)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


def seed(number: int) -> None:
    """All generators that a model may draw from."""
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number % 2**32)  # noqa: NPY002
