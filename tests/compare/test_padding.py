"""Padding: trimmed when ids or masks prove it, and never otherwise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import layertap as lt
import models
from compare.align_making import make_run
from layertap.compare.align import align
from layertap.compare.padding import Trim, find_trim

IDS = np.array([[5, 6, 7, 8], [9, 10, 11, 12]])


def run(ids=None, mask=None, **more):
    inputs = {} if ids is None else {"input_ids": np.array(ids)}
    if mask is not None:
        inputs["attention_mask"] = np.array(mask)
    return make_run({"a": np.ones((2, 3), np.float32)}, inputs=inputs | more)


def padded(right=0, left=0, pad=0):
    return np.pad(IDS, ((0, 0), (left, right)), constant_values=pad)


def cut(trim):
    return trim and (trim.reference_length, trim.candidate_length, trim.reference_slice, trim.candidate_slice)


def test_constant_ids_on_the_right():
    trim = find_trim(run(IDS), run(padded(right=6)))
    assert cut(trim) == (4, 10, slice(0, 4), slice(0, 4))
    assert trim.why == (
        "compared without padding: 4 real positions of 4 in the reference and of 10 in the candidate "
        "(on the right of the candidate there are 6 ids 0; the rest is equal)"
    )


def test_constant_ids_on_the_left_and_in_the_reference():
    trim = find_trim(run(padded(left=3, pad=2)), run(IDS))
    assert cut(trim) == (7, 4, slice(3, 7), slice(0, 4))
    assert "on the left of the reference there are 3 ids 2" in trim.why


@pytest.mark.parametrize("left", [0, 2])
def test_a_mask_on_the_padded_side_alone(left):
    # With the end-of-text id as padding only the mask can tell.
    ids = padded(right=1, left=left, pad=8)
    trim = find_trim(run(IDS), run(ids, (padded(right=1, left=left) != 0).astype(int)))
    assert cut(trim) == (4, 5 + left, slice(0, 4), slice(left, left + 4))
    assert "attention mask" in trim.why


def test_a_mask_is_proof_enough_where_the_other_side_has_that_length():
    mask = (padded(left=3) != 0).astype(int)
    values = np.random.default_rng(1).standard_normal((2, 4, 8)).astype(np.float32)
    longer = np.concatenate([np.full((2, 3, 8), 7, np.float32), 2 * values + 5], axis=1)
    assert lt.diff({"a": values}, {"a": longer}).verdict == "inconclusive"
    report = lt.diff({"a": values}, {"a": longer, "attention_mask": mask})
    assert report.verdict == "fault"
    assert any("attention mask of the candidate" in note for note in report.notes), report.notes
    report = lt.diff({"a": longer, "attention_mask": mask}, {"a": 2 * values + 5})
    assert report.verdict == "identical"
    assert any("attention mask of the reference" in note for note in report.notes), report.notes
    # A mask that leaves another number of positions proves nothing.
    assert lt.diff({"a": values[:, :2]}, {"a": longer, "attention_mask": mask}).verdict == "inconclusive"


def test_both_padded_to_different_lengths_and_sides():
    trim = find_trim(run(padded(right=2), padded(right=2) != 0), run(padded(left=5), padded(left=5) != 0))
    assert cut(trim) == (6, 9, slice(0, 4), slice(5, 9))


def test_equal_lengths_with_the_same_padding_in_both_masks():
    mask = padded(right=2) != 0
    trim = find_trim(run(padded(right=2, pad=0), mask), run(padded(right=2, pad=3), mask))
    assert cut(trim) == (6, 6, slice(0, 4), slice(0, 4))


def test_masks_alone_are_proof_enough():
    masks = [(padded(right=n) != 0).astype(int) for n in (2, 4)]
    assert cut(find_trim(run(mask=masks[0]), run(mask=masks[1]))) == (6, 8, slice(0, 4), slice(0, 4))


def test_rows_of_different_lengths_are_cut_to_the_longest():
    mask = np.array([[1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]])
    trim = find_trim(run(mask * 7, mask), run(np.where(mask, 7, 3), mask))
    assert cut(trim) == (6, 6, slice(0, 3), slice(0, 3))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (run(IDS), run(IDS)),
        (run(IDS), run(padded(right=1))),  # one more token may be the next one
        (run(IDS), run(padded(right=3, pad=8))),  # an id that is also a word
        (run(IDS), run(np.hstack([IDS, [[1, 2], [1, 2]]]))),  # more words
        (run(IDS), run(padded(right=3) + 1)),  # other words
        (run(IDS), run(padded(right=3), np.ones((2, 7), int))),  # a mask that calls the rest real
        (run(padded(right=2)), run(padded(right=2), padded(right=2) != 0)),  # a mask on one side of equal lengths
        (run(padded(right=2), padded(right=2) != 0), run(padded(right=2), padded(right=2) != -1)),
        (run(padded(right=2) + 1, padded(right=2) != 0), run(padded(right=2), padded(right=2) != 0)),
        (run(IDS), run(padded(right=3)[:1])),
        (run(), run(padded(right=3))),
    ],
)
def test_nothing_is_trimmed_without_proof(ours, theirs):
    assert find_trim(ours, theirs) is None
    assert find_trim(theirs, ours) is None


def test_every_step_has_to_agree():
    step = {"a": np.ones((2, 3), np.float32)}
    ours = make_run(step, step, inputs=[{"input_ids": IDS}, {"input_ids": IDS}])
    theirs = [{"input_ids": padded(right=3)}, {"input_ids": padded(right=3)}]
    assert find_trim(ours, make_run(step, step, inputs=theirs)) is not None
    theirs[1] = {"input_ids": padded(left=3)}
    assert find_trim(ours, make_run(step, step, inputs=theirs)) is None


def trim(ours, theirs, length, batch=1):
    return Trim(
        reference_length=ours,
        candidate_length=theirs,
        reference_slice=slice(ours - length, ours),
        candidate_slice=slice(0, length),
        why="",
        batch=batch,
    )


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (((2, 4, 8), (2, 6, 8)), (2, 3, 8)),
        (((4, 8), (6, 8)), (3, 8)),
        (((2, 5, 4, 4), (2, 5, 6, 6)), (2, 5, 3, 3)),
        (((8, 5), (12, 5)), (6, 5)),
    ],
)
def test_apply_cuts_the_sequence_wherever_it_is(shapes, expected):
    ours, theirs = trim(4, 6, 3, batch=2).apply(*(np.zeros(shape) for shape in shapes))
    assert ours.shape == theirs.shape == expected


def test_apply_cuts_the_right_values():
    ours, theirs = trim(4, 6, 3).apply(np.arange(4)[None, :, None], np.arange(6)[None, :, None])
    assert ours.ravel().tolist() == [1, 2, 3]
    assert theirs.ravel().tolist() == [0, 1, 2]
    flat = trim(4, 6, 3, batch=2).apply(np.arange(8)[:, None], np.arange(12)[:, None])
    assert flat[0].ravel().tolist() == [1, 2, 3, 5, 6, 7]
    assert flat[1].ravel().tolist() == [0, 1, 2, 6, 7, 8]


def test_apply_takes_axis_one_when_lengths_are_equal_and_leaves_others_alone():
    both = np.zeros((4, 4, 4))
    assert trim(4, 4, 2).apply(both, both)[0].shape == (4, 2, 4)
    assert trim(4, 6, 3).apply(np.zeros((2, 8)), np.zeros((2, 8)))[0].shape == (2, 8)
    assert trim(4, 2, 2).apply(np.zeros((1, 4, 8, 4)), np.zeros((1, 2, 8, 2)), ndim=3)[0].shape == (1, 2, 8, 4)


def test_a_real_model_padded_on_the_right_agrees_where_it_is_real():
    model, inputs = models.minimax_m2(layers=2)
    ids = inputs["input_ids"]
    long = {"input_ids": torch.nn.functional.pad(ids, (0, 8)), "attention_mask": torch.ones_like(ids)}
    long["attention_mask"] = torch.nn.functional.pad(long["attention_mask"], (0, 8))
    runs = []
    for given in (inputs, long):
        with lt.record(model, sites=["model.layers.*", "model.layers.*.mlp.*", "lm_head"], keep="tensor") as rec:
            models.run(model, given)
        runs.append(rec.run)
    found = find_trim(*runs)
    checked = 0
    for pair in align(*runs).pairs:
        arrays = [run[site].numpy() for run, site in zip(runs, (pair.reference.site, pair.candidate.site), strict=True)]
        ours, theirs = found.apply(*arrays)
        if arrays[0].shape[0] in (2, 16):
            assert np.allclose(ours, theirs, atol=1e-4), pair.reference.site
            checked += 1
    assert checked >= 3
