"""Which address gives what. Every page has a counterpart in JSON; nothing here writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from layertap.errors import BadArgument, LayertapError, SiteNotFound
from layertap.messages import printable, tr
from layertap.result import jsonable
from layertap.view import page
from layertap.view.guard import Guard
from layertap.view.query import Query
from layertap.view.sides import Session
from layertap.view.site_tables import ComparedSites, RunSites, sites_dict
from layertap.view.strip import coloured

STATIC = {
    "site_table.css": ("report", "text/css"),
    "site_table.js": ("report", "text/javascript"),
    "page.css": ("report", "text/css"),
    "viewer.css": ("view", "text/css"),
    "viewer.js": ("view", "text/javascript"),
    "long.js": ("view", "text/javascript"),
    "maps.js": ("view", "text/javascript"),
    "follow.js": ("view", "text/javascript"),
    "grid.js": ("view", "text/javascript"),
    "scanner.js": ("view", "text/javascript"),
    "icon.svg": ("view", "image/svg+xml"),
}
"""Files of pages: name → package and type. Nothing else is read from the disk by name."""
ROWS = 20_000
"""So many rows a JSON form has unless `count` asks for another part."""


class Json(JSONResponse):
    """JSON that any parser takes: NaN and the infinities as strings."""

    def render(self, content: Any) -> bytes:
        return json.dumps(jsonable(content), allow_nan=False).encode()


def make_app(session: Session, *, scanner: Any = None, token: str = "") -> Guard:
    """The application behind its guard."""
    found = _PageApp(session)
    routes = [
        Route("/", found.main),
        Route("/diff.json", found.diff),
        Route("/runs", found.runs_page),
        Route("/runs.json", found.runs),
        Route("/training", found.training_page),
        Route("/training.json", found.training),
        Route("/results", found.results_page),
        Route("/results.json", found.results),
        Route("/state.json", found.state),
        Route("/rows.json", found.rows),
        Route("/tokens.json", found.tokens),
        Route("/site.json", found.site_json),
        Route("/site.html", found.site_html),
        Route("/cell.json", found.cell),
        Route("/tile.png", found.tile),
        Route("/static/{name}", found.static),
    ]
    guarded: tuple[str, ...] = ()
    if scanner is not None:
        from layertap.view.scan_app import RUN, scan_routes

        session.scanner = scanner
        routes += scan_routes(session, scanner)
        guarded = (RUN,)
    app = Starlette(routes=routes, exception_handlers={HTTPException: _not_found})
    return Guard(app, token=token, guarded=guarded)


async def _not_found(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return PlainTextResponse(tr("view.no_page"), status)


Endpoint = Callable[["_PageApp", Request, Query], Response]


def _answer(work: Endpoint) -> Callable[[_PageApp, Request], Response]:
    """An endpoint: reads the address, and what is wrong with it is one sentence and a status."""

    @wraps(work)
    def answered(self: _PageApp, request: Request) -> Response:
        try:
            self.session.refresh()
            return work(self, request, Query.of(request.query_params, len(self.session.sides)))
        except (BadArgument, SiteNotFound) as error:
            status = 404 if isinstance(error, SiteNotFound) else 400
            return _problem(request, self.why(error), status)
        except LayertapError as error:
            return _problem(request, self.why(error), 422)
        except OSError as error:
            return _problem(request, printable(str(error)), 410)
        except Exception as error:  # noqa: BLE001  an unforeseen error is shown on the page, in one line
            return _problem(request, tr("view.unforeseen", error=printable(f"{type(error).__name__}: {error}")), 500)

    return answered


def _problem(request: Request, why: str, status: int) -> Response:
    if request.url.path.endswith(".json"):
        return Json({"error": why}, status)
    return PlainTextResponse(why, status)


class _PageApp:
    def __init__(self, session: Session) -> None:
        self.session = session

    def why(self, error: LayertapError) -> str:
        """An error in words; that a run has gone explains all that cannot be read of it."""
        gone = "; ".join(side.gone for side in self.session.sides if side.gone)
        return gone or str(error)

    @_answer
    def main(self, request: Request, query: Query) -> Response:
        if not self.session.sides:
            other = "/results" if self.session.results else "/scanner"
            return RedirectResponse(other + (f"?{request.url.query}" if request.url.query else ""))
        return HTMLResponse(page.main_page(self.session, query))

    @_answer
    def diff(self, request: Request, query: Query) -> Response:
        start, count = max(0, query.number("from", 0)), max(0, query.number("count", ROWS))
        if query.b is None:
            side = self.session.sides[query.a]
            with side.lock:
                site_table = RunSites(side.run, query.step)
                found = sites_dict(site_table)
            first = next((row["site"] for row in found["rows"] if row["nan"] or row["inf"]), None)
            whole = {"reference": side.run.name, "candidate": None, "verdict": "none", "first": first, **found}
            return Json({**whole, "total_rows": len(found["rows"]), "rows": found["rows"][start : start + count]})
        report, comparison = self.session.report(query.a, query.b, patience=60)
        if report is None:
            if comparison.error:
                return Json({"verdict": "inconclusive", "error": comparison.error}, 422)
            return Json({"verdict": "pending", "done": comparison.done, "total": comparison.total}, 202)
        from dataclasses import replace

        part = replace(report, rows=report.rows[start : start + count])
        first = report.first
        found = {**part.to_dict(), "total_rows": len(report.rows)}
        found["first"] = None if first is None else str(first.site)
        return Json(found)

    @_answer
    def runs(self, request: Request, query: Query) -> Response:
        from layertap.view.about import run_dict

        return Json({"runs": [run_dict(side) for side in self.session.sides]})

    @_answer
    def runs_page(self, request: Request, query: Query) -> Response:
        from layertap.view.runs_page import runs_page

        return HTMLResponse(runs_page(self.session, query))

    @_answer
    def training_page(self, request: Request, query: Query) -> Response:
        from layertap.view.training import training_page

        return HTMLResponse(training_page(self._with_runs(), query))

    @_answer
    def training(self, request: Request, query: Query) -> Response:
        from layertap.view.training import training_dict

        return Json(training_dict(self._with_runs(), query))

    @_answer
    def results_page(self, request: Request, query: Query) -> Response:
        from layertap.view.results_page import results_page

        return HTMLResponse(results_page(self.session, query))

    @_answer
    def results(self, request: Request, query: Query) -> Response:
        from layertap.view.results_page import results_dict

        return Json(results_dict(self.session, query))

    def _with_runs(self) -> Session:
        if not self.session.sides:
            raise BadArgument(tr("view.no_runs"))
        return self.session

    @_answer
    def state(self, request: Request, query: Query) -> Response:
        """What a page asks every second while something goes on: whether it is to be loaded again."""
        if query.given.get("page"):  # a page that compares nothing
            return Json({"version": self.session.version, "live": self.session.live})
        numbers = [query.a] if query.b is None else [query.a, query.b]
        sides = [self.session.sides[number] for number in numbers if self.session.sides]
        found: dict[str, Any] = {
            "version": page.version_of(self.session, query),
            "live": any(side.live for side in sides),
        }
        if query.b is not None:
            comparison = self.session.comparison(query.a, query.b)
            found |= {"comparing": not comparison.ended, "done": comparison.done, "total": comparison.total}
        return Json(found)

    @_answer
    def rows(self, request: Request, query: Query) -> Response:
        """A part of a long site table, as rows; `q` filters by name, `bad` leaves out what is no departure."""
        site_table, _ = page.sites_and_verdict(self.session, query)
        if site_table is None:
            return Json({"total": 0, "html": ""}, 202)
        site_table = coloured(self.session, query, site_table)
        start, count = max(0, query.number("from", 0)), min(1000, max(1, query.number("count", page.PART)))
        places = self._filtered(site_table, query)
        html = page.rows_part(site_table, query, start, count, places)
        return Json(
            {"total": len(site_table) if places is None else len(places), "first": site_table.first, "html": html}
        )

    @_answer
    def tokens(self, request: Request, query: Query) -> Response:
        """The tokens of the input, and how likely each next one is on either side."""
        from layertap.view.strip import strip_dict

        site_table, _ = page.sites_and_verdict(self._with_runs(), query)
        return Json({"ids": []}, 202) if site_table is None else Json(strip_dict(self.session, query, site_table))

    @_answer
    def site_json(self, request: Request, query: Query) -> Response:
        from layertap.view.site import site_dict

        return Json(site_dict(self.session, query))

    @_answer
    def site_html(self, request: Request, query: Query) -> Response:
        from layertap.view.panel import site_panel

        return HTMLResponse(site_panel(self.session, query))

    @_answer
    def cell(self, request: Request, query: Query) -> Response:
        """The value under the pointer: `x` and `y` are a pixel of a map of `w` by `h` pixels."""
        from layertap.view.site import cell, chosen

        numbers = [query.number(name, 0) for name in ("y", "x", "h", "w")]
        return Json(cell(chosen(self.session, query), *numbers))

    @_answer
    def tile(self, request: Request, query: Query) -> Response:
        """A map as PNG. A and B have one scale, their difference its own."""
        from layertap.view.site import chosen
        from layertap.view.tiles import Scale, picture

        one = chosen(self.session, query)
        maps, name = one.maps(), query.given.get("map", "a")
        if name not in maps:
            raise BadArgument(tr("view.no_map", name=name))
        plane = one.plane
        both = [plane.cut(values) for key, values in maps.items() if (key == "d") == (name == "d")]
        image = picture(plane.cut(maps[name]), Scale.of(*both), dark=bool(query.given.get("dark")))
        return Response(image, media_type="image/png")

    def _filtered(self, site_table: ComparedSites | RunSites, query: Query) -> list[int] | None:
        words, bad = query.given.get("q", "").lower().split(), bool(query.given.get("bad"))
        if not words and not bad:
            return None

        def find() -> list[int]:
            sites, states = site_table.sites(), site_table.states()
            return [
                place
                for place, (site, state) in enumerate(zip(sites, states, strict=True))
                if not (bad and state in ("identical", "noise", "finite"))
                and all(word in f"{site} {state}".lower() for word in words)
            ]

        version = tuple(side.version for side in self.session.sides)
        key = ("filter", query.a, query.b, site_table.step, query.token, tuple(words), bad, version)
        found: list[int] = self.session.cached(key, find)
        return found

    def static(self, request: Request) -> Response:
        known = STATIC.get(request.path_params["name"])
        if known is None:
            raise HTTPException(404)
        package, kind = known
        data = files(f"layertap.{package}").joinpath(f"assets/{request.path_params['name']}").read_bytes()
        return Response(data, media_type=kind)
