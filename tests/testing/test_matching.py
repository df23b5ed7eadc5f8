"""A run against its golden: the same passes, rounding passes, and what fails says where and why."""

import pytest
import torch

import layertap as lt
import models
from layertap.errors import CorruptRun, NotARun
from layertap.testing import assert_matches, load_golden, save_golden
from literals import fixed_part


def recorded(model, inputs, **options):
    with lt.record(model, **options) as rec:
        models.run(model, inputs)
    return rec


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def m2(tmp_path):
    """A model, its inputs, and the golden that was made of them."""
    model, inputs = models.minimax_m2(layers=6)
    save_golden(recorded(model, inputs), tmp_path / "m2.layertap")
    return model, inputs, tmp_path / "m2.layertap"


def failure(run, golden, **options):
    with pytest.raises(AssertionError) as error:
        assert_matches(run, golden, **options)
    return str(error.value)


def test_the_same_model_passes_as_recorder_run_and_path(m2, tmp_path):
    model, inputs, golden = m2
    rec = recorded(model, inputs, path=tmp_path / "run")
    assert_matches(rec, golden)
    assert_matches(rec.run, golden)
    assert_matches(tmp_path / "run", golden)
    assert_matches(golden, golden)


def test_another_attention_is_noise(m2, threads):
    model, inputs, golden = m2
    model.set_attn_implementation("eager")
    threads(1)
    rec = recorded(model, inputs)
    assert lt.diff(load_golden(golden), rec.run).verdict == "noise"
    assert_matches(rec, golden)


def test_bfloat16_against_a_float32_golden_is_noise(m2):
    _, inputs, golden = m2
    assert_matches(recorded(models.minimax_m2(layers=6)[0].bfloat16(), inputs), golden)


def test_a_zeroed_row_fails_and_the_layer_is_named(m2):
    model, inputs, golden = m2
    with torch.no_grad():
        model.model.layers[3].self_attn.o_proj.weight[5] = 0
    text = failure(recorded(model, inputs), golden)
    assert text.startswith(f"FAULT: this run against {golden}: ")
    assert "first departure: model.layers.3 (MiniMaxM2DecoderLayer)" in text
    assert text.splitlines()[-1] == f"if {golden} is what is wrong: pytest --layertap-update writes it again"


def test_a_zeroed_row_under_a_measured_floor_still_fails(m2):
    model, inputs, golden = m2
    floor = [recorded(models.minimax_m2(layers=6)[0].bfloat16(), inputs) for _ in range(2)]
    assert_matches(floor[0], golden, floor=floor)
    with torch.no_grad():
        model.model.layers[3].self_attn.o_proj.weight[:16] = 0
    text = failure(recorded(model.bfloat16(), inputs), golden, floor=floor[0])
    assert "first departure: model.layers.3 " in text
    assert "the measured floor" in text


def test_other_inputs_are_told_as_such(m2):
    model, inputs, golden = m2
    text = failure(recorded(model, {"input_ids": inputs["input_ids"].flip(1)}), golden)
    assert text.startswith(f"INCONCLUSIVE: this run against {golden}: different inputs: `input_ids` differs")
    begins = ", ".join(str(value) for value in inputs["input_ids"].flatten()[:6].tolist())
    assert f":input.input_ids begins with {begins}, … in the golden and with " in text
    assert "fault" not in text
    assert len(text.splitlines()) < 6


def test_a_longer_input_is_told_as_such(m2):
    model, inputs, golden = m2
    longer = torch.cat([inputs["input_ids"], torch.zeros(2, 3, dtype=torch.int64)], dim=1)
    assert "different inputs: `input_ids` has shapes [2, 8] and [2, 11]" in failure(
        recorded(model, {"input_ids": longer}), golden
    )


def test_a_site_on_one_side_only_does_not_pass(m2):
    model, inputs, golden = m2
    text = failure(recorded(model, inputs, sites="model.layers.*"), golden)
    assert text.startswith("INCONCLUSIVE")
    assert "only in the reference: model.embed_tokens, model.norm, lm_head" in text
    assert fixed_part("comparable.placebo") not in text  # bit-identical is what a golden hopes for


def test_a_golden_of_another_torch_says_so(m2):
    model, inputs, golden = m2
    golden.write_text(golden.read_text().replace(f'"torch": "{torch.__version__}"', '"torch": "1.0"', 1))
    assert_matches(recorded(model, inputs), golden)
    with torch.no_grad():
        model.lm_head.weight[0] = 0
    text = failure(recorded(model, inputs), golden)
    assert f"the golden was written with torch 1.0, this run was recorded with torch {torch.__version__}" in text


def test_a_missing_golden_says_how_to_make_it(m2, tmp_path):
    model, inputs, _ = m2
    with pytest.raises(NotARun, match="pytest --layertap-update"):
        assert_matches(recorded(model, inputs), tmp_path / "none.layertap")


def test_a_broken_golden_is_not_a_failed_comparison(m2):
    model, inputs, golden = m2
    golden.write_text("{}")
    with pytest.raises(CorruptRun, match=r"m2\.layertap"):
        assert_matches(recorded(model, inputs), golden)


def test_update_writes_and_update_false_never_does(m2, tmp_path, monkeypatch):
    model, inputs, golden = m2
    monkeypatch.setattr("layertap.testing.matching.current", lambda: None)  # as outside of pytest
    before = golden.read_bytes()
    with torch.no_grad():
        model.lm_head.weight[0] = 0
    rec = recorded(model, inputs)
    failure(rec, golden, update=False)
    assert golden.read_bytes() == before
    assert_matches(rec, golden, update=True)
    assert golden.read_bytes() != before
    assert_matches(rec, golden)
    assert_matches(rec, tmp_path / "deep" / "er" / "new.layertap", update=True)
    assert (tmp_path / "deep" / "er" / "new.layertap").read_bytes() == golden.read_bytes()
