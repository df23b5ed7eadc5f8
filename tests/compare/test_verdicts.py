"""What is proven, and nothing more: shapes, NaN, sites on one side, exact prefixes, tolerances."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import layertap as lt
from compare.align_making import make_run, noisy, pairs, stream
from layertap.compare.align import align
from layertap.errors import BadArgument

VALUES = stream(8, size=(1, 6, 24))


def layers(values: Any) -> dict[str, Any]:
    return {f"model.layers.{n}": value for n, value in enumerate(values)}


# Shapes.


@pytest.mark.parametrize("shape", [(6, 24), (6, 1, 24), (1, 1, 6, 24)])
def test_axes_of_size_one_are_no_difference(shape: tuple[int, ...]) -> None:
    other = [value.reshape(shape) for value in VALUES]
    assert lt.diff(layers(VALUES), layers(other)).verdict == "identical"
    close = [torch.from_numpy(value).bfloat16() for value in other]
    assert lt.diff(layers(VALUES), layers(close)).verdict == "noise"
    other[3] = other[3] * 2
    assert str(lt.diff(layers(VALUES), layers(other)).first.site) == "model.layers.3"


def test_axes_of_size_one_where_only_sketches_are_kept() -> None:
    other = [value[0] for value in VALUES]
    report = lt.diff(make_run(layers(VALUES)), make_run(layers(other)))
    assert {row.verdict for row in report.rows} == {"identical"}
    other[3] = other[3] * 2
    assert str(lt.diff(make_run(layers(VALUES)), make_run(layers(other))).first.site) == "model.layers.3"


def test_merged_axes_are_compared_once_a_site_shows_their_order() -> None:
    values = stream(6, size=(2, 6, 24))
    merged = [value.reshape(12, 24) for value in values]
    assert lt.diff(layers(values), layers(merged)).verdict == "identical"
    merged[4] = merged[4] * 2
    report = lt.diff(layers(values), layers(merged))
    assert (report.verdict, str(report.first.site)) == ("fault", "model.layers.4")
    swapped = [value.swapaxes(0, 1).reshape(12, 24) for value in values]
    report = lt.diff(layers(values), layers(swapped))
    assert report.verdict == "inconclusive"
    assert "one side merges axes, and no site shows in which order" in report.reasons[0]


def test_a_head_that_keeps_the_last_token_only() -> None:
    logits = np.random.default_rng(0).standard_normal((1, 6, 50)).astype(np.float32)
    ours = {**layers(VALUES), "lm_head": logits}
    report = lt.diff(ours, {**layers(VALUES), "lm_head": logits[:, -1:]})
    assert {row.verdict for row in report.rows} == {"identical"}
    assert any("the last 1 positions have the same values at `lm_head`" in note for note in report.notes)
    report = lt.diff(ours, {**layers(VALUES), "lm_head": -logits[:, -1:]})
    assert report.verdict == "inconclusive"
    assert "shapes differ: 1×6×50 against 1×1×50" in report.reasons[0]


def test_a_batch_that_the_runtime_filled_up() -> None:
    filled = [np.concatenate([value, np.zeros_like(value), np.zeros_like(value)]) for value in VALUES]
    assert lt.diff(layers(VALUES), layers(filled)).verdict == "identical"
    filled[5][0] *= 2
    assert str(lt.diff(layers(VALUES), layers(filled)).first.site) == "model.layers.5"


def test_a_runtime_that_pads_what_it_was_given_unpadded() -> None:
    ids = torch.arange(6)[None]
    padded = [np.pad(value, ((0, 0), (0, 10), (0, 0)), constant_values=np.nan) for value in VALUES]
    report = lt.diff({"input_ids": ids, **layers(VALUES)}, {"input_ids": ids, **layers(padded)})
    assert report.verdict == "identical"
    weights = np.random.default_rng(1).random((1, 2, 6, 6)).astype(np.float32)
    more = np.zeros((1, 2, 16, 16), np.float32)
    more[:, :, :6, :6] = weights
    report = lt.diff({**layers(VALUES), "attention": weights}, {**layers(padded), "attention": more})
    assert {row.verdict for row in report.rows} == {"identical"}


def test_what_repeats_along_the_sequence_proves_no_padding() -> None:
    row = np.random.default_rng(0).standard_normal((1, 1, 24)).astype(np.float32)
    report = lt.diff({"a": np.repeat(row, 6, axis=1)}, {"a": np.repeat(row, 16, axis=1)})
    assert (report.verdict, report.first) == ("inconclusive", None)


def test_a_mapping_may_cut_what_nothing_proves() -> None:
    padded = [np.concatenate([value * 1.001, value], axis=1) for value in VALUES]
    mapping = {"(.*)": {"to": r"\1", "layout": "slice(1,6,12)"}}
    assert lt.diff(layers(VALUES), layers(padded), mapping=mapping).verdict == "identical"
    with pytest.raises(BadArgument, match="axis 1 has 12 elements"):
        lt.diff(layers(VALUES), layers(padded), mapping={"(.*)": {"to": r"\1", "layout": "slice(1,6,99)"}})


def test_another_width_is_not_judged_and_says_what_to_do() -> None:
    report = lt.diff(layers(VALUES), layers(stream(8, size=(1, 6, 20), seed=5)))
    assert (report.verdict, report.first) == ("inconclusive", None)
    assert "shapes differ: 1×6×24 against 1×6×20, and nothing proves which part is the same" in report.reasons[0]


def test_two_leftovers_are_no_fault_because_nothing_else_is_left() -> None:
    report = lt.diff({**layers(VALUES), "probe": VALUES[0]}, {**layers(VALUES), "debug": VALUES[1] * 9})
    assert (report.verdict, report.first) == ("inconclusive", None)
    assert "paired only because no others remained; a mapping= settles it" in report.reasons[0]
    # Between sites that agree, and in number, place and shape do tell.
    ours = {f"a{n}": value for n, value in zip("abcdefghi", VALUES, strict=True)}
    theirs = {f"b{n}": value for n, value in zip("abcdefghi", [*VALUES[:4], *(v * 2 for v in VALUES[4:])], strict=True)}
    assert str(lt.diff(ours, theirs).first.site) == "ae"


# Names and classes.


def test_a_class_name_is_no_veto_where_the_outputs_are_equal() -> None:
    ours = {f"a{chr(97 + n)}": value for n, value in enumerate(VALUES)}
    theirs = {f"b{chr(97 + n)}": value for n, value in enumerate(VALUES)}
    kinds = dict.fromkeys(ours, "RMSNorm") | dict.fromkeys(theirs, "FusedNorm")
    found = align(make_run(ours, kinds=kinds), make_run(theirs, kinds=kinds))
    assert pairs(found) == dict(zip(ours, theirs, strict=True))
    # Of two equal contents, the one of the same class is meant.
    twice = {"x": VALUES[0], "y": VALUES[0]}
    found = align(
        make_run({"p": VALUES[0]}, kinds={"p": "Linear"}), make_run(twice, kinds={"x": "Dropout", "y": "Linear"})
    )
    assert pairs(found) == {"p": "y"}


def test_what_only_one_side_has_counts_only_if_it_was_asked_for() -> None:
    ours = {**layers(VALUES), "norm": VALUES[0]}
    theirs = {**layers(VALUES), "extra": VALUES[0] * 9 + 1}
    report = lt.diff(ours, theirs)
    assert report.verdict == "inconclusive"
    assert "sites= (--sites) restricts the verdict" in report.reasons[0]
    for sites in ("model.layers.*", ["model.layers.[0-3]", "re:.*layers.7"]):
        report = lt.diff(ours, theirs, sites=sites)
        assert (report.verdict, report.unmatched) == ("identical", ())
    assert len(lt.diff(ours, theirs, sites="model.layers.[0,3,7]").rows) == 3
    report = lt.diff(ours, theirs, sites=["model.layers.*", "norm"])
    assert (report.verdict, report.unmatched) == ("inconclusive", (("reference", "norm"),))
    theirs["model.layers.2"] = VALUES[2] * 2
    assert lt.diff(ours, theirs, sites="model.layers.[3-7]").verdict == "identical"
    assert lt.diff(ours, theirs, sites="model.layers.[0-2]").verdict == "fault"
    with pytest.raises(
        BadArgument, match=r"sites: 'model.layer.\*' matches none of the 11 sites; nearest: model.layers"
    ):
        lt.diff(ours, theirs, sites="model.layer.*")


# NaN.


def test_all_nan_is_neither_close_nor_equal() -> None:
    nothing = np.full_like(VALUES[0], np.nan)
    report = lt.diff(layers(VALUES), layers([*VALUES[:3], nothing, *VALUES[4:]]))
    row = report.first
    assert str(row.site) == "model.layers.3"
    assert math.isnan(row.error)
    assert math.isnan(row.difference.cosine)
    assert math.isnan(row.difference.max_abs)
    assert "1.000000" not in str(report).split("model.layers.3")[2].splitlines()[0]
    both = lt.diff(layers([nothing, *VALUES]), layers([nothing, *VALUES]))
    assert (both.verdict, both.rows[0].why) == ("identical", "bit for bit; 144 values are NaN on both sides")
    other = np.array(nothing)
    other.view(np.uint32)[...] |= 1  # another NaN
    unknown = lt.diff(layers([nothing, *VALUES]), layers([other, *VALUES]))
    assert (unknown.verdict, unknown.rows[0].why) == ("inconclusive", "no value is finite on both sides")


def test_equal_numbers_of_another_integer_type_are_equal() -> None:
    mask = np.array([[1, 1, 0]])
    assert lt.diff({"mask": mask}, {"mask": mask.astype(bool)}).verdict == "noise"
    assert lt.diff({"mask": mask}, {"mask": ~mask.astype(bool)}).verdict == "fault"


# Floors.


def bfloat16(values: Any) -> list[Any]:
    return [torch.as_tensor(value).bfloat16() for value in values]


@pytest.mark.parametrize("part", [0.1, 0.41, 3.0])
@pytest.mark.parametrize("first", [3, 20, 40, 61])
def test_what_follows_an_exact_prefix_is_held_against_one_layers_rounding(first: int, part: float) -> None:
    values = stream(62, size=(1, 6, 24))
    wrong = [value if n < first else noisy(value, part, seed=n) for n, value in enumerate(values)]
    report = lt.diff(layers(bfloat16(values)), layers(bfloat16(wrong)))
    assert (report.verdict, str(report.first.site)) == ("fault", f"model.layers.{first}")
    assert f"the {first} sites before it differ only by rounding" in report.first.why


def test_rounding_that_starts_after_an_exact_prefix_is_no_fault() -> None:
    values = stream(62, size=(1, 6, 24))
    low = [value if n < 20 else noisy(value, 0.003 * math.sqrt(n - 19), seed=n) for n, value in enumerate(values)]
    assert lt.diff(layers(bfloat16(values)), layers(bfloat16(low))).verdict == "noise"


def test_rounding_that_grows_faster_than_modelled_stays_inconclusive() -> None:
    values = stream(62, size=(1, 6, 24))
    low = [noisy(value, 0.003 * 1.08**n, seed=n) for n, value in enumerate(values)]
    report = lt.diff(layers(values), layers(bfloat16(low)))
    assert (report.verdict, report.first) == ("inconclusive", None)
    assert report.worst.ratio < 10


def test_tolerances_replace_the_floor_and_are_stated() -> None:
    wrong = [value if n != 4 else value + np.float32(0.01) for n, value in enumerate(VALUES)]
    assert lt.diff(layers(VALUES), layers(wrong)).verdict == "fault"
    report = lt.diff(layers(VALUES), layers(wrong), rtol=0.0, atol=0.02)
    assert (report.verdict, report.floor_kind, report.to_dict()["tolerance"]) == (
        "noise",
        "tolerance",
        "rtol=0, atol=0.02",
    )
    assert "all 9 sites are within the tolerances" in report.reasons[0]
    assert "judged by the tolerances that were given (rtol=0, atol=0.02)" in str(report)
    report = lt.diff(layers(VALUES), layers(wrong), atol=0.001)
    assert (report.verdict, str(report.first.site)) == ("fault", "model.layers.4")
    assert "144 of 144 values are outside rtol=0, atol=0.001" in report.first.why
    nan = [*VALUES[:2], VALUES[2] * np.nan, *VALUES[3:]]
    assert lt.diff(layers(VALUES), layers(nan), rtol=9, atol=9).verdict == "fault"
    assert lt.diff(make_run(layers(VALUES)), make_run(layers(wrong)), atol=9).verdict == "inconclusive"
    with pytest.raises(BadArgument, match="or floor=, not both"):
        lt.diff(layers(VALUES), layers(wrong), atol=1, floor=layers(VALUES))
    with pytest.raises(BadArgument, match="rtol=-1"):
        lt.diff(layers(VALUES), layers(wrong), rtol=-1)


def test_a_choice_that_rounding_tips_is_no_fault_and_a_wrong_one_is() -> None:
    chosen = np.random.default_rng(2).integers(0, 8, (40, 2))
    tipped = chosen.copy()
    tipped[7, 1] = (tipped[7, 1] + 1) % 8
    dead = noisy(VALUES[2], 0.002)
    dead[0, 3] = VALUES[5][0, 3]

    def run(choice: Any, first: Any, last: Any) -> dict[str, Any]:
        return {
            "layers.0": first,
            "layers.1.mlp.gate": choice,
            "layers.1.mlp.experts": last,
            "layers.1": VALUES[3],
            "layers.2": VALUES[4],
        }

    ours = run(chosen, VALUES[1], VALUES[2])
    report = lt.diff(ours, run(tipped, torch.from_numpy(VALUES[1]).bfloat16(), dead))
    assert (report.verdict, report.first) == ("inconclusive", None)
    assert "rounding may change a choice between nearly equal values; pass floor= to decide" in report.reasons[0]
    # Without rounding before it, or in many places, it is no matter of near equals.
    assert str(lt.diff(ours, run(tipped, VALUES[1], VALUES[2])).first.site) == "layers.1.mlp.gate"
    report = lt.diff(ours, run((chosen + 1) % 8, torch.from_numpy(VALUES[1]).bfloat16(), dead))
    assert str(report.first.site) == "layers.1.mlp.gate"
    # What is wrong elsewhere is still found.
    wrong = run(tipped, torch.from_numpy(VALUES[1]).bfloat16(), dead) | {"layers.2": VALUES[4] * 2}
    assert str(lt.diff(ours, wrong).first.site) == "layers.2"


# The report.


def test_equal_rows_are_one_line_and_the_columns_are_explained() -> None:
    values = stream(62, size=(1, 6, 24))
    wrong = [*values[:40], *(value * 2 for value in values[40:])]
    text = str(lt.diff(layers(values), layers(wrong)))
    assert "model.layers.0 … model.layers.39 (40)" in text
    assert "ratio: error ÷ floor" in text
    assert "jump: error ÷ the error of the row above" in text
    assert "()" not in text, "files have no classes"
    assert len(str(lt.diff(layers(values), layers(values))).splitlines()) < 10
