"""The rows of a report are held by columns, and read like a tuple."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from dataclasses import replace

import pytest
import torch

import layertap as lt
from layertap.compare import Report, Row
from layertap.compare.columns import RowColumns, column
from layertap.site import Record, Site
from layertap.store import Run
from layertap.store.index import Rows


@pytest.fixture(scope="module")
def report() -> Report:
    names = [f"layers.{number}" for number in range(6)]
    one = {name: torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(len(name))) for name in names}
    other = {name: value.clone() for name, value in one.items()}
    other["layers.3"][0, 0, 0] += 1.0
    other["layers.4"] = 1.001 * other["layers.4"]
    return lt.diff(one, other)


def test_the_rows_read_like_a_tuple(report: Report) -> None:
    rows = tuple(report.rows)
    assert all(type(row) is Row for row in rows)
    assert [str(row.site) for row in rows] == [f"layers.{number}" for number in range(6)]
    assert [row.difference is None for row in rows] == [True, True, True, False, False, True]
    assert len(report.rows) == 6
    assert report.rows == rows
    assert rows == report.rows
    assert report.rows != rows[:-1]
    assert report.rows != (*rows[:-1], rows[0])
    assert report.rows[-1] == rows[-1]
    assert report.rows[1:4] == rows[1:4]
    assert list(reversed(report.rows)) == list(reversed(rows))
    assert report.rows.index(rows[2]) == 2
    assert rows[2] in report.rows
    assert hash(report.rows) == hash(rows)
    assert repr(report.rows) == repr(rows)
    with pytest.raises(IndexError):
        report.rows[6]


def test_a_row_that_is_made_anew_is_the_same_row(report: Report) -> None:
    for place, row in enumerate(report.rows):
        assert report.rows[place] == row
        assert all(list(column(report.rows, name))[place] == getattr(row, name) for name in Row.__dataclass_fields__)
    assert report.first == report.rows[3]
    assert report.worst == max(report.rows, key=lambda row: row.ratio)


def test_a_report_with_plain_rows_is_the_same_report(report: Report) -> None:
    plain = replace(report, rows=tuple(report.rows))
    assert plain == report
    assert (plain.first, plain.worst, plain.growth) == (report.first, report.worst, report.growth)
    assert str(plain) == str(report)
    assert plain.to_dict() == report.to_dict()
    assert replace(report, rows=()).first is None
    assert replace(report, rows=()).worst is None


def test_rows_pickle_and_go_to_json(report: Report) -> None:
    back = pickle.loads(pickle.dumps(report))
    assert back == report
    assert [row["site"] for row in json.loads(json.dumps(report.to_dict()))["rows"]] == [
        str(row.site) for row in report.rows
    ]


def test_rows_that_came_from_a_pickle_can_be_added_to() -> None:
    rows = pickle.loads(pickle.dumps(_many(3)))
    assert rows._known == ({}, {})  # identities of another process may be those of other sites here
    rows.add(
        (Site(path="other"), Site(path="other"), "", "exact"), ("fault", "", False, "modelled"), None, 0, 0, *[1.0] * 4
    )
    assert [str(row.site) for row in rows] == ["layers.0", "layers.1", "layers.2", "other"]


def test_another_verdict_on_one_row_leaves_the_others() -> None:
    rows = _many(3)
    rows.judge(1, "inconclusive", "not known")
    assert [(row.verdict, row.why) for row in rows] == [
        ("identical", "bit for bit"),
        ("inconclusive", "not known"),
        ("identical", "bit for bit"),
    ]


def test_a_row_takes_few_bytes() -> None:
    tracemalloc.start()
    try:
        rows = _many(20_000)
        assert tracemalloc.get_traced_memory()[0] < 80 * len(rows)
    finally:
        tracemalloc.stop()


def _many(count: int) -> RowColumns:
    sites = [Site(path=f"layers.{number}") for number in range(10)]
    rows = RowColumns()
    for number in range(count):
        site = sites[number % 10]
        told = ("identical", "bit for bit", False, "modelled")
        rows.add((site, site, "", "exact"), told, None, number, number, 0.0, 1e-7 * number, 0.0, 0.0)
    return rows


@pytest.mark.parametrize("sites", [None, "**"])
def test_each_record_of_two_different_runs_is_read_once(monkeypatch: pytest.MonkeyPatch, sites: str | None) -> None:
    count = 300
    made = torch.Generator().manual_seed(0)
    one = {f"layers.{number}": torch.randn(8, 16, generator=made) for number in range(count)}
    other = {name: value * (1 + 2e-3 * torch.randn(8, 16, generator=made)) for name, value in one.items()}
    read = []
    records_at = Run.records_at

    def counted(run: Run, rows: Rows, *, sketches: bool = True) -> list[Record]:
        read.append(len(rows))
        return records_at(run, rows, sketches=sketches)

    monkeypatch.setattr(Run, "records_at", counted)
    report = lt.diff(one, other, sites=sites)
    assert report.verdict == "fault"
    assert [note.code for note in report.notes if note.code == "result.joined"]  # the size of bfloat16's rounding
    # Once to align the sites, once to measure the tensors; and in blocks, never one by one.
    assert sum(read) <= 4 * count + 2
    assert len(read) < 20
