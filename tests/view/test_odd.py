"""Values and runs that are out of the ordinary: every address answers, and says what there is."""

import pytest
import torch
from torch import nn

from layertap.store import RunWriter
from store.making import receipt, record, statistics
from view.making import take, viewer

LEAVES = ("scalar", "vector", "empty", "flags", "complex", "five", "half", "whole")


class Odd(nn.Module):
    def forward(self, x):
        parts = (x.sum(), x[0], x[:0], x > 0, torch.complex(x, x), x.reshape(1, 2, 1, 4, 2), x.half(), x.long())
        return dict(zip(LEAVES, parts, strict=True))


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    return [
        take(Odd(), folder / name, torch.arange(16.0).reshape(2, 8) + shift, sites=":output")
        for name, shift in (("a", 0), ("b", 1))
    ]


@pytest.mark.parametrize("second", [0, 1])
def test_every_kind_of_tensor_is_shown(odd, second):
    with viewer(odd[0], odd[second]) as shown:
        for leaf in LEAVES:
            site = f"%3Aoutput.{leaf}"
            twin = shown.json(f"/site.json?site={site}")
            assert twin["site"] == f":output.{leaf}"
            assert shown.ask(f"/site.html?site={site}")[0] == 200
            for name in "abd":
                status, headers, body = shown.ask(f"/tile.png?site={site}&map={name}")
                assert (status, headers["content-type"], body[:4]) == (200, "image/png", b"\x89PNG")
            cell = shown.json(f"/cell.json?site={site}&x=0&y=0&h=1&w=1")
            assert ("index" in cell) == (leaf != "empty")
        scalar = shown.json("/site.json?site=%3Aoutput.scalar")["worst"][0]
        assert (scalar["a"], scalar["b"] - scalar["a"]) == (120.0, 16.0 * second)


def written(path, count, name="layers.{}.part", scale=1.0):
    writer = RunWriter(path, info={"model": "Net"})
    for order in range(count):
        site = name.format(order)
        seen = statistics(abs_mean=scale, l2=scale)
        writer.add(record(site, 0, order=order, statistics=seen, fingerprint=order + 1, sketch=b""))
    writer.close(receipt())
    return str(path)


def test_one_site_and_very_long_names(tmp_path, tab):
    one, long = written(tmp_path / "one", 1), written(tmp_path / "long", 3, "m." + "very_long_name_" * 60 + ".{}")
    for runs in ([one], [one, one], [long], [long, long]):
        with viewer(*runs) as shown:
            tab.goto(f"{shown.url}/")
            tab.locator("tr[data-site]").first.click()
            tab.locator("#site h2").wait_for()
            assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_an_empty_run_says_that_it_is_empty(tmp_path):
    with viewer(written(tmp_path / "run", 0)) as shown:
        assert b"contains no record" in shown.ask("/")[2]
        assert shown.ask("/runs")[0] == 200
        assert b"nothing to show over steps" in shown.ask("/training")[2]


def test_five_thousand_sites_are_loaded_as_they_come_into_view(tmp_path, tab):
    from view.test_browser import until

    with viewer(written(tmp_path / "run", 5000)) as shown:
        tab.goto(f"{shown.url}/")
        until(tab, "document.querySelectorAll('tr[data-site]').length >= 200")
        assert tab.locator("tr[data-site]").count() < 1500
        tab.evaluate("document.getElementById('sites').scrollTop = 1e9")
        tab.locator("tr[data-site='layers.4999.part']").wait_for()
        tab.keyboard.press("/")
        tab.keyboard.type("layers.31")
        until(tab, "document.querySelector('.lt-count').value.startsWith('111 ')")
        tab.keyboard.press("Escape")
        until(tab, "document.querySelector('.lt-count').value.startsWith('5000 ')")
        tab.locator("tr[data-site]").first.wait_for()
        tab.keyboard.press("j")
        tab.locator("#site h2").wait_for()


def test_a_large_comparison_does_not_hold_the_first_page(tmp_path, tab, monkeypatch):
    import threading

    from layertap import compare
    from view.test_browser import until

    going = threading.Event()
    diff = compare.diff

    def slow(*runs, **options):
        going.wait(60)
        return diff(*runs, **options)

    monkeypatch.setattr(compare, "diff", slow)
    a, b = (written(tmp_path / name, 1600, scale=scale) for name, scale in (("a", 1.0), ("b", 1.0)))
    with viewer(a, b) as shown:
        tab.goto(f"{shown.url}/")  # would time out after 30 s if it waited
        assert tab.locator("[data-verdict]").get_attribute("data-verdict") == "pending"
        going.set()
        until(tab, "document.querySelector('[data-verdict]').dataset.verdict === 'identical'", 60)
        assert tab.locator("tr[data-site]").count() == 1600


def test_what_nobody_foresaw_is_one_line(runs, monkeypatch):
    from layertap.view import panel

    def broken(*_):
        raise RuntimeError("<b>boom")

    with viewer(runs["a"]) as shown:
        monkeypatch.setattr(panel, "site_panel", broken)
        status, headers, body = shown.ask("/site.html?site=head")
        assert (status, headers["content-type"]) == (500, "text/plain; charset=utf-8")
        assert b"RuntimeError" in body
        assert b"Traceback" not in body


def test_two_viewers_and_a_port_in_use(runs):
    from layertap.errors import BadArgument
    from layertap.view.serving import listening

    with listening(None) as one, listening(None) as two:
        ports = [sock.getsockname()[1] for sock in (one, two)]
        assert len(set(ports)) == 2
        with pytest.raises(BadArgument, match=f"port {ports[0]}"):
            listening(ports[0])
    with viewer(runs["a"]) as one, viewer(runs["a"]) as two:
        assert one.json("/runs.json") == two.json("/runs.json")
