"""A stage of a pipeline in the place of a candidate: ranks that run other modules cannot be judged together."""

from __future__ import annotations

import sys

import torch
from torch import nn

from layertap.fault.pairing import Pairing
from layertap.fault.result import Finding
from layertap.result import Note
from layertap.store.stated import PIPELINE, StatedLayouts


def not_judged(pairing: Pairing, stated: StatedLayouts | None) -> Finding | None:
    """The finding for a candidate that is one stage of a pipeline, and None for any other; nothing is run for it.

    A stage calls its modules once for each microbatch and waits for its neighbours in between. What it was given in the
    reference, and how often, is known on another rank only.
    """
    if stated is not None and PIPELINE in stated.mesh.names:
        return _finding(Note("fault.stage_stated", axis=PIPELINE))
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not several or torch.distributed.get_world_size() < 2 or "torch.distributed.pipelining" not in sys.modules:
        return None
    gone = [page for page, module in pairing.reference.items() if _has_own(module) and not _there(pairing, page)]
    if not gone:
        return None
    return _finding(Note("fault.stage", page=gone[0], count=len(gone)))


def _there(pairing: Pairing, page: str) -> bool:
    found = pairing.candidate.get(page)
    return found is not None and (_has_own(found) or not isinstance(found, nn.Identity))


def _has_own(module: nn.Module) -> bool:
    return any(parameter is not None for parameter in module._parameters.values())


def _finding(why: Note) -> Finding:
    return Finding(verdict="inconclusive", evidence=(why,), forwards={"reference": 0, "candidate": 0})
