"""Attention weights, also where the model does not ask for them.

`nn.TransformerEncoderLayer` calls its `nn.MultiheadAttention` with need_weights=False, so the second output is None.
Asking for them in the model's own call would take another path through torch, and the training would part from an
unwatched one by rounding. So the weights are computed beside the call, from its arguments: without gradient, without
dropout, without a random number drawn.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any

import torch
from torch import nn

from layertap.capture import taps
from layertap.capture.taps import Args, Kwargs
from layertap.messages import tr

log = logging.getLogger("layertap")

_failed: set[str] = set()


def with_weights(module: nn.Module, path: str, args: Args, kwargs: Kwargs, output: Any) -> Any:
    """The output of a call, with the weights of each head where an `nn.MultiheadAttention` returned None for them."""
    if not isinstance(module, nn.MultiheadAttention) or not isinstance(output, tuple) or len(output) != 2:
        return output
    if output[1] is not None:
        return output
    try:
        return output[0], head_weights(module, args, kwargs)
    except Exception as error:  # noqa: BLE001 - a subclass with other arguments: its own output is recorded all the same
        if path not in _failed:
            _failed.add(path)
            log.warning(tr("monitor.log_attention"), path, error)
        return output


def head_weights(module: nn.MultiheadAttention, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """The attention weights of a call by head, before dropout: [batch, heads, target, source].

    >>> attention = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = torch.randn(3, 5, 8)
    >>> head_weights(attention, (x, x, x), {"need_weights": False}).shape
    torch.Size([3, 2, 5, 5])
    """
    call = inspect.signature(module.forward).bind(*args, **kwargs)
    call.arguments |= {"need_weights": True, "average_attn_weights": False}
    was_training = module.training
    try:
        module.training = False  # this module's own flag: dropout is off, and no random number is drawn
        with torch.no_grad(), taps.unseen(module):
            _, weights = module.forward(*call.args, **call.kwargs)
    finally:
        module.training = was_training
    assert isinstance(weights, torch.Tensor)
    return weights
