"""`with loading() as load:` around any code that loads weights: what was read, into what, and what never arrived.

`from_pretrained` and `load_state_dict(strict=False)` go on after anything. Within the block they are watched from
outside: which model was loaded, from which files or dictionaries; every tensor's fingerprint is taken before, so that
one which the checkpoint holds and nobody wrote is known for certain.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from layertap.errors import BadArgument, WeightsWrong
from layertap.measure import measure, supported
from layertap.weights.audit import audit
from layertap.weights.result import Audit
from layertap.weights.sources import open_weights

_READERS = (("torch", "load"), ("safetensors.torch", "load_file"), ("safetensors.torch", "load_model"))


class Loading:
    """Watches what is loaded inside a `with` block; `audit` holds the result after it.

    Name the `model` where the code copies tensors by hand; otherwise it is the one that was loaded.
    """

    def __init__(self, model: nn.Module | None = None, *, strict: bool = False) -> None:
        self.strict = strict
        """Whether a fault raises `WeightsWrong` at the end of the block."""
        self._model = model
        self._folder: Path | None = None
        self._files: dict[str, None] = {}
        self._tensors: dict[str, torch.Tensor] = {}
        self._before: dict[str, int] = {}
        self._depth = 0
        self._patches: list[tuple[Any, str, Any, Any]] = []
        self._audit: Audit | None = None

    @property
    def audit(self) -> Audit:
        """What of the checkpoint is in the model."""
        if self._audit is None:
            raise BadArgument("nothing was loaded yet: the audit is there after the `with loading()` block")
        return self._audit

    def __enter__(self) -> Loading:
        if self._model is not None:
            self._fingerprint(self._model)
        self._patch(nn.Module, "load_state_dict", self._load_state_dict)
        transformers = sys.modules.get("transformers")
        if transformers is None:
            try:
                import transformers as imported

                transformers = imported
            except ImportError:
                transformers = None
        if transformers is not None:
            original = transformers.PreTrainedModel.__dict__["from_pretrained"]
            replaced = classmethod(functools.partial(_from_pretrained, self, original.__func__))
            self._set(transformers.PreTrainedModel, "from_pretrained", replaced, original)
        for name, attribute in _READERS:
            module = sys.modules.get(name)
            if module is not None and hasattr(module, attribute):
                self._patch(module, attribute, self._reader)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for owner, name, ours, original in reversed(self._patches):
            if owner.__dict__.get(name) is ours:  # somebody else's patch stays
                setattr(owner, name, original)
        self._patches.clear()
        if error is not None:
            return
        if self._model is None:
            raise BadArgument(
                "nothing was loaded inside the block: no from_pretrained and no load_state_dict was called; where the "
                "code copies tensors by hand, name the model: loading(model)"
            )
        source: Any = self._source()
        found = audit(self._model, source)
        self._audit = self._with_unwritten(found, open_weights(self._model))
        if self.strict and self._audit.verdict == "fault":
            raise WeightsWrong(str(self._audit))

    def _source(self) -> Any:
        if self._folder is not None:
            return self._folder
        if len(self._files) == 1:
            return next(iter(self._files))
        if self._files and not self._tensors:
            raise BadArgument(
                f"{len(self._files)} files were read, and no load_state_dict was called: audit them alone"
            )
        if not self._tensors:
            raise BadArgument("no checkpoint was read inside the block")
        return self._tensors

    def _with_unwritten(self, found: Audit, weights: Any) -> Audit:
        """Tensors that the checkpoint has, that differ from it, and that hold what they held before."""
        from dataclasses import replace

        rows = []
        for row in found.rows:
            entry = weights.entries.get(row.name)
            same = (
                row.status in ("changed", "constant", "nonfinite")
                and entry is not None
                and row.name in self._before
                and _fingerprint(entry.read()) == self._before[row.name]
            )
            rows.append(
                replace(row, status="unwritten", detail="it holds what it held before loading") if same else row
            )
        return replace(found, rows=tuple(rows))

    # What is watched.

    def _patch(self, owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
        original = owner.__dict__[name]
        self._set(owner, name, wrapper(original), original)

    def _set(self, owner: Any, name: str, ours: Any, original: Any) -> None:
        setattr(owner, name, ours)
        self._patches.append((owner, name, owner.__dict__[name], original))

    def _load_state_dict(self, original: Any) -> Any:
        watched = self

        @functools.wraps(original)
        def load_state_dict(self: nn.Module, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            if watched._depth or (watched._model is not None and self not in watched._model.modules()):
                return original(self, state_dict, *args, **kwargs)
            watched._begin(self)
            watched._tensors.update({n: t for n, t in state_dict.items() if isinstance(t, torch.Tensor)})
            watched._depth += 1
            try:
                return original(self, state_dict, *args, **kwargs)
            finally:
                watched._depth -= 1

        return load_state_dict

    def _reader(self, original: Any) -> Any:
        watched = self

        @functools.wraps(original)
        def read(*args: Any, **kwargs: Any) -> Any:
            if not watched._depth:
                for value in (*args, *kwargs.values()):
                    if isinstance(value, (str, os.PathLike)) and Path(value).is_file():
                        watched._files[os.fspath(value)] = None
            return original(*args, **kwargs)

        return read

    def _begin(self, model: nn.Module) -> None:
        if self._model is None:
            self._model = model
        if not self._before:
            self._fingerprint(self._model)

    def _fingerprint(self, model: nn.Module) -> None:
        for name, entry in open_weights(model).entries.items():
            if not entry.meta and name not in self._before:
                self._before[name] = _fingerprint(entry.read())


def _from_pretrained(watched: Loading, original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
    if watched._depth:
        return original(cls, *args, **kwargs)
    watched._depth += 1
    try:
        result = original(cls, *args, **kwargs)
    finally:
        watched._depth -= 1
    path = args[0] if args else kwargs.get("pretrained_model_name_or_path")
    watched._model = result[0] if isinstance(result, tuple) else result
    if isinstance(path, (str, os.PathLike)) and Path(path).is_dir():
        watched._folder = Path(path)
    return result


def _fingerprint(tensor: torch.Tensor) -> int:
    return measure(tensor).fingerprint if not supported(tensor) else 0


def loading(model: nn.Module | None = None, *, strict: bool = False) -> Loading:
    """Watches the weights that are loaded inside a `with` block; `strict=True` raises where something is wrong.

    >>> net, saved = nn.Linear(2, 2), nn.Linear(2, 2).state_dict()
    >>> del saved["bias"]
    >>> with loading() as load:
    ...     _ = net.load_state_dict(saved, strict=False)
    >>> load.audit.verdict, load.audit.by_status
    ('fault', {'exact': 1, 'missing': 1})
    """
    return Loading(model, strict=strict)
