"""`hf:PATH`: a Hugging Face folder on this machine. Nothing is downloaded, and no code from the folder is run."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from layertap.errors import MissingExtra, TargetError
from layertap.files import parse_json, read_bytes, reason
from layertap.targets.target import Target, told

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)


def open_hf(folder: Path, name: str) -> Target:
    """Loads the class that the folder's `config.json` names, in the dtype of the checkpoint."""
    config = _config(folder, name)
    model_class = _model_class(config, name)
    try:
        model, loading = model_class.from_pretrained(
            folder, local_files_only=True, dtype="auto", output_loading_info=True
        )
    except Exception as error:
        raise TargetError(f"{name}: loading {model_class.__name__} raised {told(error)}") from error
    missing = sorted(loading["missing_keys"])
    if missing:
        # transformers fills these with random numbers and goes on; such a model compares as garbage.
        shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        warnings.warn(
            f"{name}: {len(missing)} parameters are not in the checkpoint and were made up at random: {shown}",
            stacklevel=3,
        )
    has_tokenizer = any((folder / file).is_file() for file in _TOKENIZER_FILES)
    return Target(
        model=model.eval(), name=name, load_tokenizer=(lambda: _tokenizer(folder, name)) if has_tokenizer else None
    )


def _config(folder: Path, name: str) -> dict[str, Any]:
    if not folder.is_dir():
        raise TargetError(
            f"{name}: there is no folder {folder}; hf: takes a folder on this machine, fetched for instance by "
            f"'hf download {folder} --local-dir DIR'"
        )
    file = folder / "config.json"
    try:
        config = parse_json(read_bytes(file))
    except FileNotFoundError:
        raise TargetError(f"{name}: {folder} has no config.json, so it is no Hugging Face model") from None
    except OSError as error:
        raise TargetError(f"{name}: {file} cannot be read ({reason(error)})") from error
    except ValueError as error:
        raise TargetError(f"{name}: {file} is no JSON: {reason(error)}") from error
    if not isinstance(config, dict):
        raise TargetError(f"{name}: {file} holds a {type(config).__name__}; expected an object")
    return config


def _model_class(config: dict[str, Any], name: str) -> Any:
    transformers = _transformers(name)
    architectures = config.get("architectures") or ["AutoModel"]
    found = getattr(transformers, architectures[0], None)
    if found is not None:
        return found
    reason = "its code lies in the folder (auto_map), which layertap doesn't run" if config.get("auto_map") else ""
    raise TargetError(
        f"{name}: transformers {transformers.__version__} has no {architectures[0]}"
        + (f"; {reason}" if reason else "")
        + "; load it in a file of your own and open that as file.py:factory"
    )


def _tokenizer(folder: Path, name: str) -> Any:
    try:
        return _transformers(name).AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise TargetError(f"{name}: loading its tokenizer raised {told(error)}") from error


def _transformers(name: str) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra(f"{name} needs transformers; install it with: pip install 'layertap[hf]'") from error
    return transformers
