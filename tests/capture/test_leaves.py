"""Finding the tensors in whatever a module takes or returns."""

import dataclasses
from collections import OrderedDict, namedtuple

import pytest
import torch

from layertap.capture.leaves import call_leaves, leaves, map_tensors, parts, reason_text

ONE = torch.ones(1)
Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Box:
    inner: object
    label: str = "x"


class Cache:
    def __init__(self):
        self.layers = [Box(ONE), Box((ONE, None))]
        self.config = "text"
        self.itself = self


def found(value):
    return [leaf.path for leaf in leaves(value) if leaf.tensor is not None]


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        (ONE, [""]),
        ((ONE, ONE), ["0", "1"]),
        ([ONE, [ONE]], ["0", "1.0"]),
        ({"a": ONE, 3: ONE}, ["a", "3"]),
        (OrderedDict(b=ONE), ["b"]),
        (Pair(ONE, (ONE,)), ["left", "right.0"]),
        (Box({"k": ONE}), ["inner.k"]),
        (Cache(), ["layers.0.inner", "layers.1.inner.0"]),
        ((None, 3, "s", ONE), ["3"]),
        (None, []),
        ((), []),
    ],
)
def test_paths(value, paths):
    assert found(value) == paths


def test_what_is_no_tensor_is_told():
    assert [reason_text(leaf.reason) for leaf in leaves((None, 3, True, "s", ()))] == [
        "None",
        "int",
        "bool",
        "str",
        "tuple without tensors",
    ]


def test_a_lone_tensor_argument_has_no_name_and_others_do():
    assert [leaf.path for leaf in call_leaves((ONE,), {})] == [""]
    assert [leaf.path for leaf in call_leaves((ONE, ONE), {"mask": ONE})] == ["0", "1", "mask"]
    assert [leaf.path for leaf in call_leaves((), {"x": ONE})] == ["x"]


def test_a_nest_without_end_is_left():
    nest = [ONE]
    nest.append(nest)
    assert found(nest) == ["0"]
    deep = ONE
    for _ in range(20):
        deep = [deep]
    assert found(deep) == []
    assert "below depth" in reason_text(next(leaves(deep)).reason)


def test_map_keeps_the_structure():
    value = (Pair(ONE, [ONE]), {"b": Box(ONE)}, None, "s")
    changed = map_tensors(value, lambda tensor: tensor + 1)
    assert type(changed[0]) is Pair
    assert changed[0].right[0].item() == 2
    assert changed[1]["b"].inner.item() == 2
    assert changed[2:] == (None, "s")
    assert ONE.item() == 1


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_tensors_come_in_parts():
    sparse = torch.eye(3).to_sparse_csr()
    found = {part.name: part.tensor for part in parts(sparse)}
    assert list(found) == ["crow_indices", "col_indices", "values"]
    assert found["values"].tolist() == [1, 1, 1]
