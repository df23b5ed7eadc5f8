"""Python's garbage collector during a search: what was there before is not walked through, and is given back."""

import copy
import gc

import pytest
import torch
from torch import nn

from layertap.fault import find_fault

X = (torch.ones(2, 4),)


class Counting(nn.Module):
    """Notes how many objects a collection would walk through while it runs."""

    def __init__(self):
        super().__init__()
        self.inner, self.seen, self.fails = nn.Linear(4, 4), [], False

    def forward(self, x):
        self.seen.append(len(gc.get_objects()))
        if self.fails:
            raise RuntimeError
        return self.inner(x)


@pytest.fixture
def many():
    """More objects than a small search makes."""
    gc.collect()
    return [[] for _ in range(200_000)]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Counting().eval()


def test_what_was_there_before_is_not_walked_through(model, many):
    find_fault(model, copy.deepcopy(model), X)
    assert max(model.seen) < len(many)
    assert gc.get_freeze_count() == 0
    assert len(gc.get_objects()) > len(many)


def test_it_is_given_back_where_a_model_raises(model):
    model.fails = True
    with pytest.raises(RuntimeError):
        find_fault(model, copy.deepcopy(model), X)
    assert model.seen
    assert gc.get_freeze_count() == 0


def test_what_the_program_has_set_aside_stays_so(model):
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        find_fault(model, copy.deepcopy(model), X)
        assert gc.get_freeze_count() >= before - 100, "but for what has died meanwhile"
    finally:
        gc.unfreeze()
