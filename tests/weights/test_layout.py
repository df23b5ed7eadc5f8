"""Which way round matrices lie, where a square one does not show it."""

import pytest
import torch
from torch import nn

import layertap as lt
from layertap.weights.layout import refines


def by_name(audit):
    return {row.name or row.other: row for row in audit.rows}


def attention(turned=(), layers=2, seed=0):
    """A state dict: q and o are square, k and v are not."""
    make = torch.Generator().manual_seed(seed)
    state = {}
    for layer in range(layers):
        for name, rows in (("q", 16), ("k", 8), ("v", 8), ("o", 16)):
            weight = torch.randn(rows, 16, generator=make)
            state[f"layers.{layer}.attn.{name}.weight"] = weight.t().contiguous() if name in turned else weight
    return state


def test_square_matrices_follow_those_beside_them():
    found = lt.audit(attention(turned="qkvo"), attention())
    assert found.verdict == "identical", str(found)
    assert found.by_status == {"converted": 8}


@pytest.mark.parametrize("flipped", ["q", "qo"])
def test_a_square_matrix_alone_transposed_is_a_fault(flipped):
    found = lt.audit(attention(turned=flipped), attention())
    assert found.verdict == "fault"
    assert {row.name.split(".")[3] for row in found.rows if row.status == "changed"} == set(flipped)


def test_a_square_matrix_that_was_left_straight_is_a_fault():
    found = lt.audit(attention(turned="qkv"), attention())
    assert found.verdict == "fault", "its bits are equal, and it is still wrong"
    assert {row.name for row in found.rows if row.status == "changed"} == {f"layers.{i}.attn.o.weight" for i in (0, 1)}
    assert "not transposed" in by_name(found)["layers.0.attn.o.weight"].detail


def test_a_straight_square_where_some_are_turned_and_some_are_not_is_left_alone():
    found = lt.audit(attention(turned="k"), attention())
    assert by_name(found)["layers.0.attn.q.weight"].status == "exact"


def test_a_symmetric_matrix_says_nothing():
    there = attention(layers=1)
    there["layers.0.attn.o.weight"] = torch.eye(16)
    here = {name: weight.t().contiguous() for name, weight in there.items()}
    assert lt.audit(here, there).verdict == "identical"


def test_an_error_that_import_and_export_both_make_is_seen_in_the_model_between_them():
    saved = attention()
    model = {name: weight.t().contiguous() if ".q." in name else weight for name, weight in saved.items()}
    exported = {name: weight.t().contiguous() if ".q." in name else weight for name, weight in model.items()}
    assert lt.audit(exported, saved).verdict == "identical", "the files alone cannot show it"
    assert lt.audit(model, saved).verdict == "fault"
    assert lt.audit(model, exported).verdict == "fault"


def test_the_modules_class_decides_where_nothing_stands_beside_it():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 6, bias=False), nn.ModuleDict({"c": nn.Linear(6, 4, bias=False)})

    model = Block()
    turned = {name: weight.t().contiguous() for name, weight in model.state_dict().items()}
    assert lt.audit(model, turned).verdict == "identical"
    straight = {**turned, "a.weight": model.a.weight.detach().clone()}
    assert by_name(lt.audit(model, straight))["a.weight"].rule == "not transposed"


def test_axes_in_another_order():
    kernel = torch.randn(3, 5, 2, 4)
    (row,) = lt.audit({"w": kernel.permute(3, 2, 0, 1).contiguous()}, {"w": kernel}).rows
    assert (row.status, row.rule, row.detail) == ("converted", "axes permuted", "axes (3, 2, 0, 1) of (3, 5, 2, 4)")
    square = torch.randn(4, 4, 3, 3)
    (row,) = lt.audit({"w": square.transpose(2, 3).contiguous()}, {"w": square}).rows
    assert row.status == "changed"


def test_a_reshape_keeps_the_meaning_of_every_axis_or_is_a_fault():
    weight = torch.randn(8, 4, 5)
    assert by_name(lt.audit({"w": weight.view(32, 5)}, {"w": weight}))["w"].rule == "reshaped"
    assert by_name(lt.audit({"w": weight.view(4, 8, 5)}, {"w": weight}))["w"].status in ("shape", "changed")
    assert refines((3, 1, 2), (6,))
    assert not refines((2, 6), (3, 4))
