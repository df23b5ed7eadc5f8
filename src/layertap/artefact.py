"""What a module that represents a part of a compiled file says of itself, to whoever records or judges it.

Such a module carries one attribute, `layertap_artefact`. `targets` sets it; `capture` and `fault` read it here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@dataclass(slots=True, kw_only=True)
class ArtefactState:
    """The state of one module of a compiled file; all but `lost` belong to the root."""

    lost: str = ""
    """Why nothing can be recorded of this module; empty when something can."""
    format: str = ""
    """The file's format; empty for all modules but the root."""
    notes: list[str] = field(default_factory=list)
    """For the receipt: what the format has lost, and the drift and freshness of the last taps."""
    computes_in: set[str] = field(default_factory=set)
    """Dtypes coarser than its tensors' in which the runtime said it computes."""
    seconds_checking: float = 0.0
    """Spent on checks of the captures, which a receipt leaves out of its times."""


def artefact_of(model: Any) -> ArtefactState | None:
    """The state of a module of a compiled file; None for any other module.

    >>> from torch import nn
    >>> artefact_of(nn.Linear(1, 1)) is None
    True
    """
    found = getattr(model, "layertap_artefact", None)
    return found if isinstance(found, ArtefactState) else None


def artefacts_in(model: nn.Module) -> list[ArtefactState]:
    """The states of all compiled files in a model."""
    return [state for module in model.modules() if (state := artefact_of(module)) is not None]
