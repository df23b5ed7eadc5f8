"""Reads a spec and hands it to the file that can open it."""

from __future__ import annotations

import os
from pathlib import Path

from layertap.errors import TargetError
from layertap.targets.file import factories_in, open_file
from layertap.targets.hf import open_hf
from layertap.targets.target import Target

_KINDS = "file.py:factory (a function that returns the model, or the model and its inputs) or hf:PATH (a folder)"


def open_target(spec: str | os.PathLike[str]) -> Target:
    """Opens `file.py:factory` or `hf:PATH`.

    >>> open_target("resnet50")
    Traceback (most recent call last):
    layertap.errors.TargetError: 'resnet50' is no target; expected file.py:factory (a function that returns ...
    """
    text = os.fspath(spec)
    if text.startswith("hf:"):
        return open_hf(Path(text.removeprefix("hf:")).expanduser(), text)
    name, colon, factory = text.rpartition(":")
    if colon and name.endswith(".py"):
        return open_file(Path(name).expanduser(), factory, text)
    raise TargetError(f"{text!r} is no target; {_way_out(text)}")


def _way_out(text: str) -> str:
    path = Path(text).expanduser()
    if path.suffix == ".py":
        names = factories_in(path) if path.is_file() else []
        return f"name the factory: {text}:{names[0] if names else 'NAME'}" + (
            f" (the file has {', '.join(names)})" if names else ""
        )
    if (path / "config.json").is_file():
        return f"it looks like a Hugging Face folder: hf:{text}"
    return f"expected {_KINDS}"
