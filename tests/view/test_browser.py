"""The viewer as a person uses it, in a real Chromium (D8, C13); conftest looks at requests and at the console."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from layertap.cli.demo import decoder
from view.accessibility import findings
from view.making import ids, take, viewer


def until(tab, expression, seconds=20):
    """Waits for an expression in the page; playwright's own way is an eval, which the page's policy forbids."""
    for _ in range(seconds * 20):
        if tab.evaluate(f"() => Boolean({expression})"):
            return
        tab.wait_for_timeout(50)
    raise AssertionError(f"never: {expression}")


def chosen(tab):
    return tab.locator("tr[aria-selected=true]").get_attribute("data-site")


def test_the_first_departure_is_seen_by_name_and_its_site_opens_on_a_click(compared, tab):
    tab.goto(f"{compared.url}/")
    first = tab.locator("[data-first]")
    assert first.is_visible()
    assert "blocks.3.down" in first.text_content()
    assert tab.locator("[data-verdict]").get_attribute("data-verdict") == "fault"
    first.click()
    tab.locator("#site h2", has_text="blocks.3.down").wait_for()
    assert "site=blocks.3.down" in tab.url
    for image in tab.locator("#site figure.map img").all():
        assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") == 48
    assert "channel 7" in tab.locator("#site .why").text_content()
    tab.locator("#site figure.map[data-map=d] img").hover(position={"x": 20, "y": 20})
    until(tab, "document.querySelector('output.cell').value.includes('B−A')")


def test_the_first_departure_is_shown_unasked_and_can_be_looked_into(compared, tab):
    tab.goto(f"{compared.url}/")
    assert "blocks.3.down" in tab.locator("#site h2").text_content()
    assert "site=" not in tab.url
    tab.locator("select[data-name=index]").select_option("1")
    until(tab, "document.querySelector('select[data-name=index]')?.value === '1'")
    until(tab, "location.search.includes('site=blocks.3.down')")
    tab.goto(f"{compared.url}/?b=none")
    assert tab.locator("#site h2").count() == 0  # nothing departs


def test_a_cell_of_the_strip_opens_its_layer_and_the_address_brings_it_back(compared, tab):
    tab.goto(f"{compared.url}/")
    row = tab.locator("tr[data-site='blocks.9.up']")
    assert not row.is_visible()
    tab.locator("a.lt-cell").nth(9).click()
    row.click()
    tab.locator("#site h2", has_text="blocks.9.up").wait_for()
    tab.goto(tab.url)
    assert row.is_visible()
    assert chosen(tab) == "blocks.9.up"
    assert "blocks.9.up" in tab.locator("#site h2").text_content()


def test_keys(compared, tab):
    tab.goto(f"{compared.url}/")
    tab.keyboard.press("j")
    assert chosen(tab) == "embed"
    tab.keyboard.press("f")
    assert chosen(tab) == "blocks.3.down"
    tab.keyboard.press("k")
    assert chosen(tab) == "blocks.3.up"
    tab.locator("#site h2", has_text="blocks.3.up").wait_for()
    tab.keyboard.press("?")
    assert tab.locator("dialog#keys").is_visible()
    tab.keyboard.press("Escape")
    tab.keyboard.press("/")
    tab.keyboard.type("blocks.7 qkv")
    seen = tab.locator("tr[data-site]:visible")
    assert seen.count() == 1
    assert seen.get_attribute("data-site") == "blocks.7.qkv"
    assert "q=blocks.7" in tab.url
    tab.keyboard.press("Escape")
    assert seen.count() > 1
    assert "q=" not in tab.url


def test_only_what_is_no_noise(compared, tab):
    tab.goto(f"{compared.url}/")
    tab.locator(".lt-unfold").check()
    assert tab.locator("tr[data-site]:visible").count() == 75
    tab.locator(".lt-bad").check()
    seen = tab.locator("tr[data-site]:visible")
    assert seen.count() == 52
    assert set(seen.evaluate_all("rows => rows.map(row => row.dataset.state)")) == {"fault"}


def test_nan_is_shown_as_nan(alone, tab):
    tab.goto(f"{alone.url}/?site=blocks.5.up")
    assert tab.locator("[data-first]").get_attribute("data-site") == "blocks.5.up"
    assert "32 NaN" in tab.locator("[data-first]").text_content()
    panel = tab.locator("#site")
    assert "NaN" in panel.locator("table").last.text_content()
    image = panel.locator("figure.map img").first
    pixel = image.evaluate(
        """async (image) => { await image.decode(); const draw = new OffscreenCanvas(1, 1).getContext("2d");
        draw.drawImage(image, 3, 0, 1, 1, 0, 0, 1, 1); return [...draw.getImageData(0, 0, 1, 1).data]; }"""
    )
    assert pixel == [0xE0, 0x21, 0x8A, 255]


def test_another_candidate_is_chosen(runs, tab):
    with viewer(runs["a"], runs["b"], runs["nan"], floors=[runs["floor"]]) as shown:
        tab.goto(f"{shown.url}/")
        assert "blocks.3.down" in tab.locator("[data-first]").text_content()
        tab.locator("select[name=b]").select_option("2")
        tab.wait_for_url("**b=2**")
        assert "blocks.5.up" in tab.locator("[data-first]").text_content()
        tab.locator("select[name=b]").select_option("none")
        tab.wait_for_url("**b=none**")
        assert tab.locator("[data-verdict]").get_attribute("data-verdict") == "none"


def test_a_run_that_is_being_written_follows(tmp_path, tab):
    from layertap.capture import record

    model = decoder(3)
    with record(model, tmp_path / "live", sites="blocks.*") as recording:
        model(ids())
        with viewer(str(tmp_path / "live")) as shown:
            tab.goto(f"{shown.url}/")
            before = tab.locator("#verdict h1").text_content()
            for _ in range(2):
                recording.step()
                model(ids())
            recording.__exit__(None, None, None)
            until(tab, "document.querySelector('#verdict h1').textContent.includes('3 steps')")
            until(tab, "!document.querySelector('.live')")
            assert "3 steps" not in before


class Attention(nn.Module):
    def forward(self, x):
        return x, torch.softmax(torch.arange(2.0 * 4 * 6 * 6).sin().reshape(2, 4, 6, 6), -1)


def test_attention_by_head(tmp_path, tab):
    model = nn.Sequential(OrderedDict(self_attn=Attention()))
    run = take(model, tmp_path / "run", torch.randn(2, 6, 16), sites="*")
    with viewer(run) as shown:
        tab.goto(f"{shown.url}/?site=self_attn%3Aoutput.1")
        heads = tab.locator(".heads figure")
        assert heads.count() == 4
        heads.nth(2).locator("a").click()
        until(tab, "document.querySelector('select[data-name=index]')?.value === '0,2'")
        assert "index=0%2C2" in tab.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/", "/?site=blocks.3.down", "/?b=none", "/runs"])
def test_nothing_serious_is_wrong_for_those_who_read_otherwise(compared, tab, scheme, path):
    tab.emulate_media(color_scheme=scheme)
    tab.goto(f"{compared.url}{path}")
    tab.wait_for_timeout(200)
    assert findings(tab) == []


def test_the_check_of_accessibility_finds_what_is_wrong(tab, compared):
    tab.goto(f"{compared.url}/")
    tab.evaluate("document.body.insertAdjacentHTML('beforeend', '<main><button></button></main>')")
    told = {rule: impact for rule, impact, _ in findings(tab)}
    assert told["button-name"] == "critical"


def test_the_site_table_works_in_a_frame_from_text(tab, compared):
    from layertap.compare import diff
    from layertap.report.site_entries import report_entries
    from layertap.report.site_table import site_table_css, site_table_html, site_table_js

    report = diff(compared.session.sides[0].source, compared.session.sides[1].source)
    table = site_table_html(report_entries(report))
    page = f"<!doctype html><style>{site_table_css()}</style>{table}<script>{site_table_js()}</script>"
    tab.set_content("<iframe sandbox='allow-scripts' style='width:1200px;height:700px'></iframe>")
    tab.evaluate("page => { document.querySelector('iframe').srcdoc = page; }", page)
    frame = tab.frame_locator("iframe")
    row = frame.locator("tr[data-site='blocks.9.up']")
    frame.locator("a.lt-cell").nth(9).click()
    row.click()
    assert row.get_attribute("aria-selected") == "true"


@pytest.mark.parametrize("path", ["/", "/?site=blocks.3.down", "/?b=none", "/runs"])
def test_a_phone_scrolls_down_and_not_sideways(compared, tab, path):
    tab.set_viewport_size({"width": 360, "height": 740})
    tab.goto(f"{compared.url}{path}")
    assert tab.evaluate("document.documentElement.scrollWidth") == 360


def test_paper_has_all_of_a_page(compared, tab):
    tab.goto(f"{compared.url}/?site=blocks.3.down")
    tab.emulate_media(media="print")
    assert not tab.locator(".top").is_visible()
    inner = tab.evaluate(
        "[...document.querySelectorAll('.panes > section')].map(one => one.scrollHeight - one.clientHeight)"
    )
    assert max(inner) <= 1
    assert tab.locator("tr[data-site]:visible").count() == 75
