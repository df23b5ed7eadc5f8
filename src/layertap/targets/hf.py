"""`hf:PATH`: a Hugging Face folder on this machine. Nothing is downloaded, and no code from the folder is run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from layertap.errors import MissingExtra, TargetError
from layertap.files import parse_json, read_bytes, reason
from layertap.messages import tr
from layertap.result import Note
from layertap.targets.target import Target, error_text

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)

_KERNELS = (
    *("attn_implementation", "_attn_implementation", "_attn_implementation_internal"),
    *("experts_implementation", "_experts_implementation"),
)
"""Keys of a configuration whose value `org/name` has transformers fetch and run code."""


def open_hf(folder: Path, name: str) -> Target:
    """Loads the class that the folder's `config.json` names, in the dtype of the checkpoint."""
    model, loading = load_hf(folder, name)
    missing = sorted(loading["missing_keys"])
    if missing:
        # transformers fills these with random numbers and goes on; such a model compares as garbage.
        shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        warnings.warn(
            Note("targets.hf_missing", name=name, count=len(missing), shown=shown),
            stacklevel=3,
        )
    has_tokenizer = any((folder / file).is_file() for file in _TOKENIZER_FILES)
    return Target(
        model=model.eval(), name=name, load_tokenizer=(lambda: _tokenizer(folder, name)) if has_tokenizer else None
    )


def load_hf(folder: Path, name: str, architecture: str = "") -> tuple[Any, dict[str, Any]]:
    """The model, and what transformers says of its loading; `architecture` takes the place of the configuration's."""
    config = _config(folder, name)
    _refuse_foreign(config, folder, name)
    model_class = _model_class({**config, "architectures": [architecture]} if architecture else config, name)
    try:
        found: tuple[Any, dict[str, Any]] = model_class.from_pretrained(
            folder, local_files_only=True, dtype="auto", output_loading_info=True, trust_remote_code=False
        )
    except Exception as error:
        raise TargetError(
            tr("targets.hf_raised", name=name, name2=model_class.__name__, error=error_text(error))
        ) from error
    return found


def _refuse_foreign(config: dict[str, Any], folder: Path, name: str) -> None:
    """Raises for a folder that would fetch code, or read weights from elsewhere."""
    for key, value in _settings(config):
        if key in _KERNELS and "/" in str(value or ""):
            raise TargetError(tr("targets.hf_kernel", name=name, config=value, key=key))
    for index in sorted(folder.glob("*.index.json")):
        found = _json(index, name).get("weight_map")
        for file in sorted({str(file) for file in found.values()}) if isinstance(found, dict) else ():
            if Path(file).is_absolute() or ".." in Path(file).parts:
                raise TargetError(tr("targets.hf_outside", name=name, name2=index.name, file=file))


def _settings(config: Any) -> Iterator[tuple[str, Any]]:
    """Every key of a configuration with its value, those of the parts (a text model, a vision model) included."""
    parts = [config]
    while parts:
        part = parts.pop()
        for key, value in part.items() if isinstance(part, dict) else enumerate(part):
            yield str(key), value
            if isinstance(value, (dict, list)):
                parts.append(value)


def _config(folder: Path, name: str) -> dict[str, Any]:
    if not folder.is_dir():
        raise TargetError(tr("targets.hf_folder", name=name, folder=folder))
    try:
        return _json(folder / "config.json", name)
    except FileNotFoundError:
        raise TargetError(tr("targets.hf_no_config", name=name, folder=folder)) from None


def _json(file: Path, name: str) -> dict[str, Any]:
    try:
        held = parse_json(read_bytes(file))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TargetError(tr("targets.hf_unreadable", name=name, file=file, reason=reason(error))) from error
    except ValueError as error:
        raise TargetError(tr("targets.hf_not_json", name=name, file=file, reason=reason(error))) from error
    if not isinstance(held, dict):
        raise TargetError(tr("targets.hf_not_object", name=name, file=file, name2=type(held).__name__))
    return held


def _model_class(config: dict[str, Any], name: str) -> Any:
    transformers = _transformers(name)
    architectures = config.get("architectures") or ["AutoModel"]
    found = getattr(transformers, str(architectures[0]), None)
    if isinstance(found, type) and hasattr(found, "from_pretrained"):
        return found
    reason = Note("targets.hf_own_code") if config.get("auto_map") else ""
    raise TargetError(
        tr("targets.hf_no_class", name=name, version=transformers.__version__, architectures=architectures[0])
        + (tr("targets.hf_reason", reason=reason) if reason else "")
        + tr("targets.hf_way_out")
    )


def _tokenizer(folder: Path, name: str) -> Any:
    try:
        return _transformers(name).AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise TargetError(tr("targets.hf_tokenizer", name=name, error=error_text(error))) from error


def _transformers(name: str) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra(tr("targets.hf_needs", name=name)) from error
    return transformers
