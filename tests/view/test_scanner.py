"""The scanner (D8): a real small Qwen3 runs from the page, with and without a plan, on values that are not rounded."""

import math

import pytest
import torch

from layertap.errors import BadArgument
from layertap.view.scan import Scanner
from layertap.view.scan_page import values_of
from view.making import viewer

MODEL = """
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM


def make():
    torch.manual_seed(0)
    sizes = dict(vocab_size=64, hidden_size=128, intermediate_size=192, num_hidden_layers=4)
    config = Qwen3Config(**sizes, num_attention_heads=4, num_key_value_heads=2, head_dim=32, tie_word_embeddings=True)
    return Qwen3ForCausalLM(config).eval(), {"input_ids": torch.arange(3, 12)[None]}
"""


@pytest.fixture(scope="module")
def scanner(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "qwen.py"
    path.write_text(MODEL)
    found = Scanner(f"{path}:make", plan="attention[:1]")
    found.open()
    return found


@pytest.fixture(scope="module")
def shown(scanner):
    with viewer(scanner=scanner, token="secret") as running:
        yield running


def test_numbers_are_those_of_the_model(scanner):
    scan = scanner.run(skipped=scanner.planned)
    model, ids = scanner.target.model, torch.arange(3, 12)[None]
    held = {}
    hook = model.model.layers[1].register_forward_hook(lambda _m, _a, out: held.setdefault("state", out))
    chances = model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
    hook.remove()
    state = held["state"][0] if isinstance(held["state"], tuple) else held["state"]
    (gradient,) = torch.autograd.grad(-chances[4, ids[0, 5]], state)
    for mine, theirs in ((scan.a.activation[1, 4], state[0, 4]), (scan.a.gradient[1, 4], gradient[0, 4])):
        expected = theirs.detach().double().unflatten(-1, (-1, 64)).norm(dim=-1)
        assert mine == pytest.approx(expected.numpy(), rel=1e-4)
    assert scan.a.loss[4] == pytest.approx(float(-chances[4, ids[0, 5]].detach()), rel=1e-4)
    assert math.isnan(scan.a.loss[-1])
    assert not (scan.a.gradient == 0).any()  # small gradients are not rounded away
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_what_is_switched_off_changes_b_and_leaves_the_model_whole(scanner):
    before = scanner.run().a.activation
    scan = scanner.run(skipped=["model.layers.2.mlp"])
    assert (scan.a.activation == before).all()
    assert (values_of(scan, "d", "activation")[:2] == 0).all()
    assert (values_of(scan, "d", "activation")[2:] != 0).any()
    assert (scanner.run().b.activation == before).all()


def test_z_scores_are_taken_within_a_layer(scanner):
    found = values_of(scanner.run(), "a", "activation_z")
    assert abs(found.mean((1, 2))).max() < 1e-9
    assert found.std((1, 2)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"prompt": "hello"}, "tokenizer"),
        ({"ids": [64]}, "below 64"),
        ({"ids": [-1]}, "below 64"),
        ({"skipped": ["model.norm"]}, "not a branch"),
    ],
)
def test_what_cannot_be_run_is_told(scanner, asked, told):
    with pytest.raises(BadArgument, match=told):
        scanner.run(**asked)


def test_only_the_token_runs_the_model(shown):
    before = shown.json("/scanner.json")["number"]
    for path in ("/scan", "/scan?token=", "/scan?token=wrong", "/scan?token=secre"):
        assert shown.ask(path, method="POST", Content_Length="0")[0] == 403
    assert shown.ask("/scan?token=secret", method="POST", Origin="http://evil.test", Content_Length="0")[0] == 403
    assert shown.ask("/scan?token=secret")[0] == 405
    assert shown.ask("/scanner?token=secret", method="POST", Content_Length="0")[0] == 405
    assert shown.ask("/scan?token=secret", method="POST", Content_Length="0")[0] == 400
    assert shown.json("/scanner.json")["number"] == before


def test_a_run_from_the_page(shown, scanner, tab):
    from view.accessibility import findings

    scanner.scan = None
    tab.goto(f"{shown.url}/scanner?token=secret")
    assert not tab.locator("input.branch").first.is_checked()  # the plan skips the first attention
    tab.locator("input[name=ids]").fill("5, 6, 7 8")
    tab.locator("#run").click()
    tab.locator("#result").wait_for(timeout=60_000)
    assert tab.locator("#tokens button").all_text_contents() == ["5", "6", "7", "8"]
    assert tab.locator("#text-a").text_content() != ""
    image = tab.locator("#blocks img").first
    assert image.evaluate("one => one.decode().then(() => [one.naturalWidth, one.naturalHeight])") == [2, 4]
    tab.locator("#tokens button").nth(2).click()
    assert tab.locator("#slider").input_value() == "2"
    tab.locator("#measure").select_option("gradient")
    tab.goto(tab.url)  # the address has the state
    tab.locator("#result").wait_for()
    tab.wait_for_timeout(300)
    assert (tab.locator("#slider").input_value(), tab.locator("#measure").input_value()) == ("2", "gradient")
    image = tab.locator("#blocks img").first
    image.hover()
    number = shown.json("/scanner.json")["number"]
    tab.locator("input.branch").nth(3).uncheck()  # switched off live: it runs again
    for _ in range(600):
        if shown.json("/scanner.json")["number"] > number:
            break
        tab.wait_for_timeout(100)
    assert shown.json("/scanner.json")["skipped"] == ["model.layers.0.self_attn", "model.layers.1.mlp"]
    tab.wait_for_timeout(300)
    assert findings(tab) == []


def test_without_the_token_the_page_says_that_it_cannot_run(shown, tab):
    tab.goto(f"{shown.url}/scanner")
    assert tab.locator("#run").is_disabled()
    assert "without the token" in tab.locator("#empty").text_content()
