"""Names that lie: off-by-one numbering found by content, and everything that must not be taken for it."""

from __future__ import annotations

import numpy as np
import pytest

import layertap as lt
import models
from compare.align_making import make_run, noisy, pairs, stream
from layertap.compare.align import align
from layertap.compare.align.content import monotone
from layertap.compare.align.distance import distances


def from_one(values):
    """embedding, layer_1 … layer_N"""
    return {"embedding": values[0], **{f"layer_{n}": value for n, value in enumerate(values) if n}}


def from_zero(values, norm):
    """layer_0 … layer_N-1, final_norm"""
    return {**{f"layer_{n}": value for n, value in enumerate(values[1:])}, "final_norm": norm}


@pytest.mark.parametrize("noise", [0.0, 0.005, 0.04])
@pytest.mark.parametrize("layers", [4, 62])
def test_the_off_by_one_of_the_documents_is_found_and_said(layers, noise):
    values = stream(layers)
    theirs = [noisy(value, noise, seed=n) for n, value in enumerate(values)]
    found = align(make_run(from_one(values)), make_run(from_zero(theirs, noisy(values[-1], 0.9))))
    assert pairs(found) == {f"layer_{n}": f"layer_{n - 1}" for n in range(1, layers + 1)}
    assert {pair.rung for pair in found.pairs} == {"content"}
    assert [str(record.site) for record in found.reference_only] == ["embedding"]
    assert [str(record.site) for record in found.candidate_only] == ["final_norm"]
    assert "names and contents disagree" in found.shifted[0]
    assert f"as the contents of {layers} layers show" in found.shifted[0]
    assert "`layer_1` is paired with the candidate's `layer_0`" in found.shifted[0]
    # Identity is claimed only where it is one.
    same = "the candidate's `layer_0` equals the reference's `layer_1`, bit for bit"
    assert found.shifted[1:] == ((same,) if noise == 0 else ())
    assert f"content: {layers} pairs by content, other than by name" in found.plan


def test_the_other_way_round():
    values = stream(62)
    found = align(make_run(from_zero(values, noisy(values[-1], 0.9))), make_run(from_one(values)))
    assert pairs(found) == {f"layer_{n}": f"layer_{n + 1}" for n in range(62)}


def test_a_fault_in_the_middle_of_a_shifted_run_stays_paired():
    values = stream(30)
    bad = [noisy(value, 2.0, seed=n) if n > 20 else value for n, value in enumerate(values)]
    found = align(make_run(from_one(values)), make_run(from_zero(bad, noisy(values[-1], 0.9, seed=77))))
    assert pairs(found) == {f"layer_{n}": f"layer_{n - 1}" for n in range(1, 31)}


def test_unknown_names_with_an_extra_record_in_front():
    values = stream(10)
    ours = {f"block.{n}": value for n, value in enumerate(values)}
    theirs = {"patch": noisy(values[0], 1.0), **{f"stage_{chr(97 + n)}": value for n, value in enumerate(values)}}
    found = align(make_run(ours), make_run(theirs))
    assert pairs(found) == {f"block.{n}": f"stage_{chr(97 + n)}" for n in range(11)}
    assert [str(record.site) for record in found.candidate_only] == ["patch"]


def test_order_that_contents_contradict_gives_way():
    # As many on both sides, all of one shape, and names that say nothing: place alone would pair them off by one.
    values = stream(8)
    ours = {f"block.{n}": value for n, value in enumerate(values[:-1])}
    theirs = {f"stage_{chr(97 + n)}": value for n, value in enumerate(values[1:])}
    found = align(make_run(ours), make_run(theirs))
    assert pairs(found) == {f"block.{n}": f"stage_{chr(96 + n)}" for n in range(1, 8)}


@pytest.mark.parametrize("first", [1, 5, 20, 40])
def test_garbage_from_some_layer_on_keeps_its_names(first):
    values = stream(62)
    bad = [noisy(value, 5.0, seed=n) if n > first else noisy(value) for n, value in enumerate(values)]
    found = align(make_run(from_one(values)), make_run(from_one(bad)))
    assert pairs(found) == {name: name for name in from_one(values)}
    assert not found.shifted
    assert {pair.rung for pair in found.pairs} == {"exact"}


def test_a_layer_that_is_skipped_is_no_shift():
    # Layer 20 of the candidate hands on what it got: it holds what the other side calls layer_19.
    values = stream(62)
    new = stream(62, seed=5)
    bad = [
        value if n < 20 else values[19] if n == 20 else values[19] + new[n] - new[20] for n, value in enumerate(values)
    ]
    found = align(make_run(from_one(values)), make_run(from_one(bad)))
    assert pairs(found) == {name: name for name in from_one(values)}
    assert not found.shifted


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_constant_tensors_claim_nothing(value):
    same = [np.full((1, 8, 32), value, np.float32)] * 12
    found = align(make_run(from_one(same)), make_run(from_one(same)))
    assert pairs(found) == {name: name for name in from_one(same)}
    assert not found.shifted


def test_a_candidate_far_from_everything_claims_nothing():
    found = align(make_run(from_one(stream(20))), make_run(from_one(stream(20, seed=9))))
    assert len(found.pairs) == 21
    assert not found.shifted


def test_coarse_quantisation_keeps_its_names():
    values = stream(40)
    rough = [noisy(value, 0.3, seed=n) for n, value in enumerate(values)]
    assert not align(make_run(from_one(values)), make_run(from_one(rough))).shifted


def test_a_mapping_is_not_questioned():
    values = stream(20)
    mapping = {r"layer_(\d+)": r"layer_\1"}
    found = align(make_run(from_one(values)), make_run(from_zero(values, noisy(values[-1], 0.9))), mapping)
    assert pairs(found)["layer_5"] == "layer_5"
    assert not found.shifted


def test_leftovers_are_matched_only_when_nothing_else_is_as_near():
    values = stream(6, change=0.02)
    ours = {"a": values[0], "x": values[3]}
    found = align(make_run(ours), make_run({"p": noisy(values[3], 0.3), "q": values[0], "r": values[5]}))
    assert [str(pair.reference.site) for pair in found.pairs if pair.rung == "content"] == ["a"]


def test_the_same_tensor_without_its_batch_axis():
    values = stream(5)
    ours = {f"left_{chr(97 + n)}": value for n, value in enumerate(values)}
    theirs = {f"right_{chr(97 + n)}": value[0] for n, value in enumerate(values[1:])}
    found = align(make_run(ours), make_run(theirs))
    assert pairs(found) == {f"left_{chr(98 + n)}": f"right_{chr(97 + n)}" for n in range(5)}


def test_sixty_two_layers_of_a_real_model_in_two_precisions():
    model, inputs = models.minimax_m2(layers=62)
    runs = []
    for subject in (model, model.bfloat16()):
        with lt.record(subject, sites=["model.embed_tokens", "model.layers.*", "model.norm"], keep="tensor") as rec:
            models.run(subject, inputs)
        runs.append([rec.run[site].numpy() for site in rec.run.sites])
        if len(runs) == 1:
            model, inputs = models.minimax_m2(layers=62)
    full, half = runs
    found = align(make_run(from_one(full[:63])), make_run(from_zero(half[:63], half[63])))
    assert pairs(found) == {f"layer_{n}": f"layer_{n - 1}" for n in range(1, 63)}
    straight = align(make_run(from_one(full[:63])), make_run(from_one(half[:63])))
    assert not straight.shifted
    assert len(straight.pairs) == 63


def test_distances_are_those_of_the_tensors():
    values = stream(3)
    run = make_run({f"s{n}": value for n, value in enumerate(values)})
    records = list(run.records())
    sketches = np.stack([np.frombuffer(record.sketch, "<f4") for record in records]).astype(np.float64)
    found = distances(sketches, sketches)
    true = [[np.linalg.norm(a - b) / np.linalg.norm(a) for b in values] for a in values]
    assert np.allclose(found, true, rtol=0.25)
    assert np.all(np.diag(found) == 0)


def test_monotone_against_every_way_there_is():
    from itertools import combinations

    random = np.random.default_rng(0)
    for _ in range(30):
        costs = random.random((4, 5)) * 1.5
        ways = [
            (list(zip(a, b, strict=True)))
            for k in range(5)
            for a in combinations(range(4), k)
            for b in combinations(range(5), k)
        ]
        price = {tuple(way): sum(costs[i, j] for i, j in way) + 0.6 * (9 - 2 * len(way)) for way in ways}
        assert tuple(monotone(costs)) == min(price, key=price.__getitem__)


def test_torch_is_not_needed():
    import subprocess
    import sys

    code = "import sys, layertap.compare.align, layertap.compare.comparable; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
