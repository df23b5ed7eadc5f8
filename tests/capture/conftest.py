"""Every test here must leave torch as it found it."""

import pytest
from torch import nn

from layertap.capture import taps

CALL = nn.Module._call_impl


@pytest.fixture(autouse=True)
def clean_torch():
    yield
    assert taps.attached() == 0
    assert nn.Module._call_impl is CALL
