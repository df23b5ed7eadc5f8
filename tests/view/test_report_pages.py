"""Reports in a real Chromium: every kind of result, light and dark, in a frame, on paper, and without a script."""

import pytest

from layertap.report.page import html_of
from report.test_page import NAMES, everything
from view.accessibility import findings


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The page of each result, by its name, as a file."""
    folder = tmp_path_factory.mktemp("reports")
    found = {}
    for name, result, extra in everything(folder):
        found[name] = folder / f"{name}.html"
        found[name].write_text(html_of(result, extra()))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wrong_with_a_report(pages, name, tab):
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme)
        tab.goto(pages[name].as_uri())
        assert (scheme, findings(tab)) == (scheme, [])


def test_a_report_works_in_a_frame_from_text(pages, tab):
    tab.set_content("<iframe sandbox='allow-scripts' style='width:1200px;height:700px'></iframe>")
    tab.evaluate("page => { document.querySelector('iframe').srcdoc = page; }", pages["fault"].read_text())
    frame = tab.frame_locator("iframe")
    frame.locator("[data-first]").click()
    assert frame.locator("[data-first]").get_attribute("aria-selected") == "true"
    frame.locator(".lt-filter").fill("nothing has this name")
    assert frame.locator("tr[data-site]:visible").count() == 0


def test_a_report_is_read_without_a_script(pages, chromium):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["fault"].as_uri())
    assert page.locator("[data-verdict]").is_visible()
    assert page.locator("[data-first]").is_visible()
    folded = page.locator("tr[data-site]:visible").count()
    page.locator(".lt-unfold").check()
    assert page.locator("tr[data-site]:visible").count() >= folded
    context.close()


def test_a_phone_shows_a_report_without_scrolling_sideways(pages, tab):
    tab.set_viewport_size({"width": 360, "height": 740})
    for name in NAMES:
        tab.goto(pages[name].as_uri())
        assert (name, tab.evaluate("document.documentElement.scrollWidth")) == (name, 360)
