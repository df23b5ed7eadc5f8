"""Alignment by names: exact, mapping, prefixes, numbering, order; steps; what stays unmatched."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import layertap as lt
import models
from compare.align_making import make_run, pairs, stream, ways
from layertap.compare.align import AxisLayout, align
from layertap.errors import BadArgument, MissingExtra


def arrays(*names, seed=0, shape=(2, 3)):
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(shape).astype(np.float32) for name in names}


def test_the_same_names_pair_in_the_references_order():
    found = align(make_run(arrays("b", "a", "a@1", "a:input.0")), make_run(arrays("a:input.0", "a@1", "a", "b")))
    assert list(pairs(found).items()) == [(name, name) for name in ("b", "a", "a@1", "a:input.0")]
    assert ways(found) == {"exact"}
    assert found.plan == ("exact: 4 pairs",)


def test_what_one_side_lacks_is_unmatched_and_told():
    names = arrays("a", "b", "odd"), arrays("a", "b", "even:input")
    found = align(make_run(names[0]), make_run(names[1]))
    assert [str(record.site) for record in found.reference_only] == ["odd"]
    assert [str(record.site) for record in found.candidate_only] == ["even:input"]
    assert "unmatched: 1 of the reference, 1 of the candidate" in found.plan


def test_inputs_that_were_recorded_unasked_are_not_aligned():
    run = make_run(arrays("a"), inputs={"input_ids": np.array([[1, 2]])})
    assert pairs(align(run, run)) == {"a": "a"}


@pytest.mark.parametrize("text", ["model.", "module.", "_orig_mod.", "backbone.", "transformer.", "module.model."])
@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_prefixes_are_dropped_on_either_side(text, side):
    bare, long = arrays("embed", "layers.0", "layers.1"), arrays(*(text + n for n in ("embed", "layers.0", "layers.1")))
    runs = make_run(long), make_run(bare)
    found = align(*(runs if side == "reference" else runs[::-1]))
    assert len(found.pairs) == 3
    assert ways(found) == {"prefix"}
    if text != "_orig_mod.":
        assert f"prefix: 3 pairs after dropping `{text}` from the {side}" in found.plan


def test_a_compiled_submodule_in_the_middle():
    found = align(make_run(arrays("layers.0.mlp", "head")), make_run(arrays("layers.0._orig_mod.mlp", "head")))
    assert pairs(found) == {"layers.0.mlp": "layers.0._orig_mod.mlp", "head": "head"}


def test_as_little_as_possible_is_dropped():
    found = align(make_run(arrays("norm", "model.norm")), make_run(arrays("module.norm", "module.model.norm")))
    assert pairs(found) == {"norm": "module.norm", "model.norm": "module.model.norm"}


def test_the_first_of_a_tuple_is_a_bare_output():
    found = align(
        make_run(arrays("layers.0", "layers.1")),
        make_run(arrays("layers.0:output.0", "layers.1:output.0", "layers.1:output.1")),
    )
    assert pairs(found) == {"layers.0": "layers.0:output.0", "layers.1": "layers.1:output.0"}
    assert any("first tensor of a tuple" in line for line in found.plan)


def test_the_only_tensor_of_a_value_is_a_bare_output():
    found = align(
        make_run(arrays("model:output.last_hidden_state", "two:output.a", "two:output.b")),
        make_run(arrays("model", "two", seed=1)),
    )
    assert pairs(found)["model:output.last_hidden_state"] == "model"
    assert "two:output.a" not in pairs(found), "of two leaves, neither is the whole"


FILES = ["embedding", *(f"layer_{n}" for n in range(1, 63))]
MODULES = ["model.embed_tokens", *(f"model.layers.{n}" for n in range(62)), "model.norm"]


@pytest.mark.parametrize("swap", [False, True])
def test_files_from_one_against_module_paths(swap):
    sides = make_run(arrays(*FILES)), make_run(arrays(*MODULES, seed=1))
    found = align(*(sides[::-1] if swap else sides))
    expected = {"embedding": "model.embed_tokens", **{f"layer_{n + 1}": f"model.layers.{n}" for n in range(62)}}
    assert pairs(found) == ({b: a for a, b in expected.items()} if swap else expected)
    assert ways(found) == {"numbering"}
    assert [str(r.site) for r in (found.reference_only if swap else found.candidate_only)] == ["model.norm"]
    assert any(line.startswith("numbering: 62 pairs") for line in found.plan)


def test_files_from_zero_with_a_final_norm_against_module_paths():
    names = [*(f"layer_{n}" for n in range(62)), "final_norm"]
    found = align(make_run(arrays(*names)), make_run(arrays(*MODULES, seed=1)))
    assert pairs(found) == {"final_norm": "model.norm", **{f"layer_{n}": f"model.layers.{n}" for n in range(62)}}


def test_hidden_states_that_count_the_embedding_as_zero():
    found = align(make_run(arrays(*(f"hidden_{n}" for n in range(5)))), make_run(arrays(*MODULES[:5], seed=1)))
    assert pairs(found) == {
        "hidden_0": "model.embed_tokens",
        **{f"hidden_{n + 1}": f"model.layers.{n}" for n in range(4)},
    }


def test_some_layers_only_keep_their_true_numbers():
    found = align(make_run(arrays("embedding", "layer_31", "layer_62")), make_run(arrays(*MODULES, seed=1)))
    assert pairs(found) == {"embedding": MODULES[0], "layer_31": "model.layers.30", "layer_62": "model.layers.61"}


def test_numbers_that_tell_nothing_are_not_guessed():
    # Neither a layer 0 nor an embedding, and another count: is layer_5 the fifth or the sixth?
    found = align(make_run(arrays("layer_5", "layer_9", seed=3)), make_run(arrays(*MODULES, seed=1)))
    assert not found.pairs


def test_without_sketches_the_numbers_of_both_sides_are_enough_and_it_is_said():
    ours, theirs = FILES, [*(f"layer_{n}" for n in range(62)), "final_norm"]
    found = align(make_run(arrays(*ours), sketches=False), make_run(arrays(*theirs), sketches=False))
    assert pairs(found) == {f"layer_{n}": f"layer_{n - 1}" for n in range(1, 63)}
    assert ways(found) == {"numbering"}
    assert "the only way that the numbers of both sides fit; no layer's contents confirm it" in found.shifted[0]


def test_order_kind_and_shape_pair_what_names_cannot():
    kinds = {"stem": "Conv2d", "mixer": "Linear", "conv_in": "Conv2d", "mix": "Linear"}
    ours, theirs = arrays("a", "stem", "mixer", "z"), arrays("a", "conv_in", "mix", "z", seed=9)
    found = align(make_run(ours, kinds=kinds), make_run(theirs, kinds=kinds))
    assert pairs(found) == {"a": "a", "stem": "conv_in", "mixer": "mix", "z": "z"}
    assert {pair.rung for pair in found.pairs[1:3]} == {"order"}
    kinds["mix"] = "LayerNorm"
    found = align(make_run(ours, kinds=kinds), make_run(theirs, kinds=kinds))
    assert pairs(found) == {"a": "a", "z": "z"}


def test_order_needs_the_same_shape_and_the_same_count():
    ours = make_run(arrays("a", "x", "z"), sketches=False)
    assert "x" in pairs(align(ours, make_run(arrays("a", "y", "z"), sketches=False)))
    assert "x" not in pairs(align(ours, make_run(arrays("a", "y", "y2", "z"), sketches=False)))
    assert "x" not in pairs(align(ours, make_run(arrays("a", "z", "y"), sketches=False)))
    other = make_run({**arrays("a"), "y": np.ones((3, 2), np.float32), **arrays("z")}, sketches=False)
    assert "x" not in pairs(align(ours, other))


def test_files_in_text_order_are_read_in_natural_order():
    names = sorted(f"layer_{n}" for n in range(12))
    found = align(make_run(arrays(*names)), make_run(arrays(*(f"model.layers.{n}" for n in range(12)), seed=1)))
    assert list(pairs(found)) == [f"layer_{n}" for n in range(12)]
    assert any("natural order" in line for line in found.plan)


def test_only_shared_steps_are_paired_and_the_others_told_once():
    ours, theirs = (
        make_run(*(arrays("a", "b", seed=s) for s in numbers), numbers=numbers) for numbers in ([0, 1, 2, 3], [2, 3, 4])
    )
    found = align(ours, theirs)
    assert [(p.reference.step, p.candidate.step) for p in found.pairs] == [(2, 2), (2, 2), (3, 3), (3, 3)]
    assert found.reference_only == found.candidate_only == ()
    assert found.unpaired == (
        "2 of the reference's 4 steps (0, 1) are on that side only",
        "1 of the candidate's 3 steps (4) are on that side only",
    )
    assert found.plan[-2:] == found.unpaired


def test_a_single_step_pairs_with_a_single_step_only():
    one, other, two = (make_run(*(arrays("a") for _ in n), numbers=n) for n in ([0], [7], [5, 6]))
    assert [(p.reference.step, p.candidate.step) for p in align(one, other).pairs] == [(0, 7)]
    assert not align(one, two).pairs


def test_steps_counted_differently_pair_by_epoch_and_batch():
    from dataclasses import replace

    def label(first):
        return lambda record: replace(record, epoch=1, batch=record.step - first)

    ours = make_run(arrays("a"), arrays("a"), numbers=[0, 1], change=label(0))
    theirs = make_run(arrays("a"), arrays("a"), numbers=[10, 11], change=label(10))
    found = align(ours, theirs)
    assert [(p.reference.step, p.candidate.step) for p in found.pairs] == [(0, 10), (1, 11)]
    assert any("epoch and batch" in text for text in found.unpaired)


def test_a_mapping_wins_over_equal_names_and_its_later_rules_over_earlier_ones():
    ours, theirs = arrays("layer_1", "layer_2", "layer_3"), arrays("layer_2", "layer_3", "layer_4")
    shift = {"layer_4": "layer_3", "layer_3": "layer_2", "layer_2": "layer_1"}
    assert pairs(align(make_run(ours), make_run(theirs), shift)) == {f"layer_{n}": f"layer_{n + 1}" for n in (1, 2, 3)}
    rules = {r"x(\d)": r"a\1", "x2": "b"}
    found = align(make_run(arrays("a1", "b", "a2")), make_run(arrays("x1", "x2")), rules)
    assert pairs(found) == {"a1": "x1", "b": "x2"}


def test_rules_that_lead_nowhere_are_told():
    rules = {"nothing": "a", "x": "gone", "y.": "a"}
    found = align(make_run(arrays("a")), make_run(arrays("x", "y1", "y2")), rules)
    text = "\n".join(found.plan)
    assert "the rule 'nothing' matches nothing in the candidate" in text
    assert "`x` becomes `gone`, which is not in the reference" in text
    assert "`y1`, `y2` all become `a`" in text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("m.json", json.dumps({r"h\.(\d)": r"layers.\1"})),
        ("m.yaml", r"'h\.(\d)': 'layers.\1'"),
        ("m.toml", r"'h\.(\d)' = 'layers.\1'"),
        ("m.toml", "[mapping]\n" + r"'h\.(\d)' = 'layers.\1'"),
    ],
)
def test_a_mapping_from_a_file(tmp_path, name, text):
    if name.endswith("toml") and sys.version_info < (3, 11):
        pytest.importorskip("tomli")
    (tmp_path / name).write_text(text)
    ours, theirs = make_run(arrays("layers.0", "layers.1")), make_run(arrays("h.0", "h.1"))
    found = align(ours, theirs, tmp_path / name)
    assert ways(found) == {"mapping"}
    assert len(found.pairs) == 2


def test_a_yaml_mapping_without_pyyaml_prints_the_pip_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "m.yml").write_text("a: b")
    with pytest.raises(MissingExtra, match="pip install pyyaml"):
        align(make_run(arrays("a")), make_run(arrays("a")), tmp_path / "m.yml")


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        ({"(": "a"}, "not a regular expression"),
        ({"a": r"\3"}, "not a regular expression"),
        ({"a": {"layout": "transpose(0,1)"}}, "takes 'to' and 'layout'"),
        ({"a": {"to": "a", "layout": "rotate(1)"}}, "expected transpose"),
        ({"a": {"to": "a", "layout": "merge(0,2)"}}, "neighbouring"),
        ({"a": 3}, "replacement must be a string"),
        ("no/such.json", "cannot be read"),
    ],
)
def test_a_mapping_that_means_nothing(mapping, text):
    with pytest.raises(BadArgument, match=text):
        align(make_run(arrays("a")), make_run(arrays("a")), mapping)


def test_a_layout_travels_with_the_pair_and_only_when_asked():
    heads = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    merged = heads.swapaxes(1, 2).reshape(2, 4, 15)
    ours, theirs = make_run({"q": merged}), make_run({"q": heads})
    rule = {"q": {"to": "q", "layout": "transpose(1,2) merge(2,3)"}}
    (pair,) = align(ours, theirs, rule).pairs
    assert np.array_equal(pair.layout.apply(heads), merged)
    assert np.array_equal(pair.layout.apply(torch.from_numpy(heads)).numpy(), merged)
    assert align(ours, theirs).pairs[0].layout is None
    assert np.array_equal(AxisLayout.parse("split(2,3,5)").apply(merged), heads.swapaxes(1, 2))
    with pytest.raises(BadArgument, match="has 15 elements, not 8"):
        AxisLayout.parse("split(2,2,4)").apply(merged)
    with pytest.raises(BadArgument, match="needs axis 5"):
        AxisLayout.parse("transpose(0,5)").apply(merged)


names = st.lists(
    st.from_regex(r"[a-z]{1,4}(\.[0-9]{1,2})?(\.[a-z]{1,3})?", fullmatch=True), min_size=1, max_size=12, unique=True
)


@settings(max_examples=40, deadline=None)
@given(names, st.randoms(use_true_random=False))
def test_a_renaming_that_a_mapping_undoes_aligns_fully(old, random):
    import re

    fresh = [f"q{n}.r" for n in range(len(old))]
    random.shuffle(fresh)
    ours, theirs = arrays(*old), dict(zip(fresh, arrays(*old, seed=2).values(), strict=True))
    mapping = {f"^{re.escape(new)}$": name for new, name in zip(fresh, old, strict=True)}
    found = align(make_run(ours), make_run(theirs), mapping)
    assert pairs(found) == dict(zip(old, fresh, strict=True))
    assert not found.reference_only
    assert not found.candidate_only


def test_a_compiled_wrapper_around_a_real_model():
    model, inputs = models.minimax_m2(layers=3)

    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = model

        def forward(self, **given):
            return self.module(**given)

    wrapped = Wrapped()
    runs = []
    for subject in (model, wrapped):
        with lt.record(subject, sites="re:.*layers.*") as rec, torch.inference_mode():
            subject(**inputs)
        runs.append(rec.run)
    found = align(*runs)
    assert all(str(p.candidate.site) == f"module.{p.reference.site}" for p in found.pairs)
    assert len(found.pairs) == len(runs[0].sites) > 3
    assert not found.candidate_only


def test_a_run_of_many_steps_is_aligned_in_one_go():
    values = stream(3)
    steps = [{f"layers.{n}": value for n, value in enumerate(values)}] * 50
    found = align(make_run(*steps), make_run(*steps))
    assert len(found.pairs) == 200
    assert [p.reference.step for p in found.pairs] == sorted(p.reference.step for p in found.pairs)
