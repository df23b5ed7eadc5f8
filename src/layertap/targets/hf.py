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

_KERNELS = (
    *("attn_implementation", "_attn_implementation", "_attn_implementation_internal"),
    *("experts_implementation", "_experts_implementation"),
)
"""Keys of a configuration whose value `org/name` has transformers fetch and run code."""


def open_hf(folder: Path, name: str) -> Target:
    """Loads the class that the folder's `config.json` names, in the dtype of the checkpoint."""
    config = _config(folder, name)
    _refuse_foreign(config, folder, name)
    model_class = _model_class(config, name)
    try:
        model, loading = model_class.from_pretrained(
            folder, local_files_only=True, dtype="auto", output_loading_info=True, trust_remote_code=False
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


def _refuse_foreign(config: dict[str, Any], folder: Path, name: str) -> None:
    """Raises for a folder that would fetch code, or read weights from elsewhere."""
    for key in _KERNELS:
        if "/" in str(config.get(key) or ""):
            raise TargetError(
                f"{name}: config.json asks for the kernel {config[key]!r}, which is code from elsewhere; remove {key}, "
                "or load the model in a file of your own and open that as file.py:factory"
            )
    for index in sorted(folder.glob("*.index.json")):
        found = _json(index, name).get("weight_map")
        for file in sorted({str(file) for file in found.values()}) if isinstance(found, dict) else ():
            if Path(file).is_absolute() or ".." in Path(file).parts:
                raise TargetError(f"{name}: {index.name} puts weights in {file!r}, outside the folder; that is refused")


def _config(folder: Path, name: str) -> dict[str, Any]:
    if not folder.is_dir():
        raise TargetError(
            f"{name}: there is no folder {folder}; hf: takes a folder on this machine, fetched for instance by "
            f"'hf download {folder} --local-dir DIR'"
        )
    try:
        return _json(folder / "config.json", name)
    except FileNotFoundError:
        raise TargetError(f"{name}: {folder} has no config.json, so it is no Hugging Face model") from None


def _json(file: Path, name: str) -> dict[str, Any]:
    try:
        held = parse_json(read_bytes(file))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TargetError(f"{name}: {file} cannot be read ({reason(error)})") from error
    except ValueError as error:
        raise TargetError(f"{name}: {file} is no JSON: {reason(error)}") from error
    if not isinstance(held, dict):
        raise TargetError(f"{name}: {file} holds a {type(held).__name__}; expected an object")
    return held


def _model_class(config: dict[str, Any], name: str) -> Any:
    transformers = _transformers(name)
    architectures = config.get("architectures") or ["AutoModel"]
    found = getattr(transformers, str(architectures[0]), None)
    if isinstance(found, type) and hasattr(found, "from_pretrained"):
        return found
    reason = "its code lies in the folder (auto_map), which layertap doesn't run" if config.get("auto_map") else ""
    raise TargetError(
        f"{name}: transformers {transformers.__version__} has no {architectures[0]}"
        + (f"; {reason}" if reason else "")
        + "; load it in a file of your own and open that as file.py:factory"
    )


def _tokenizer(folder: Path, name: str) -> Any:
    try:
        return _transformers(name).AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise TargetError(f"{name}: loading its tokenizer raised {told(error)}") from error


def _transformers(name: str) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra(f"{name} needs transformers; install it with: pip install 'layertap[hf]'") from error
    return transformers
