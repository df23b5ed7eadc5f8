"""The token strip: log probabilities against torch's own, and the error of one token at every site."""

import json

import numpy as np
import pytest
import torch

import layertap as lt
from layertap.cli.demo import decoder
from layertap.errors import BadArgument
from layertap.view.vocabulary import Vocabulary
from view.making import ids, take, viewer


def chances(path):
    logits = torch.as_tensor(lt.Run(path)["head"].numpy()).double()
    found = logits[:, :-1].log_softmax(-1).gather(-1, ids()[:, 1:, None])[..., 0]
    return found.numpy()


def test_probabilities_are_those_of_the_logits_that_were_kept(compared, runs):
    found = compared.json("/tokens.json")
    assert found["ids"] == ids().tolist()
    assert (found["site"], found["why"]) == ("head", "")
    a, b = chances(runs["a"]), chances(runs["b"])
    for name, expected in (("a", a), ("b", b), ("delta", b - a)):
        values = np.array([row[:-1] for row in found[name]], float)
        assert values == pytest.approx(expected, rel=1e-6, abs=1e-9)
        assert [row[-1] for row in found[name]] == ["NaN", "NaN"]


def test_a_tokens_own_error_at_every_site(compared, runs):
    found = compared.json("/tokens.json?t=21")  # token 5 of the second row
    errors = {one["site"]: one["error"] for one in found["errors"]}
    assert len(errors) == 75
    a, b = (lt.Run(runs[name])["blocks.3.down"].numpy()[1, 5].astype(float) for name in ("a", "b"))
    assert errors["blocks.3.down"] == pytest.approx(np.linalg.norm(b - a) / np.linalg.norm(a))


def test_a_chosen_token_recolours_the_site_table_and_is_in_the_address(compared, tab):
    tab.goto(f"{compared.url}/?site=blocks.3.down")
    cell = tab.locator("tr[data-first] td").nth(1)
    whole = cell.text_content()
    found = compared.json("/tokens.json?t=5")
    own = next(one["error"] for one in found["errors"] if one["site"] == "blocks.3.down")
    tab.locator("#tokens .token").nth(5).click()
    tab.locator("#tokens .token[aria-current]").wait_for()
    assert "t=5" in tab.url
    assert float(cell.text_content()) == pytest.approx(own, rel=0.01)
    assert cell.text_content() != whole
    tab.locator("#tokens p a").click()
    tab.locator("#tokens .token[aria-current]").wait_for(state="detached")
    assert cell.text_content() == whole


def test_colours_follow_the_change(compared, tab):
    tab.goto(f"{compared.url}/")
    delta = np.array(compared.json("/tokens.json")["delta"], float).reshape(-1)
    levels = tab.locator("#tokens .token").evaluate_all("all => all.map(one => Number(one.dataset.level || 0))")
    expected = [
        0 if not abs(d) >= 0.02 else (1 if d < 0 else -1) * (1 + (abs(d) >= 0.1) + (abs(d) >= 0.5)) for d in delta
    ]
    assert levels == expected
    assert len(set(levels)) > 1


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"sites": ["blocks.*"]}, "surely the logits"),
        ({"keep": "stats"}, "only statistics"),
        ({"other": True}, "different inputs"),
        ({"width": 64}, "surely the logits"),  # hidden states as wide as the vocabulary are not taken for logits
    ],
)
def test_an_empty_strip_says_why(tmp_path, how, told):
    how = dict(how)
    width = how.pop("width", 48)
    second = torch.roll(ids(), 1) if how.pop("other", False) else ids()
    if width == 64:
        how["sites"] = ["embed", "blocks.*", "norm"]
    one = take(decoder(2, width=width), tmp_path / "one", ids(), **how)
    two = take(decoder(2, width=width), tmp_path / "two", second, **how)
    with viewer(one, two) as shown:
        found = shown.json("/tokens.json")
        assert told in found["why"]
        assert found.get("a") is None
        assert told in shown.ask("/")[2].decode()


def test_texts_come_from_a_tokenizer_file(tmp_path, runs):
    words = {f"w{number}": number for number in range(60)} | {"\u0120Paris": 63}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": words}, "added_tokens": []}))
    with viewer(runs["a"], runs["b"], tokenizer=str(tmp_path)) as shown:
        texts = shown.json("/tokens.json")["texts"]
        assert texts[:5] == ["w37", "w43", "w12", "w8", " Paris"]
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(BadArgument, match=r"tokenizer\.json: no vocabulary"):
        Vocabulary.read(tmp_path)


def test_runs_without_ids_have_no_strip(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    run = take(model, tmp_path / "run", torch.ones(2, 4), sites="*")
    with viewer(run, run) as shown:
        assert b"id='tokens'" not in shown.ask("/")[2]
        assert shown.json("/tokens.json")["ids"] == []


def test_a_token_that_only_b_lost_is_marked(runs, tab):
    with viewer(runs["a"], runs["nan"]) as shown:
        tab.goto(f"{shown.url}/")
        levels = tab.locator("#tokens .token").evaluate_all("all => all.map(one => one.dataset.level || '')")
        assert levels == [*["nan"] * 15, "", *["nan"] * 15, ""]
        assert "B NaN" in tab.locator("#tokens .token").first.get_attribute("title")
