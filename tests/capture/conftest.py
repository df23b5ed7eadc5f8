"""Every test here must leave torch as it found it."""

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from layertap.capture import taps

CALL = nn.Module._call_impl


@pytest.fixture(autouse=True)
def clean_torch():
    yield
    assert taps.attached() == 0
    assert nn.Module._call_impl is CALL


@pytest.fixture
def fresh_dynamo():
    """No graphs from before, and graphs are counted from zero."""
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
