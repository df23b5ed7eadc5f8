"""Comparable at all? Inputs, captures, stale data, placebos, and names that claim what is not there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import layertap as lt
import models
from compare.align_making import make_run, noisy, stream
from layertap.compare.align import align
from layertap.compare.comparable import comparable
from layertap.site import SiteReceipt
from layertap.store import RunWriter
from literals import fixed_part
from store.making import receipt

LAYERS = {f"layers.{n}": value for n, value in enumerate(stream(4))}
OTHER = {name: noisy(value) for name, value in LAYERS.items()}
IDS = np.array([[5, 6, 7, 8]])


def judge(ours, theirs):
    return comparable(ours, theirs, align(ours, theirs))


def given(ours, theirs):
    return judge(make_run(LAYERS, inputs=ours), make_run(OTHER, inputs=theirs))


def test_the_same_inputs_leave_nothing_to_say():
    found = given({"input_ids": IDS}, {"input_ids": IDS})
    assert found.reasons == found.notes == ()
    assert not found.placebo


def test_different_ids_say_where():
    other = np.array([[5, 6, 99, 1]])
    (reason,) = given({"input_ids": IDS}, {"input_ids": other}).reasons
    assert reason == (
        "different inputs: `input_ids` differs at 2 of 4 positions, first at 2: 7 in the reference, 99 in the candidate"
    )
    (reason,) = given({"input_ids": np.vstack([IDS, IDS])}, {"input_ids": np.vstack([IDS, other])}).reasons
    assert "first at [1, 2]" in reason


def test_different_lengths_say_what_is_not_proven():
    (reason,) = given({"input_ids": IDS}, {"input_ids": np.array([[5, 6, 7, 8, 9]])}).reasons
    assert reason == (
        "different inputs: `input_ids` has lengths 4 and 5; the first 4 are equal, "
        "and nothing proves that the rest is padding"
    )
    (reason,) = given({"input_ids": IDS}, {"input_ids": np.array([[5, 1, 7, 8, 9]])}).reasons
    assert reason.endswith("they differ from position 1 on")


def test_proven_padding_is_trimmed_and_said():
    found = given({"input_ids": IDS}, {"input_ids": np.pad(IDS, ((0, 0), (0, 3)))})
    assert found.reasons == ()
    assert found.trim is not None
    assert found.notes == (found.trim.why,)
    mask = {"attention_mask": np.array([[1, 1, 1, 1, 0]])}
    found = given({"input_ids": IDS}, {"input_ids": np.array([[5, 6, 7, 8, 9]]), **mask})
    assert found.reasons == ()
    assert found.trim is not None


def test_masks():
    ones, some = np.ones((1, 4), int), np.array([[1, 1, 0, 0]])
    found = given({"input_ids": IDS}, {"input_ids": IDS, "attention_mask": ones})
    assert found.reasons == ()
    assert found.notes == ("only the candidate had `attention_mask` as an input; it masks nothing",)
    (reason,) = given({"input_ids": IDS, "attention_mask": some}, {"input_ids": IDS}).reasons
    assert reason == "different inputs: only the reference had `attention_mask` as an input"
    (reason,) = given({"input_ids": IDS, "attention_mask": some}, {"input_ids": IDS, "attention_mask": ones}).reasons
    assert "`attention_mask` differs at 2 of 4 positions" in reason


def test_the_same_ids_in_another_dtype_or_by_position():
    found = given({"input_ids": IDS}, {"input_ids": IDS.astype(np.int32)})
    assert found.reasons == ()
    assert found.notes == ("`input_ids` is int64 in the reference, int32 in the candidate",)
    found = given({"": IDS}, {"input_ids": IDS})
    assert found.reasons == found.notes == ()
    (reason,) = given({"": IDS}, {"input_ids": IDS + 1}).reasons
    assert "5 in the reference, 6 in the candidate" in reason


def test_real_inputs_by_their_sketches():
    image = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    assert given({"pixel_values": image}, {"pixel_values": image}).reasons == ()
    found = given({"pixel_values": image}, {"pixel_values": torch.from_numpy(image).bfloat16()})
    assert found.reasons == ()
    assert "no more than rounding" in found.notes[0]
    (reason,) = given({"pixel_values": image}, {"pixel_values": noisy(image, 0.05)}).reasons
    assert "`pixel_values` differs by ≈ 0.045 in relative L2 norm (both float32)" in reason
    (reason,) = given({"pixel_values": image}, {"pixel_values": image[:, :1]}).reasons
    assert "shapes [1, 3, 8, 8] and [1, 1, 8, 8]" in reason


def test_steps_are_named():
    steps = [{"input_ids": IDS}, {"input_ids": IDS}]
    wrong = [{"input_ids": IDS}, {"input_ids": IDS + 1}]
    more = {name: value + 1 for name, value in LAYERS.items()}
    found = judge(make_run(LAYERS, LAYERS, inputs=steps), make_run(OTHER, more, inputs=wrong))
    assert found.reasons[0].startswith("different inputs at step 1: `input_ids`")


def test_unknown_inputs_are_taken_on_trust_unless_the_metadata_has_them():
    known = make_run(LAYERS, inputs={"input_ids": IDS})
    found = judge(known, make_run(OTHER))
    assert found.reasons == ()
    assert found.notes == ("inputs of the candidate unknown: it is assumed that both sides had the same inputs",)
    assert judge(known, make_run(OTHER, info={"meta": {"input_ids": IDS.tolist()}})).notes == ()
    (reason,) = judge(known, make_run(OTHER, info={"metadata": {"input_ids": [[5, 6, 7, 9]]}})).reasons
    assert "8 in the reference, 9 in the candidate" in reason


def test_inputs_that_were_asked_for_count_too():
    model, inputs = models.minimax_m2(layers=1)
    runs = []
    for ids in (inputs["input_ids"], inputs["input_ids"].flip(1)):
        with lt.record(model, sites=[":input", "lm_head"], what=("input", "output"), keep="tensor") as rec:
            models.run(model, {"input_ids": ids})
        runs.append(rec.run)
    assert not runs[0].inputs
    assert "`input_ids` differs" in judge(*runs).reasons[0]


def test_nothing_captured_says_why():
    silent = SiteReceipt(path="a", role="output", kind="Linear", why="never called")
    empty = make_run(receipt=replace(receipt(), sites=(silent,)))
    assert "the candidate: nothing was captured (never called)" in judge(make_run(LAYERS), empty).reasons


def test_receipts_that_tell_of_trouble():
    silent = SiteReceipt(path="a", role="output", kind="Linear", why="recording had ended")
    good = receipt()
    stopped = make_run(OTHER, receipt=replace(good, error="a: ValueError: no"))
    assert "the candidate: recording stopped early (a: ValueError: no)" in judge(make_run(LAYERS), stopped).notes
    stopped = make_run(OTHER, receipt=replace(good, error="a: no", sites=(*good.sites, silent)))
    assert "1 requested sites are missing" in judge(make_run(LAYERS), stopped).reasons[0]
    dropped = replace(good.sites[0], dropped=3)
    found = judge(make_run(LAYERS, receipt=replace(good, lost=2, sites=(dropped,))), make_run(OTHER))
    assert "the reference: 2 records could not be written and are missing" in found.notes
    assert "the reference: 3 tensors were not kept, because the budget was used up" in found.notes


def test_a_run_whose_writer_died_is_partial(tmp_path):
    writer = RunWriter(tmp_path / "a", info={})
    for record in make_run(LAYERS).records():
        writer.add(record)
    writer.commit()
    run = lt.Run(tmp_path / "a")
    (note,) = [text for text in judge(run, make_run(OTHER)).notes if "partial" in text]
    assert note.startswith(f"{tmp_path / 'a'}: partial; session ")
    writer.close()


def test_extra_steps_are_noted():
    assert (
        "1 of the candidate's 2 steps (1) are on that side only"
        in judge(make_run(LAYERS), make_run(OTHER, OTHER)).notes
    )


def test_one_tensor_everywhere_is_stale():
    same = dict.fromkeys(LAYERS, LAYERS["layers.0"])
    (reason,) = judge(make_run(LAYERS), make_run(same)).reasons
    assert reason == "the candidate: stale; all 5 sites of step 0 contain the same tensor"


def test_constants_everywhere_are_stale_but_nan_everywhere_is_not():
    flat = {name: np.full((2, 3), n, np.float32) for n, name in enumerate(LAYERS, start=1)}
    (reason,) = judge(make_run(flat), make_run(flat)).reasons[:1]
    assert reason == "the reference: stale; every one of the 5 tensors of step 0 is constant"
    nan = {name: np.full((1, 8, 32), np.nan, np.float32) for name in LAYERS}
    assert judge(make_run(LAYERS), make_run(nan)).reasons == ()


def test_outputs_that_do_not_follow_the_inputs_are_stale():
    steps = [{"input_ids": IDS}, {"input_ids": IDS + 1}]
    moving = make_run(LAYERS, OTHER, inputs=steps)
    (reason,) = judge(moving, make_run(OTHER, OTHER, inputs=steps)).reasons
    assert (
        reason == "the candidate: stale; the inputs of steps 0 and 1 differ, all 5 recorded tensors are bit-identical"
    )
    same = [{"input_ids": IDS}, {"input_ids": IDS}]
    assert judge(make_run(LAYERS, LAYERS, inputs=same), make_run(OTHER, OTHER, inputs=same)).reasons == ()


def test_parameters_may_stay_the_same_from_step_to_step():
    steps = [{"input_ids": IDS}, {"input_ids": IDS + 1}]
    weights = {f"{name}:param.weight": value for name, value in LAYERS.items()}
    assert judge(*(make_run(weights, weights, inputs=steps) for _ in range(2))).reasons == ()


def test_a_candidate_that_is_the_reference_is_a_placebo():
    ours, theirs = make_run(LAYERS, info={"meta": {"mode": "0"}}), make_run(LAYERS, info={"meta": {"mode": "2-1"}})
    found = judge(ours, theirs)
    assert found.placebo
    assert found.notes[0] == (
        "the candidate is the reference: all 5 tensors are bit-identical; "
        "the change between them had no effect or did not run (meta mode=0 against mode=2-1)"
    )
    assert not judge(ours, ours).placebo
    assert not judge(make_run(LAYERS), make_run({**LAYERS, "layers.4": OTHER["layers.4"]})).placebo
    assert not judge(make_run(LAYERS, sketches=False), make_run(LAYERS, sketches=False)).placebo


def on_disk(folder, values, **info):
    writer = RunWriter(folder, info=info)
    for record in make_run(values).records():
        writer.add(record)
    writer.close()
    return lt.Run(folder)


def test_folders_called_fp32_and_int8_that_hold_the_same(tmp_path):
    found = judge(on_disk(tmp_path / "fp32", LAYERS), on_disk(tmp_path / "int8", LAYERS))
    assert found.placebo
    assert found.notes[0].endswith("(folder fp32 against int8)")


@pytest.mark.parametrize(
    ("name", "told"), [("fp32", True), ("ref-float32", True), ("bf16", False), ("fp32_bf16", False)]
)
def test_a_folder_that_is_not_what_it_is_called(tmp_path, name, told):
    half = {site: torch.from_numpy(value).bfloat16() for site, value in LAYERS.items()}
    run = on_disk(tmp_path / name, half)
    notes = [note for note in judge(run, make_run(OTHER)).notes if "contains" in note]
    expected = f"{tmp_path / name} contains bfloat16 tensors (5 of 5), but is named float32"
    assert notes == ([expected] if told else [])


def test_metadata_claims_a_dtype_too():
    run = make_run(LAYERS, info={"meta": {"dtype": "torch.float16", "note": "against bf16"}})
    found = judge(run, make_run(OTHER))
    assert "the reference contains float32 tensors (5 of 5), but is named float16" in found.notes
    honest = make_run(LAYERS, info={"meta": {"dtype": "float32"}})
    assert not any(fixed_part("comparable.called_otherwise") in note for note in judge(honest, make_run(OTHER)).notes)
