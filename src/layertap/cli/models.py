"""Models that a command line names, with what they are run on."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from layertap.errors import BadArgument
from layertap.messages import tr


def open_model(text: str) -> tuple[Any, Any]:
    """(The target that inputs are made for, the model) of `hf:PATH`, `file.py:factory` or `pruned:FOLDER`."""
    from layertap.targets import open_target

    kind, _, path = text.partition(":")
    if kind != "pruned":
        target = open_target(text)
        return target, target.model
    from layertap.weights import load_pruned

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the stock class, which only says how prompts are read
        return open_target(f"hf:{path}"), load_pruned(path)


def only_model(text: str) -> Any:
    """The model alone, for a worker that runs it."""
    return open_model(text)[1]


def refuse_stock_class(text: str) -> None:
    """A folder that was saved pruned, named as any other: its class would come back whole, with new weights."""
    kind, _, path = text.partition(":")
    if kind == "hf" and (Path(path) / "pruning.json").is_file():
        raise BadArgument(tr("cli.prune_again", path=path))


def given_inputs(target: Any, ids: str | None, prompt: str | None, input: Path | None, seq_len: int | None) -> Any:  # noqa: A002
    """Token ids as they are written, or what `make_inputs` makes of the rest."""
    import torch

    from layertap.targets import make_inputs

    if ids is None:
        return make_inputs(target, prompt=prompt, input=input, seq_len=seq_len)
    try:
        return {"input_ids": torch.tensor([[int(part) for part in ids.replace(",", " ").split()]])}
    except ValueError:
        raise BadArgument(tr("cli.ids_expected", ids=ids)) from None
