"""Tables on screens of any width."""

import io

from rich.console import Console

from layertap.report.table import Column, Lines
from layertap.report.values import sparkline


def drawn(table, width):
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(table)
    return out.getvalue().splitlines()


def table(names=("block.0", "block.1"), last=""):
    columns = Column(title="site", left=True), Column(title="mean"), Column(title="std", spare=1)
    lines = Lines([*columns, Column(title="dtype", spare=2), Column(title="nan")])
    for name in names:
        lines.add([name, "0.0001234", "1.234e-05", "bfloat16", last])
    return lines


def test_a_wide_screen_has_all_columns():
    assert drawn(table(), 80) == [
        "site          mean        std     dtype  nan",
        "block.0  0.0001234  1.234e-05  bfloat16",
        "block.1  0.0001234  1.234e-05  bfloat16",
    ]


def test_a_narrow_screen_cuts_no_number_but_says_which_columns_are_gone():
    assert drawn(table(), 32) == [
        "site          mean        std",
        "block.0  0.0001234  1.234e-05",
        "block.1  0.0001234  1.234e-05",
        "not shown, too narrow: dtype",
        "empty: nan",
    ]


def test_a_column_with_news_stays():
    assert any("7" in line for line in drawn(table(last="7"), 30))


def test_long_names_fold_and_stay_whole():
    name = "层" * 60 + ".weight"
    lines = drawn(table([name]), 60)
    assert "".join(line.split("  ")[0].strip() for line in lines[1:]).startswith(name)
    assert all("0.0001234" in line or "层" in line for line in lines[1:3])


def test_names_are_neither_markup_nor_orders_to_the_terminal():
    text = "\n".join(drawn(table(["[bold red]x[/]", "a\x1b[2Jb\nc", ":smile:"]), 200))
    assert "[bold red]x[/]" in text
    assert r"a\x1b[2Jb\nc" in text
    assert ":smile:" in text


def test_thousands_of_values_are_one_line_of_bars():
    values = [1.0] * 2500 + [float("nan")] + [1.0] * 2499
    assert len(sparkline(values)) == 100
    assert "✗" in sparkline(values)
