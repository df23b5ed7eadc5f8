"""The block that is quoted for a quantised model is what a plain computation over whole logits gives."""

import numpy as np
import pytest
import torch

from layertap.sweeping.language import compare_tokens, read_tokens
from layertap.sweeping.tokens import keep_tokens

ROWS, LENGTH, VOCABULARY = 3, 40, 200


@pytest.fixture
def logits():
    make = torch.Generator().manual_seed(0)
    a = torch.randn(ROWS, LENGTH, VOCABULARY, generator=make) * 3
    b = a + torch.randn(ROWS, LENGTH, VOCABULARY, generator=make) * torch.linspace(0.01, 1.5, LENGTH)[:, None]
    return a, b, torch.randint(VOCABULARY, (ROWS, LENGTH), generator=make)


def compared(tmp_path, a, b, ids, top):
    for name, side in (("a", a), ("b", b)):
        keep_tokens(side, ids, tmp_path / name, top)
    return compare_tokens(read_tokens(tmp_path / "a"), read_tokens(tmp_path / "b"))


def log_softmax(x):
    x = x.numpy().astype(np.float64)
    return x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) - x.max(-1, keepdims=True)


def test_every_number_is_numpys(tmp_path, logits):
    a, b, ids = logits
    found = compared(tmp_path, a, b, ids, VOCABULARY)
    p, q = log_softmax(a).reshape(-1, VOCABULARY), log_softmax(b).reshape(-1, VOCABULARY)
    kl = (np.exp(p) * (p - q)).sum(-1)
    assert found.positions == ROWS * LENGTH
    assert found.kl == pytest.approx(kl.mean(), rel=1e-5)
    assert found.kl_error == pytest.approx(kl.std(ddof=1) / np.sqrt(len(kl)), rel=1e-5)
    for name, place in (("max", 100), ("99.9", 99.9), ("99", 99), ("95", 95), ("90", 90), ("median", 50)):
        assert found.kl_percentiles[name] == pytest.approx(np.percentile(kl, place), rel=1e-4)
    same = (p.argmax(-1) == q.argmax(-1)).mean()
    assert 0.3 < same < 1
    assert found.same_top == pytest.approx(same)
    assert found.same_top_error == pytest.approx(np.sqrt(same * (1 - same) / (len(kl) - 1)))
    follows = ids[:, 1:].numpy()  # the last position of each row is followed by nothing
    at = [
        log_softmax(side)[:, :-1][np.arange(ROWS)[:, None], np.arange(LENGTH - 1), follows].ravel() for side in (a, b)
    ]
    assert found.rms_delta_p == pytest.approx(np.sqrt(((np.exp(at[1]) - np.exp(at[0])) ** 2).mean()), rel=1e-5)
    assert found.mean_delta_p == pytest.approx((np.exp(at[1]) - np.exp(at[0])).mean(), rel=1e-4)
    assert found.perplexity == pytest.approx(np.exp(-at[1].mean()), rel=1e-6)
    assert found.perplexity_ratio == pytest.approx(np.exp((at[0] - at[1]).mean()), rel=1e-5)
    error = found.perplexity_ratio * (at[0] - at[1]).std(ddof=1) / np.sqrt(len(at[0]))
    assert found.perplexity_ratio_error == pytest.approx(error, rel=1e-4)
    assert found.covered == pytest.approx(1, abs=1e-6)


def test_with_the_likeliest_alone_the_divergence_is_a_lower_bound_and_says_how_much_it_covers(tmp_path, logits):
    a, b, ids = logits
    whole = compared(tmp_path, a, b, ids, VOCABULARY)
    part = compared(tmp_path, a, b, ids, 20)
    assert 0.5 * whole.kl < part.kl < whole.kl
    assert 0.5 < part.covered < 1
    assert part.same_top == whole.same_top
    assert part.perplexity == pytest.approx(whole.perplexity, rel=1e-6)


def test_equal_logits_diverge_by_nothing(tmp_path, logits):
    a, _, ids = logits
    for top in (20, VOCABULARY):
        found = compared(tmp_path, a, a, ids, top)
        assert (found.kl, found.rms_delta_p, found.same_top, found.perplexity_ratio) == (0, 0, 1, 1)


def test_nan_in_the_logits_is_seen_in_every_number(tmp_path, logits):
    a, b, ids = logits
    b[0, 3] = float("nan")
    found = compared(tmp_path, a, b, ids, VOCABULARY)
    assert np.isnan(found.kl)
    assert np.isnan(found.kl_percentiles["max"])
    assert np.isnan(found.perplexity)
    assert found.not_finite == 1


def test_tokens_that_are_ruled_out_are_no_nan(tmp_path, logits):
    a, b, ids = logits
    for side in (a, b):
        side[..., 7] = -float("inf")
    found = compared(tmp_path, a, b, ids.where(ids != 7, 8), VOCABULARY)
    p, q = (log_softmax(side).reshape(-1, VOCABULARY)[:, np.arange(VOCABULARY) != 7] for side in (a, b))
    assert found.kl == pytest.approx((np.exp(p) * (p - q)).sum(-1).mean(), rel=1e-5)
    b[0, 3, 9] = -float("inf")  # the candidate rules out what the reference does not
    assert compared(tmp_path, a, b, ids, VOCABULARY).kl == float("inf")
