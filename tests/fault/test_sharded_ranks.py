"""find_fault on four gloo processes, of which one comes late to its collectives: the same finding on every rank."""

import pytest

from fault import ranks, spread

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return ranks.run(tmp_path_factory.mktemp("ranks"))


def said(job, name):
    """Verdict, site, cause and ranks; the same on all ranks."""
    found = [one[name] for one in job]
    assert all(one[:4] == found[0][:4] for one in found), [one[4] for one in found]
    return found[0]


@pytest.mark.parametrize("name", [*(f"{layout} clean" for layout in spread.LAYOUTS), "qwen3 clean", "mixtral clean"])
def test_a_clean_pair_is_silent(job, name):
    assert said(job, name)[0] in ("noise", "identical"), said(job, name)[4]


@pytest.mark.parametrize("name", ["fsdp trained", "ddp trained", "tensor trained"])
def test_gradients_of_a_clean_pair_too(job, name):
    assert said(job, name)[0] in ("noise", "identical"), said(job, name)[4]


@pytest.mark.parametrize("layout", list(spread.LAYOUTS))
def test_a_stale_shard(job, layout):
    verdict, site, cause, _, text, _ = said(job, f"{layout} stale_column")
    assert (verdict, cause) == ("fault", "weights"), text
    assert site.endswith("blocks.0.attention.q")


@pytest.mark.parametrize(
    "fault", [fault for fault in spread.FAULTS if fault not in (spread.clean, spread.stale_column)]
)
def test_what_is_wrong_on_which_rank(job, fault):
    verdict, site, cause, found, text, _ = said(job, f"megatron {fault.__name__}")
    expected = spread.FAULTS[fault][2]
    assert (verdict, site, found) == ("fault", expected[0], expected[2]), text
    # Reversed positions are other positions, and the same ones in another order: both are true.
    assert cause in (("structure", "permutation") if fault is spread.other_positions else (expected[1],)), text


def test_an_error_of_one_rank_is_raised_on_all(job):
    texts = [one["raises"][4] for one in job]
    assert "ValueError: no such head" in texts[3]
    assert "RankFailed" not in texts[3]
    for text in texts[:3]:
        assert "RankFailed: rank 3 raised an error, so the search ends on all ranks: ValueError: no such head" in text


def test_parts_of_the_sequence_in_zigzag(job):
    verdict, _, _, _, text, _ = said(job, "context clean")
    assert verdict == "noise", text
    verdict, site, _, found, text, _ = said(job, "context other_slice")
    assert (verdict, site, found) == ("fault", "blocks.0.attention", (1,)), text


def test_a_gradient_that_is_reduced_over_one_dimension_only(job):
    verdict, site, cause, _, text, _ = said(job, "grid gradient_not_reduced")
    assert (verdict, site, cause) == ("fault", "blocks.0.attention.norm", "reduce"), text


@pytest.mark.parametrize("name", ["qwen3", "mixtral"])
def test_models_of_transformers(job, name):
    verdict, site, cause, found, text, _ = said(job, f"{name} stale")
    assert (verdict, site, cause, found) == ("fault", "model.layers.1.self_attn.o_proj", "weights", (2,)), text
    verdict, site, cause, _, text, _ = said(job, f"{name} not reduced")
    assert (verdict, site, cause) == ("fault", "model.layers.1.self_attn.o_proj", "reduce"), text
