"""`with loading() as load:` around any code that loads weights: what was read, into what, and what never arrived.

`from_pretrained` and `load_state_dict(strict=False)` go on after anything. Within the block they are watched from
outside: which model was loaded, from which files or dictionaries. Every tensor's fingerprint is taken before, and fresh
memory is marked, so that what was never written is known for certain.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import torch
from torch import nn

from layertap.errors import BadArgument, WeightsWrong
from layertap.measure import measure, supported
from layertap.messages import tr
from layertap.result import Note
from layertap.weights.audit import audit
from layertap.weights.entries import Entry, Weights
from layertap.weights.marker import mark, never_written
from layertap.weights.patches import Patches
from layertap.weights.result import Audit
from layertap.weights.sources import open_weights

_QUIET = ("exact", "converted", "cast", "unexpected", "meta")


class Loading:
    """Watches what is loaded inside a `with` block; `audit` contains the result after it.

    Name the `model` where the code copies tensors by hand; otherwise it is the one that was loaded.
    """

    def __init__(self, model: nn.Module | None = None, *, strict: bool = False) -> None:
        self.strict = strict
        """Whether a fault raises `WeightsWrong` at the end of the block."""
        self._model = model
        self._folder: Path | None = None
        self._files: dict[str, set[str]] = {}
        """Every file that was read, and the names of its tensors."""
        self._tensors: dict[str, torch.Tensor] = {}
        self._before: dict[str, int] = {}
        self._marked: dict[str, None] = {}
        self._depth = 0
        self._own = False
        self._patches = Patches()
        self._audit: Audit | None = None

    @property
    def audit(self) -> Audit:
        """What of the checkpoint is in the model."""
        if self._audit is None:
            raise BadArgument(tr("audit.not_yet"))
        return self._audit

    def __enter__(self) -> Loading:
        if self._model is not None:
            self._fingerprint(self._model)
        self._patches.replace(nn.Module, "load_state_dict", self._load_state_dict)
        self._patches.replace(torch, "load", self._reader)
        # Those who load plain state dicts do not wait for transformers; a block that imports it is watched as well.
        self._patches.when_imported(
            {
                "transformers.modeling_utils": self._watch_transformers,
                "safetensors.torch": self._watch_safetensors,
                "torch.distributed.checkpoint.state_dict_loader": self._watch_distributed,
                "torch.distributed.checkpoint": self._watch_distributed,
                "accelerate.big_modeling": self._watch_accelerate,
                "accelerate.utils.modeling": self._watch_accelerate,
                "accelerate": self._watch_accelerate,
            }
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patches.undo()
        if error is not None:
            return
        if self._model is None:
            raise BadArgument(tr("audit.no_load"))
        found = audit(self._model, self._source())
        rows = self._with_unwritten(found, open_weights(self._model))
        self._audit = replace(found, rows=tuple(never_written(rows, self._model, self._marked)))
        if self.strict and self._audit.verdict == "fault":
            raise WeightsWrong(str(self._audit))

    # What it was loaded from.

    def _source(self) -> Any:
        if self._folder is not None:
            return self._folder
        files = self._relevant_files()
        if len(files) == 1:
            return Path(files[0])
        if len(files) > 1:
            joined = _joined(files)
            if joined is not None:
                return joined
        if self._tensors:
            return self._tensors
        if self._own:
            raise BadArgument(tr("audit.own_tensors"))
        raise BadArgument(tr("audit.no_checkpoint"))

    def _relevant_files(self) -> list[str]:
        """Files with tensors of the names that were loaded; others, an optimizer's state, do not matter."""
        assert self._model is not None
        wanted = set(self._tensors) or set(self._model.state_dict())
        ends = {name.rpartition(".")[2] if "." not in name else ".".join(name.split(".")[-2:]) for name in wanted}
        return [
            file
            for file, names in self._files.items()
            if any(name in wanted or ".".join(name.split(".")[-2:]) in ends for name in names)
        ]

    def _with_unwritten(self, found: Audit, weights: Weights) -> list[Any]:
        """Tensors that differ from the checkpoint's, or are not in it, and hold what they held before."""
        rows = []
        for row in found.rows:
            entry = weights.entries.get(row.name)
            kept = entry is not None and not entry.meta and row.status not in _QUIET and self._is_as_before(entry)
            if kept and row.status == "missing":
                row = replace(row, detail=Note("audit.not_loaded", first=row.detail))
            elif kept:
                row = replace(row, status="unwritten", detail=Note("audit.as_before"))
            rows.append(row)
        return rows

    def _is_as_before(self, entry: Entry) -> bool:
        return entry.name in self._before and _fingerprint(entry.read()) == self._before[entry.name]

    # What is watched.

    def _load_state_dict(self, original: Any) -> Any:
        watched = self

        @functools.wraps(original)
        def load_state_dict(self: nn.Module, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            if watched._depth or (watched._model is not None and self not in watched._model.modules()):
                return original(self, state_dict, *args, **kwargs)
            watched._begin(self)
            watched._given(self, state_dict)
            watched._depth += 1
            try:
                return original(self, state_dict, *args, **kwargs)
            finally:
                watched._depth -= 1

        return load_state_dict

    def _given(self, module: nn.Module, state_dict: Any) -> None:
        """The tensors of a state dict under the names that they have in the whole model, the model's own left out."""
        above = ""
        if self._model is not None and module is not self._model:
            above = next(f"{path}." for path, held in self._model.named_modules() if held is module)
        held = [tensor for tensor in module.state_dict().values() if isinstance(tensor, torch.Tensor)]
        own = {tensor.untyped_storage()._cdata for tensor in held if _real(tensor)}
        for name, tensor in state_dict.items() if isinstance(state_dict, Mapping) else ():
            if not isinstance(tensor, torch.Tensor):
                continue
            if _real(tensor) and tensor.untyped_storage()._cdata in own:
                self._own = True
            else:
                self._tensors[above + str(name)] = tensor

    def _reader(self, original: Any) -> Any:
        """A function that returns the tensors of a file."""
        watched = self

        @functools.wraps(original)
        def read(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if not watched._depth:
                for value in (*args, *kwargs.values()):
                    if isinstance(value, (str, os.PathLike)) and Path(value).is_file():
                        watched._files[os.fspath(value)] = _names(result)
            return result

        return read

    def _folder_reader(self, original: Any) -> Any:
        """A function that is given a folder, and writes into tensors or a model."""
        watched = self

        @functools.wraps(original)
        def read(*args: Any, **kwargs: Any) -> Any:
            if watched._depth:
                return original(*args, **kwargs)
            for value in (*args, *kwargs.values()):
                if isinstance(value, nn.Module):
                    watched._begin(value)
                elif isinstance(value, (str, os.PathLike)) and Path(value).exists():
                    watched._folder = Path(value)
            watched._depth += 1
            try:
                return original(*args, **kwargs)
            finally:
                watched._depth -= 1

        return read

    def _watch_safetensors(self, module: ModuleType) -> None:
        self._patches.replace(module, "load_file", self._reader)
        self._patches.replace(module, "load_model", self._folder_reader)

    def _watch_distributed(self, module: ModuleType) -> None:
        self._patches.replace(module, "load", self._folder_reader)

    def _watch_accelerate(self, module: ModuleType) -> None:
        for name in ("load_checkpoint_and_dispatch", "load_checkpoint_in_model"):
            self._patches.replace(module, name, self._folder_reader)

    def _watch_transformers(self, module: Any) -> None:
        cls = module.PreTrainedModel
        self._patches.replace(
            cls, "from_pretrained", lambda original: classmethod(functools.partial(_loaded, self, original.__func__))
        )
        self._patches.replace(cls, "_move_missing_keys_from_meta_to_device", self._marking)

    def _marking(self, original: Any) -> Any:
        """transformers' own making of room for what a checkpoint lacks; the room is marked before it is initialised."""
        watched = self

        @functools.wraps(original)
        def make(self: Any, missing: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, missing, *args, **kwargs)
            held = dict(self.named_parameters()) | dict(self.named_buffers())
            tied = getattr(self, "all_tied_weights_keys", None) or {}
            fresh = [name for name in missing if name in held and name not in tied]
            kept = [name for name, _ in self.named_non_persistent_buffers()]
            names = [name for name in (*fresh, *kept) if name in held and not held[name].is_meta]
            mark(held[name] for name in names)
            watched._marked.update(dict.fromkeys(names))
            return result

        return make

    def _begin(self, model: nn.Module) -> None:
        if self._model is None:
            self._model = model
        if not self._before:
            self._fingerprint(self._model)

    def _fingerprint(self, model: nn.Module) -> None:
        for name, entry in open_weights(model).entries.items():
            if not entry.meta and name not in self._before:
                self._before[name] = _fingerprint(entry.read())


def _loaded(watched: Loading, original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
    """transformers' from_pretrained."""
    if watched._depth:
        return original(cls, *args, **kwargs)
    watched._depth += 1
    try:
        result = original(cls, *args, **kwargs)
    finally:
        watched._depth -= 1
    path = args[0] if args else kwargs.get("pretrained_model_name_or_path")
    watched._model = result[0] if isinstance(result, tuple) else result
    given = kwargs.get("state_dict")
    if isinstance(given, Mapping):
        watched._tensors.update(given)
    elif isinstance(path, (str, os.PathLike)):
        watched._folder = _folder_of(path, kwargs)
    return result


def _folder_of(path: str | os.PathLike[str], kwargs: Mapping[str, Any]) -> Path | None:
    """Where the checkpoint is: a folder, or the place in the hub's cache that it was downloaded to."""
    folder = Path(path)
    if not folder.exists():
        from transformers.utils.hub import cached_file

        wanted = {name: kwargs[name] for name in ("cache_dir", "revision", "subfolder") if kwargs.get(name)}
        try:
            found = cached_file(str(path), "config.json", local_files_only=True, **wanted)
        except OSError:
            return None
        return Path(found).parent if found is not None else None
    if kwargs.get("subfolder"):
        folder = folder / str(kwargs["subfolder"])
    return folder / str(kwargs["gguf_file"]) if kwargs.get("gguf_file") else folder


def _joined(files: list[str]) -> Weights | None:
    """Shards that were read one by one, as one checkpoint; None where two files have tensors of one name."""
    entries: dict[str, Entry] = {}
    for file in files:
        for name, entry in open_weights(Path(file)).entries.items():
            if name in entries:
                return None
            entries[name] = entry
    where = tr("audit.files", count=len(files), folder=Path(files[0]).parent)
    return Weights(name=where, entries=entries)


def _names(result: Any) -> set[str]:
    """The names of tensors in what a reader returned, also below `model` or `state_dict`."""
    found: set[str] = set()
    for key, value in result.items() if isinstance(result, Mapping) else ():
        if isinstance(value, torch.Tensor):
            found.add(str(key))
        elif isinstance(value, Mapping) and not str(key).startswith("optim"):
            found |= {str(name) for name, tensor in value.items() if isinstance(tensor, torch.Tensor)}
    return found


def _real(tensor: torch.Tensor) -> bool:
    """Whether it has memory of its own that can be distinguished."""
    return not tensor.is_meta and tensor.layout == torch.strided


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
