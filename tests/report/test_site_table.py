"""The site table: every site once and in order, layers folded, names as text, the first departure marked."""

import math
import re
from html.parser import HTMLParser

from layertap.report.layer_folding import folded
from layertap.report.site_entries import placed
from layertap.report.site_table import Axis, SiteEntry, site_table_css, site_table_html, site_table_js


def entries(layers=20, first=7):
    parts = ["embed", *(f"layers.{n}{part}" for n in range(layers) for part in (".attn", ".mlp", "")), "norm"]
    return [
        SiteEntry(
            site=path,
            path=path,
            state="fault" if path.startswith(f"layers.{first}.mlp") else "noise",
            error=0.1,
            floor=0.01,
            ratio=10.0,
            first=path == f"layers.{first}.mlp",
        )
        for path in parts
    ]


class Rows(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.sites, self.first, self.tags = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append(tag)
        if "data-site" in found:
            self.sites.append(found["data-site"])
            self.first += [found["data-site"]] if "data-first" in found else []


def test_every_site_is_there_once_and_in_order():
    rows = Rows(site_table_html(entries()))
    assert rows.sites == [entry.site for entry in entries()]
    assert rows.first == ["layers.7.mlp"]


def test_repeated_layers_are_one_strip_and_that_of_the_first_departure_is_open():
    html = site_table_html(entries())
    assert html.count("lt-group'") == 1
    assert len(re.findall("class='lt-cell[^_]", html)) == 20
    (opened,) = re.findall(r"lt-layer lt-open' id='([^']*)'", html)
    assert opened.startswith("L-layers.7")
    assert site_table_html(entries(), fold=False).count("lt-open") == 20


def test_rows_between_layers_cut_the_strip_and_few_layers_make_none():
    paths = ["layers.0", "layers.1", "layers.2", "rotary", "layers.3"]
    found = folded([SiteEntry(site=path, path=path) for path in paths])
    assert [len(stretch.layers) for stretch in found] == [3, 0]
    assert [entry.site for entry in found[1].loose] == ["rotary", "layers.3"]


def test_hostile_names_are_text():
    name = "<script>alert(1)</script>\"' onclick=x \u202e"
    html = site_table_html([SiteEntry(site=name, path=name, kind="<b>", title="'><i>", state="noise")])
    rows = Rows(html)
    assert "script" not in rows.tags
    assert "b" not in rows.tags
    assert rows.sites == [name.replace("\u202e", "\\u202e")]


def test_nan_and_infinity_are_named_and_lie_at_the_right():
    html = site_table_html(
        [SiteEntry(site="a", path="a", state="fault", error=value) for value in (math.nan, math.inf)]
    )
    assert ">NaN</text>" in html
    assert ">Inf</text>" in html
    axis = Axis.of([1e-3, 0.1])
    assert axis.place(math.nan) == axis.place(math.inf) > axis.place(0.1) > axis.place(1e-3) > axis.place(0)


def test_what_one_side_alone_has_stands_beside_its_neighbours():
    found = placed(entries(3), [("candidate", "layers.1.mlp.gate"), ("reference", "head")])
    names = [entry.site for entry in found]
    assert names[names.index("layers.1.mlp") + 1] == "layers.1.mlp.gate"
    assert (names[-1], found[-1].state) == ("head", "reference")


def test_style_and_script_ask_nothing_of_any_host():
    for text in (site_table_css(), site_table_js()):
        assert not re.search(r"https?:|import\b|fetch|url\(", text)
