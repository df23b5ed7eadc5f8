"""A mode made real in this process: its model, and the sweep's input."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from layertap.capture.leaves import leaves, map_tensors
from layertap.errors import BadArgument, TargetError
from layertap.messages import tr
from layertap.result import Note
from layertap.sweeping.identity import identity
from layertap.sweeping.quantising import quantise
from layertap.sweeping.seeds import set_seeds
from layertap.targets import Inputs, Target, make_inputs, open_target
from layertap.targets.shadow import Artefact


@dataclass(kw_only=True)
class Opened:
    """A mode's model and what it is run on."""

    target: Target
    model: Any
    """As the mode has it: cast, quantised, moved, compiled."""
    plain: nn.Module
    """The same without torch.compile."""
    inputs: Inputs
    """As the mode's model takes them."""
    given: dict[str, dict[str, Any]]
    """Leaf → dtype, shape and fingerprint of the input as it was made, before a cast or a batch."""
    quantised: tuple[str, ...]
    """The modules whose weights were quantised."""
    notes: list[Note]

    def call(self, inputs: Inputs | None = None) -> Any:
        """One forward pass without gradients."""
        given = self.inputs if inputs is None else inputs
        with torch.no_grad():
            return self.model(**given) if isinstance(given, dict) else self.model(*given)


def open_mode(task: Mapping[str, Any]) -> Opened:
    """Opens the task's target as its mode says; seeds are set before, so that what is drawn at random is the same."""
    mode = task["mode"]
    notes: list[Note] = []
    set_seeds(task["seed"])
    target = open_target(task["target"], arguments=mode["arguments"] or None)
    inputs = _inputs(target, task["input"], task["seed"], notes)
    model = target.model
    given = {leaf.path: identity(leaf.tensor) for leaf in leaves(inputs) if leaf.tensor is not None}
    fixed = [key for key in ("dtype", "quantize", "device", "compile") if mode[key]]
    if isinstance(model, Artefact) and fixed:
        raise BadArgument(tr("sweep.compiled_file", target=target.name, keys=", ".join(fixed)))
    if "random" in task["input"]:
        inputs = _as_the_weights(model, inputs)
    if mode["dtype"]:
        dtype = getattr(torch, mode["dtype"])
        model = model.to(dtype)
        inputs = map_tensors(inputs, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)
    quantised: tuple[str, ...] = ()
    if mode["quantize"]:
        quantised = quantise(model, mode["quantize"], mode["ignore"])
    if mode["device"]:
        try:
            model = model.to(mode["device"])
        except (RuntimeError, AssertionError) as error:
            raise TargetError(f"device {mode['device']!r}: {str(error).splitlines()[0]}") from error
        inputs = map_tensors(inputs, lambda tensor: tensor.to(mode["device"]))
    plain = model
    if mode["compile"]:
        model = _compiled(model, mode["compile"])
    set_seeds(task["seed"])
    return Opened(
        target=target,
        model=model,
        plain=plain,
        inputs=inputs,
        given=given,
        quantised=quantised,
        notes=notes,
    )


def _compiled(model: Any, backend: str) -> Any:
    known = torch.compiler.list_backends(exclude_tags=())
    if backend not in known:
        raise BadArgument(tr("sweeping.no_backend", backend=backend, known=", ".join(known)))
    return torch.compile(model, backend=backend)


def _inputs(target: Target, spec: Mapping[str, Any], seed: int, notes: list[Note]) -> Inputs:
    asked = spec.get("seq_len", 0)
    if "random" in spec:
        made = _random(target, spec, seed)
    elif "file" in spec:
        made = make_inputs(target, input=Path(spec["file"]))
    elif "prompt" in spec:
        made = make_inputs(target, prompt=spec["prompt"])
    elif target.inputs is None and asked:
        made = make_inputs(target, seq_len=asked, seed=spec.get("seed", seed))
    else:
        made = make_inputs(target, seed=spec.get("seed", seed))
    return _cut(made, asked, notes) if asked and "random" not in spec else made


def _random(target: Target, spec: Mapping[str, Any], seed: int) -> Inputs:
    """Ids below the vocabulary; numbers of a normal distribution for a model that has none."""
    generator = torch.Generator().manual_seed(spec.get("seed", seed))
    shape = list(spec["random"])
    if "seq_len" in spec:
        shape[-1] = spec["seq_len"]
    config: Any = getattr(target.model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    vocabulary = spec.get("vocabulary") or getattr(config, "vocab_size", None)
    if isinstance(vocabulary, int):
        made = torch.randint(vocabulary, shape, generator=generator, dtype=torch.int64)
    else:
        made = torch.randn(shape, generator=generator, dtype=torch.float32)  # whatever default the mode has set
    weight = next(iter(target.model.parameters()), None)
    if weight is not None and not weight.is_meta:
        made = made.to(weight.device)
    try:
        names = set(inspect.signature(target.model.forward).parameters)
    except (TypeError, ValueError):
        names = set()
    return {"input_ids": made} if "input_ids" in names else (made,)


def _as_the_weights(model: Any, inputs: Inputs) -> Inputs:
    """Random numbers in the dtype that the model is in: a factory may have built it in half precision."""
    dtype = next((one.dtype for one in model.parameters() if one.is_floating_point()), torch.float32)
    if dtype.itemsize < 2:
        return inputs
    return map_tensors(inputs, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)  # type: ignore[no-any-return]


def _cut(inputs: Inputs, asked: int, notes: list[Note]) -> Inputs:
    """Samples of ids that are longer than asked are cut; of a shorter one it is said."""
    lengths = {
        leaf.path: leaf.tensor.shape[1]
        for leaf in leaves(inputs)
        if leaf.tensor is not None and leaf.tensor.ndim == 2 and not leaf.tensor.is_floating_point()
    }
    if not lengths:
        notes.append(Note("sweep.no_tokens", asked=asked))
        return inputs
    length = max(lengths.values())
    if length < asked:
        notes.append(Note("sweep.short", length=length, asked=asked))
    if length <= asked:
        return inputs
    return map_tensors(inputs, lambda tensor: tensor[:, :asked] if tensor.shape[1:2] == (length,) else tensor)  # type: ignore[no-any-return]
