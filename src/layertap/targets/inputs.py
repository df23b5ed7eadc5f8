"""What to run a target on."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from layertap.artefact import artefact_of
from layertap.errors import BadArgument, TargetError
from layertap.files import check_archive, open_regular, parse_json, read_bytes, reason
from layertap.messages import tr
from layertap.targets.target import Inputs, Target, as_inputs

DEFAULT_LENGTH = 32
"""How many random ids there are by default."""


def make_inputs(
    target: Target,
    prompt: str | None = None,
    input: str | os.PathLike[str] | None = None,  # noqa: A002
    seq_len: int | None = None,
    seed: int = 0,
) -> Inputs:
    """A prompt through the target's tokenizer, an input file, the factory's inputs, or seeded random ids.

    They lie on the model's device. Files: `.npz` and `.safetensors` by name, `.json` as an object of name → numbers,
    `.pt` with tensors only.

    >>> from torch import nn
    >>> make_inputs(Target(model=nn.Linear(2, 1), name="m.py:make"))
    Traceback (most recent call last):
    layertap.errors.TargetError: m.py:make: no inputs to run it with, and Linear has no vocabulary to draw ids from; ...
    """
    if prompt is not None and input is not None:
        raise BadArgument(tr("inputs.exclusive"))
    if seq_len is not None and (prompt is not None or input is not None or target.inputs is not None):
        source = "prompt" if prompt is not None else tr("inputs.file") if input is not None else tr("inputs.factory")
        raise BadArgument(tr("inputs.seq_len_own", seq_len=seq_len, source=source))
    if prompt is not None:
        inputs: Inputs = _from_prompt(target, prompt)
    elif input is not None:
        inputs = _from_file(target, Path(input).expanduser())
    elif target.inputs is not None:
        inputs = target.inputs
    else:
        inputs = _random(target, DEFAULT_LENGTH if seq_len is None else seq_len, seed)
    return _on_device(inputs, target.model)


def _from_prompt(target: Target, prompt: str) -> Inputs:
    if target.load_tokenizer is None:
        raise TargetError(tr("inputs.no_tokenizer", name=target.name))
    encoded = target.load_tokenizer()(prompt, return_tensors="pt")
    named, _ = _parameters(target.model)
    # Some tokenizers offer more (token_type_ids) than the model takes.
    inputs = {name: value for name, value in encoded.items() if name in named}
    if "input_ids" not in inputs or inputs["input_ids"].numel() == 0:
        raise BadArgument(tr("inputs.no_tokens", prompt=prompt))
    return inputs


def _from_file(target: Target, path: Path) -> Inputs:
    if not path.is_file():
        raise TargetError(tr("inputs.no_file", path=path, cwd=Path.cwd()))
    if path.suffix not in _READERS:
        raise TargetError(
            tr("inputs.suffix", path=path, suffix=path.suffix or tr("inputs.no_suffix"), READERS=", ".join(_READERS))
        )
    try:
        inputs = as_inputs(_READERS[path.suffix](path))
    except TargetError:
        raise
    except Exception as error:
        # Readers raise what they like: pickle.UnpicklingError, SafetensorError, zipfile.BadZipFile, ValueError.
        raise TargetError(tr("inputs.unreadable", path=path, suffix=path.suffix, reason=reason(error))) from error
    if not inputs:
        raise TargetError(tr("inputs.empty", path=path))
    _check_names(target, inputs, path)
    return inputs


def _check_names(target: Target, inputs: Inputs, path: Path) -> None:
    named, takes_any = _parameters(target.model)
    unknown = [name for name in inputs if name not in named] if isinstance(inputs, dict) and not takes_any else []
    if unknown:
        raise TargetError(
            tr(
                "inputs.unknown",
                path=path,
                map=", ".join(map(repr, unknown)),
                name=type(target.model).__name__,
                named=", ".join(named),
            )
        )


def _read_npz(path: Path) -> Any:
    import numpy as np
    import torch

    check_archive(path, str(path))
    with open_regular(path) as file, np.load(file, allow_pickle=False) as arrays:
        tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    # `np.savez(path, a, b)` names its arrays arr_0, arr_1: those are positional arguments.
    if all(re.fullmatch(r"arr_\d+", name) for name in tensors):
        return tuple(tensors[f"arr_{number}"] for number in range(len(tensors)))
    return tensors


def _read_safetensors(path: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(path)


def _read_json(path: Path) -> Any:
    import torch

    values = parse_json(read_bytes(path))
    if not isinstance(values, dict):
        raise TargetError(tr("inputs.not_object", path=path, name=type(values).__name__))
    return {name: torch.tensor(value) if isinstance(value, list) else value for name, value in values.items()}


def _read_pt(path: Path) -> Any:

    from layertap.formats.safe_load import load_pt

    return load_pt(path)


_READERS: dict[str, Callable[[Path], Any]] = {
    ".npz": _read_npz,
    ".safetensors": _read_safetensors,
    ".json": _read_json,
    ".pt": _read_pt,
}


def _random(target: Target, length: int, seed: int) -> Inputs:
    import torch

    if length < 1:
        raise BadArgument(tr("inputs.seq_len", length=length))
    vocabulary = _vocabulary(target.model)
    if vocabulary is None or "input_ids" not in _parameters(target.model)[0]:
        if artefact_of(target.model) is not None:
            takes = ", ".join(map(str, target.model.reader.contents.arguments))
            raise TargetError(tr("inputs.none", name=target.name, takes=takes))
        raise TargetError(tr("inputs.no_vocabulary", name=target.name, name2=type(target.model).__name__))
    generator = torch.Generator().manual_seed(seed)
    return {"input_ids": torch.randint(vocabulary, (1, length), generator=generator)}


def _vocabulary(model: Any) -> int | None:
    config: Any = getattr(model, "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    size = getattr(config, "vocab_size", None)
    return size if isinstance(size, int) and size > 0 else None


def _parameters(model: Any) -> tuple[list[str], bool]:
    """The names that `forward` takes, and whether it takes any other as well."""
    if artefact_of(model) is not None:  # a compiled file, whose tree takes anything
        return [argument.name for argument in model.reader.contents.arguments], False
    parameters = inspect.signature(model.forward).parameters.values()
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    named = [parameter.name for parameter in parameters if parameter.kind not in variable]
    return named, any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)


def _on_device(inputs: Inputs, model: Any) -> Inputs:
    weight = next(iter(model.parameters()), None)
    if weight is None or (weight.is_meta and artefact_of(model) is not None):  # its runtime holds the weights
        return inputs
    if isinstance(inputs, dict):
        return {name: _moved(value, weight.device) for name, value in inputs.items()}
    return tuple(_moved(value, weight.device) for value in inputs)


def _moved(value: Any, device: Any) -> Any:
    return value.to(device) if hasattr(value, "to") else value
