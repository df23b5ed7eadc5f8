"""Pages, notebook output, Markdown and pictures of every result: one file, offline, readable, names as text."""

import functools
import re
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from layertap.compare.result import Row
from layertap.errors import BadArgument, MissingExtra
from layertap.report.differences import difference_blocks
from layertap.report.document import Chart
from layertap.report.documents import DOCUMENTS, document_of
from layertap.report.page import html_of, markdown_of, notebook_of, write
from layertap.report.steps import pair_blocks
from layertap.site import Site
from report import results

VOID = {"meta", "input", "br", "img", "hr", "link"}
KNOWN = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "main",
        "header",
        "footer",
        "h1",
        "h2",
        "p",
        "div",
        "table",
        "caption",
    ),
    *("thead", "tbody", "tr", "th", "td", "small", "b", "i", "a", "label", "input", "button", "output", "span"),
    *("figure", "figcaption", "svg", "g", "path", "rect", "circle", "line", "text", "pre", "script"),
}


class Page(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.attributes, self.text, self.scripts, self.styles = [], set(), [], [], [], []
        self.sites, self.first, self.verdicts = [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.add(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if "data-site" in found:
            self.sites.append(found["data-site"])
            self.first += [found["data-site"]] if "data-first" in found else []
        self.verdicts += [found["data-verdict"]] if "data-verdict" in found else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.getpos())

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_data(self, data):
        into = {"script": self.scripts, "style": self.styles}.get(self.open[-1] if self.open else "", self.text)
        into.append(data)

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


def everything(folder):
    """(name, result, what makes extra blocks) of each kind of result."""
    a, b, fault = results.pair("fault")
    yield "fault", fault, lambda: difference_blocks(fault, a, b)
    for name in ("same", "inconclusive", "nonfinite"):
        one, two, report = results.pair(name)
        yield name, report, functools.partial(difference_blocks, report, one, two)
    yield "run", a, tuple
    one, two, report = results.trainings(folder)
    yield "training", one, tuple
    yield "trainings", report, lambda: pair_blocks(one, two)
    yield "finding", results.finding(), tuple
    yield "audit", results.audit(), tuple
    yield "knockout", results.knockout(), tuple
    yield "diagnosis", results.diagnosis(), tuple
    yield "sweep", results.sweep(), tuple
    yield "hostile", results.hostile(folder / "hostile"), tuple


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Made({name: found for name, *found in everything(tmp_path_factory.mktemp("results"))})


class Made(dict):
    """Results by their names, each with its extra blocks in the language of now."""

    def __getitem__(self, name):
        result, extra = super().__getitem__(name)
        return result, extra()


NAMES = (
    *("fault", "same", "inconclusive", "nonfinite", "run", "training", "trainings", "finding", "audit", "knockout"),
    *("diagnosis", "sweep", "hostile"),
)


def test_every_kind_of_result_is_tried(made):
    assert set(made) == set(NAMES)
    kinds = {kind.__name__ for result, _ in map(made.__getitem__, made) for kind in type(result).__mro__}
    assert kinds >= set(DOCUMENTS)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_one_small_file_that_asks_nobody(made, name):
    result, extra = made[name]
    html = html_of(result, extra)
    assert len(html.encode()) < 2_000_000
    page = Page(html)
    assert not page.open, "every element is closed"
    assert page.tags <= KNOWN
    for tag, attribute, value in page.attributes:
        assert not attribute.startswith("on"), (tag, attribute)
        assert attribute not in ("src", "srcset", "action", "data", "ping"), (tag, attribute)
        if attribute in ("href", "xlink:href"):
            assert value.startswith("#"), value
    ids = [value for _, attribute, value in page.attributes if attribute == "id"]
    assert len(ids) == len(set(ids)), "each site table of a page has ids of its own"
    code = "".join(page.scripts + page.styles)
    assert not re.search(
        r"https?:|//[a-z]|@import|url\(|fetch\(|XMLHttp|WebSocket|import\s|eval\(|atob|base64|data:", _bare(code)
    )
    assert all("type" not in [name for tag, name, _ in page.attributes if tag == "script"] for _ in page.scripts)


def _bare(code):
    """Without comments."""
    return re.sub(r"/\*.*?\*/|^\s*//.*$|\s// .*$", "", code, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_its_verdict_without_a_script(made, name):
    result, extra = made[name]
    document = document_of(result, extra)
    page = Page(html_of(result, extra))
    assert page.verdicts == [document.verdict or "none"]
    if name != "hostile":
        assert " ".join(document.headline.split()) in page.words
    assert "<noscript" not in html_of(result, extra)
    assert "NaN" in page.words if name in ("nonfinite", "training") else True


@pytest.mark.parametrize("name", ["fault", "nonfinite"])
def test_the_rows_of_a_comparison_are_in_order_and_the_first_departure_is_marked(made, name):
    report, extra = made[name]
    page = Page(html_of(report, extra))
    assert page.sites == [str(row.site) for row in report.rows]
    assert page.first == [str(report.first.site)]


def test_the_rows_of_a_run_are_in_order_and_nan_is_called_nan(made):
    run, _ = made["training"]
    page = Page(html_of(run))
    assert page.sites == ["embed", "layers.0", "layers.1", "loss"]
    assert page.first == ["layers.0"], "the first that is not finite, at the first such step"
    assert "2 NaN" in page.words


def test_a_finding_names_the_module_first(made):
    finding, _ = made["finding"]
    page = Page(html_of(finding))
    assert page.first == ["3.0"]
    assert page.verdicts == ["fault"]
    assert "3.0 is wrong (weights)" in page.words


def test_names_are_text_and_nothing_else(made):
    run, _ = made["hostile"]
    for html in (html_of(run), notebook_of(run)):
        page = Page(html)
        assert "img" not in page.tags
        assert "alert(1)" not in "".join(page.scripts)
        assert "\u202e" not in html
        assert any("<img src=//evil.example/x onerror=alert(1)>" in site for site in page.sites)
    text = markdown_of(run)
    assert "<script>" not in text.replace("\\<script\\>", "")
    assert "\u202e" not in text


@pytest.mark.parametrize("name", NAMES)
def test_markdown_tables_have_as_many_cells_as_titles(made, name):
    result, extra = made[name]
    text = markdown_of(result, extra)
    width = None
    for line in text.splitlines():
        if not line.startswith("|"):
            width = None
            continue
        cells = len(re.findall(r"(?<!\\)\|", line))
        assert width in (None, cells), line
        width = cells
    assert text.startswith("### ")


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_gets_no_script_and_no_page(made, name):
    result, _ = made[name]
    html = result._repr_html_()
    assert "<script" not in html
    assert "<html" not in html
    assert ":root" not in html, "the notebook's own colours stay"
    assert not Page(html).open
    assert html.count("data-verdict") == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_svg_by_itself_and_png_by_the_extra(made, name, tmp_path):
    result, extra = made[name]
    drawn = write(result, tmp_path / "x.svg", extra).read_text(encoding="utf-8")
    root = ET.fromstring(drawn)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in drawn, "a file of its own has no page's colours"
    assert "\u202e" not in drawn
    document = document_of(result, extra)
    if any(isinstance(block, Chart) for block in document.blocks):
        marks = root.findall(".//{*}circle") + root.findall(".//{*}path")
        assert len(marks) > 3, "the chart is in the picture"
    pytest.importorskip("vl_convert")
    data = write(result, tmp_path / "x.png", extra).read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(data[16:20], "big") > 700
    assert len(data) < 1_000_000


def test_without_the_extra_a_png_says_what_to_install_and_the_page_is_whole(made, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    report, extra = made["fault"]
    with pytest.raises(MissingExtra, match=re.escape("pip install 'layertap[view]'")):
        write(report, tmp_path / "x.png", extra)
    assert not (tmp_path / "x.png").exists()
    page = Page(write(report, tmp_path / "x.html", extra).read_text(encoding="utf-8"))
    assert {"svg", "table"} <= page.tags
    assert "svg" in Page(report._repr_html_()).tags


def test_an_unknown_suffix_says_which_there_are(made, tmp_path):
    with pytest.raises(BadArgument, match=r"x\.pdf.*\.html, \.md, \.png, \.svg"):
        write(made["fault"][0], tmp_path / "x.pdf")
    with pytest.raises(BadArgument, match="a str has no report; there are reports of Run, Report"):
        html_of("text")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "hostile"])
def test_f4_a_chinese_page_has_no_english_sentence_of_ours(made, name, monkeypatch):
    monkeypatch.setenv("LAYERTAP_LANG", "zh")
    result, extra = made[name]
    html = html_of(result, extra)
    assert "<html lang='zh-CN'>" in html
    page = Page(html)
    from layertap.messages.en.chart import MESSAGES as CHART
    from layertap.messages.en.page import MESSAGES as PAGE
    from layertap.messages.en.site_table import MESSAGES as SITE_TABLE
    from layertap.messages.zh.chart import MESSAGES as ZH_CHART
    from layertap.messages.zh.page import MESSAGES as ZH_PAGE
    from layertap.messages.zh.site_table import MESSAGES as ZH_SITE_TABLE

    chinese = {**ZH_CHART, **ZH_SITE_TABLE, **ZH_PAGE}
    for code, english in {**CHART, **SITE_TABLE, **PAGE}.items():
        if len(english) > 20 and english != chinese[code] and "{" not in english:
            assert english not in page.words, code


def test_a_comparison_of_very_many_rows_stays_small_and_keeps_what_departs():
    _, _, report = results.pair("fault")
    row = report.rows[0]
    names = ("site", "candidate_site", "kind", "step", "why", "difference", "error", "estimated", "floor", "floor_kind")
    known = {name: getattr(row, name) for name in (*names, "jump", "rung")}
    rows = tuple(
        Row(
            **{**known, "site": (site := Site(path=f"layers.{n}.{'x' * 40}")), "candidate_site": site},
            order=n,
            verdict="fault" if n in (9_000, 19_000) else "noise",
            ratio=50.0 if n in (9_000, 19_000) else 0.5,
        )
        for n in range(20_000)
    )
    from dataclasses import replace

    large = replace(report, rows=rows)
    html = html_of(large)
    page = Page(html)
    assert len(html.encode()) < 2_000_000
    assert page.first == [str(rows[9_000].site)]
    assert str(rows[19_000].site) in page.sites
    assert re.search(r"\d+ more rows are not shown", page.words)
    order = {str(one.site): place for place, one in enumerate(rows)}
    places = [order[site] for site in page.sites]
    assert places == sorted(places)
    assert len(markdown_of(large)) < 65_536, "what a comment on GitHub holds"
    assert len(notebook_of(large)) < 500_000


def test_charts_are_vega_lite(made):
    """Vega-Lite's own compiler takes every chart, and draws as many marks of each site."""
    vl_convert = pytest.importorskip("vl_convert")
    for name in made:
        result, extra = made[name]
        for block in document_of(result, extra).blocks:
            if isinstance(block, Chart):
                assert "<svg" in vl_convert.vegalite_to_svg(dict(block.spec), show_warnings=True), name


def test_e5_the_histogram_of_differences_counts_every_value(made):
    a, b, report = results.pair("fault")
    charts = [block for block in difference_blocks(report, a, b) if isinstance(block, Chart)]
    site = str(report.first.site)
    assert site in charts[0].spec["title"]
    values = b[site].numpy() - a[site].numpy()
    assert sum(row["count"] for row in charts[0].spec["data"]["values"]) == values.size
    assert np.isclose(min(row["from"] for row in charts[0].spec["data"]["values"]), values.min())


def test_no_histogram_where_nothing_was_kept_or_shapes_differ(made):
    one, two, report = results.pair("same")
    assert difference_blocks(report, one, two) == []
