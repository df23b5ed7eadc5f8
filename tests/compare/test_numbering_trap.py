"""One side counts its layers from 0, the other from 1, and a layer is wrong: the layers are still told apart."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import layertap as lt
from compare.align_making import noisy, stream
from literals import fixed_part

LAYERS = 62
VALUES = stream(LAYERS, size=(1, 6, 24))
POSITIONS = [0, 1, 5, 20, 24, 30, 61]
KINDS = ["scale", "garbage", "zero", "nan"]


def broken(values: list[Any], first: int | None, kind: str) -> list[Any]:
    """From a layer on, all is wrong, as in a residual stream."""
    if first is None:
        return list(values)
    found = list(values)
    before = values[first + 1]
    if kind == "scale":
        wrong = before * 1.5
    elif kind == "garbage":
        wrong = np.random.default_rng(first).standard_normal(before.shape).astype(np.float32) * 3
    else:
        wrong = before * 0 if kind == "zero" else np.full_like(before, np.nan)
    for n in range(first + 1, len(values)):
        # What the later layers add, they add to what is wrong.
        found[n] = (wrong + (values[n] - before)).astype(np.float32)
    return found


def bfloat16(values: list[Any]) -> list[Any]:
    """Rounded at every layer, with an error that grows with the depth."""
    return [torch.from_numpy(noisy(value, 0.002 * np.sqrt(1 + n), seed=n)).bfloat16() for n, value in enumerate(values)]


def from_zero(values: list[Any], *, norm: bool = True) -> dict[str, Any]:
    """layer_0 … layer_61, final_norm: files that count decoder layers."""
    found = {f"layer_{n}": value for n, value in enumerate(values[1:])}
    return found | ({"final_norm": noisy(np.asarray(VALUES[-1]), 0.9)} if norm else {})


def from_one(values: list[Any], *, embedding: bool = False) -> dict[str, Any]:
    """embedding, layer_1 … layer_62: files that count the embedding as 0."""
    found = {f"layer_{n}": value for n, value in enumerate(values) if n}
    return ({"embedding": values[0]} if embedding else {}) | found


def departure(report: Any) -> str | None:
    return None if report.first is None else f"{report.first.site} ~ {report.first.candidate_site}"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_any_layer_is_named_by_its_own_layer(kind: str, precision: str) -> None:
    for first in POSITIONS:
        wrong = broken(VALUES, first, kind)
        wrong = bfloat16(wrong) if precision == "bf16" else wrong
        report = lt.diff(from_zero(VALUES), from_one(wrong, embedding=first % 2 == 0), sites="layer_*")
        assert (report.verdict, departure(report)) == ("fault", f"layer_{first} ~ layer_{first + 1}"), (first, report)
        assert len(report.rows) == LAYERS


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_fault_at_every_single_layer(kind: str, precision: str) -> None:
    for first, swap in itertools.product(range(LAYERS), [False, True]):
        wrong = broken(VALUES, first, kind)
        wrong = bfloat16(wrong) if precision == "bf16" else wrong
        sides = (from_one(VALUES), from_zero(wrong)) if swap else (from_zero(VALUES), from_one(wrong))
        told = (first + 1, first) if swap else (first, first + 1)
        report = lt.diff(*sides, sites="layer_*")
        assert (report.verdict, departure(report)) == ("fault", f"layer_{told[0]} ~ layer_{told[1]}"), (first, swap)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_healthy_model_is_no_fault(precision: str) -> None:
    right = bfloat16(VALUES) if precision == "bf16" else VALUES
    good = "noise" if precision == "bf16" else "identical"
    assert lt.diff(from_zero(VALUES), from_one(right), sites="layer_*").verdict == good
    # What one side alone has is said, and nothing more is claimed.
    report = lt.diff(from_zero(VALUES), from_one(right, embedding=True))
    assert report.verdict == "inconclusive"
    assert report.unmatched == (("reference", "final_norm"), ("candidate", "embedding"))
    assert "--sites" in report.reasons[0]


def padded(values: list[Any], side: str, to: int, fill: float) -> list[Any]:
    found = []
    for value in values:
        tensor = torch.as_tensor(value)
        rest = torch.full((1, to - tensor.shape[1], tensor.shape[2]), fill, dtype=tensor.dtype)
        found.append(torch.cat([tensor, rest] if side == "right" else [rest, tensor], dim=1))
    return found


@pytest.mark.parametrize("fill", [0.0, 7.5, float("nan")])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_padding_that_nothing_tells_of(side: str, precision: str, fill: float) -> None:
    def candidate(values: list[Any]) -> dict[str, Any]:
        return from_one(padded(bfloat16(values) if precision == "bf16" else values, side, 16, fill))

    values = VALUES[:13]
    healthy = lt.diff(from_zero(values), candidate(values), sites="layer_*")
    assert healthy.verdict == ("noise" if precision == "bf16" else "identical"), healthy
    assert any("positions have the same values at" in note for note in healthy.notes)
    for kind, first in itertools.product(KINDS, [1, 5, 11]):
        report = lt.diff(from_zero(values), candidate(broken(values, first, kind)), sites="layer_*")
        told = f"layer_{first} ~ layer_{first + 1}"
        assert (report.verdict, departure(report)) == ("fault", told), (kind, first, report)
    # Nothing agrees, so nothing shows which positions belong together.
    report = lt.diff(from_zero(values), candidate(broken(values, 0, "garbage")), sites="layer_*")
    assert report.verdict == "inconclusive"
    assert "slice(1,0,6)" in report.reasons[0]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_that_the_mask_tells_of(side: str) -> None:
    ids = torch.arange(1, 7)[None]
    rest = torch.zeros(1, 10, dtype=torch.int64)
    more = torch.cat([ids, rest] if side == "right" else [rest, ids], dim=1)
    for kind, first in itertools.product(KINDS, [None, 0, 5, 11]):
        wrong = padded(broken(VALUES[:13], first, kind), side, 16, 3.0)
        report = lt.diff(
            {"input_ids": ids, **from_zero(VALUES[:13])},
            {"input_ids": more, "attention_mask": (more != 0).long(), **from_one(wrong)},
            sites="layer_*",
        )
        told = None if first is None else f"layer_{first} ~ layer_{first + 1}"
        assert (report.verdict, departure(report)) == ("identical" if first is None else "fault", told), (kind, report)


@pytest.mark.parametrize("first", [0, 30, 61])
@pytest.mark.parametrize("kind", KINDS)
def test_some_layers_only(kind: str, first: int) -> None:
    wrong = broken(VALUES, first, kind)
    ours, theirs = from_zero(VALUES), from_one(wrong)
    some = {name: ours[name] for name in ("layer_0", "layer_30", "layer_61")}
    for candidate in (theirs, {name: theirs[name] for name in ("layer_1", "layer_31", "layer_62")}):
        report = lt.diff(some, candidate, sites=list(some))
        assert (report.verdict, departure(report)) == ("fault", f"layer_{first} ~ layer_{first + 1}"), (kind, report)


def test_lengths_that_differ_do_not_skip_the_check() -> None:
    wrong = broken(VALUES, 5, "garbage")
    ours, theirs = from_zero(VALUES), from_one(wrong)
    del ours["layer_17"], theirs["layer_40"]
    report = lt.diff(ours, theirs, sites="layer_*")
    assert departure(report) == "layer_5 ~ layer_6"
    assert {side for side, _ in report.unmatched} == {"reference", "candidate"}
    half = {name: value for n, (name, value) in enumerate(from_one(wrong).items()) if n < 31}
    assert departure(lt.diff(from_zero(VALUES), half)) == "layer_5 ~ layer_6"


@pytest.mark.parametrize("last", [16, 62])
def test_an_embedding_of_its_own_says_where_the_numbers_begin(last: int) -> None:
    # All layers are wrong, and fewer numbers than layers fit in several ways: `embedding, layer_1` counts from 1.
    def first_layers(values: list[Any]) -> dict[str, Any]:
        return {name: value for n, (name, value) in enumerate(from_one(values, embedding=True).items()) if n <= last}

    wrong = broken(VALUES, 0, "garbage")
    report = lt.diff(from_zero(VALUES), first_layers(wrong), sites=[f"layer_{n}" for n in range(last)])
    assert departure(report) == "layer_0 ~ layer_1", report
    assert any("no layer's contents confirm it" in note for note in report.notes)
    report = lt.diff(first_layers(VALUES), from_zero(wrong), sites=[f"layer_{n}" for n in range(1, last + 1)])
    assert departure(report) == "layer_1 ~ layer_0", report


def test_numbers_that_fit_in_several_ways_are_said_to_be_uncertain() -> None:
    wrong = broken(VALUES, 0, "garbage")
    some = {name: value for name, value in from_one(wrong).items() if name in ("layer_3", "layer_4", "layer_9")}
    report = lt.diff(from_zero(VALUES), some, sites=list(some))
    assert departure(report) == "layer_3 ~ layer_3"
    assert any("not certain" in note and "mapping=" in note for note in report.notes), report.notes
    # Where the numbers are the same on both sides there is no other way.
    assert not any(
        fixed_part("align.uncertain_names") in note for note in lt.diff(from_zero(VALUES), from_zero(wrong)).notes
    )


@pytest.mark.parametrize("first", [0, 12, 40])
def test_layers_that_do_nothing_are_told_by_the_others(first: int) -> None:
    values = list(VALUES)
    for n in range(10, 20):  # ten layers in a row hand on what they get
        values[n] = values[9]
    report = lt.diff(from_zero(values), from_one(broken(values, first, "garbage")), sites="layer_*")
    assert (report.verdict, departure(report)) == ("fault", f"layer_{first} ~ layer_{first + 1}")


def test_equal_numbers_stay_when_a_layer_is_skipped_or_repeated() -> None:
    # The candidate's layer 20 hands on what it got: it holds what the reference calls layer_19.
    wrong = [*VALUES[:21], VALUES[20], *(value + 1 for value in VALUES[22:])]
    report = lt.diff(from_zero(VALUES), from_zero(wrong))
    assert departure(report) == "layer_20 ~ layer_20"
    for first in (0, 1, 61):
        for kind in KINDS:
            report = lt.diff(from_zero(VALUES), from_zero(broken(VALUES, first, kind)))
            assert departure(report) == f"layer_{first} ~ layer_{first}"


def test_more_than_one_tensor_a_layer() -> None:
    random = np.random.default_rng(3)
    experts = [random.standard_normal((6, 24)).astype(np.float32) for _ in range(LAYERS)]

    def with_experts(layers: dict[str, Any], first: int) -> dict[str, Any]:
        found = {}
        for n, (name, value) in enumerate(layers.items()):
            found[f"{name}.mlp.experts.0"] = experts[n] if n < first else experts[n] + 1
            found[f"{name}.mlp.experts.1"] = np.zeros((6, 24), np.float32)  # no token came here
            found[name] = value
        return found

    for first in (0, 1, 30):
        ours = with_experts(from_zero(VALUES, norm=False), LAYERS)
        theirs = with_experts(from_one(broken(VALUES, first, "garbage")), first)
        report = lt.diff(ours, theirs)
        assert departure(report) == f"layer_{first}.mlp.experts.0 ~ layer_{first + 1}.mlp.experts.0", first


def states(values: list[Any], last: Any) -> tuple[Any, ...]:
    """What transformers returns: the embedding, the layers, and the last of them after the final norm."""
    return (*values[:-1], last)


@pytest.mark.parametrize("first", [None, 0, 1, 30, 60])
def test_hidden_states_against_layers(first: int | None) -> None:
    normed = noisy(VALUES[-1], 0.9)
    wrong = broken(VALUES, first, "garbage")
    modules = {"model.embed_tokens": VALUES[0], **{f"model.layers.{n}": v for n, v in enumerate(VALUES[1:])}}
    tuple_ = states(wrong, normed if first is None else wrong[-1] * 0.1)
    report = lt.diff(modules | {"model.norm": normed}, tuple_)
    if first is None:
        assert {row.verdict for row in report.rows} == {"identical"}
        assert report.unmatched == (("reference", f"model.layers.{LAYERS - 1}"),)
    else:
        assert departure(report) == f"model.layers.{first} ~ hidden_states.{first + 1}"
    # Without the norm on the other side its last entry is no layer, and is not called a fault.
    report = lt.diff(modules, tuple_, sites=["model.layers.[0-60]"])
    assert report.verdict == ("identical" if first is None else "fault")
    report = lt.diff(modules, states(VALUES, normed))
    assert not any(row.verdict == "fault" for row in report.rows)
