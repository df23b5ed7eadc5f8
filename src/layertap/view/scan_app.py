"""The scanner's addresses. `/scan` runs the model, by POST with the token; all others read the last run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from layertap.errors import BadArgument, LayertapError
from layertap.messages import printable, tr
from layertap.result import jsonable
from layertap.view.query import Query
from layertap.view.scan_page import MEASURES, limit_of, plane_of, scan_dict, scan_page
from layertap.view.sides import Session
from layertap.view.tiles import Scale, picture

if TYPE_CHECKING:
    from layertap.view.scan import Scanner

RUN = "/scan"
MOST = 1 << 18
"""Bytes that a request may have."""


def scan_routes(session: Session, scanner: Scanner) -> list[Route]:
    """Addresses of the scanner."""

    def query_of(request: Request) -> Query:
        return Query.of(request.query_params, len(session.sides))

    def answering(work: Callable[[Request], Response]) -> Callable[[Request], Response]:
        def answered(request: Request) -> Response:
            try:
                return work(request)
            except LayertapError as error:
                return PlainTextResponse(str(error), 400)

        return answered

    def page(request: Request) -> Response:
        return HTMLResponse(scan_page(session, scanner, query_of(request)))

    def values(request: Request) -> Response:
        found = scan_dict(scanner.scan, query_of(request).number("t", -1) if "t" in request.query_params else None)
        return JSONResponse(jsonable({**found, "doing": scanner.doing}))

    def tile(request: Request) -> Response:
        query, scan = query_of(request), scanner.scan
        kind, side = query.given.get("kind", "blocks"), query.given.get("map", "a")
        measure = query.given.get("measure", "activation")
        if scan is None or kind not in ("blocks", "layers") or side not in ("a", "b", "d") or measure not in MEASURES:
            raise BadArgument(tr("view.no_map", name=side))
        token = query.number("t", 0)
        shown = plane_of(scan, kind, side, measure, token)
        both = [shown] if side == "d" else [plane_of(scan, kind, one, measure, token) for one in ("a", "b")]
        image = picture(shown, Scale.of(*both), dark=bool(query.given.get("dark")))
        return Response(image, media_type="image/png", headers={"x-limit": limit_of(shown)})

    async def run(request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MOST:
                return PlainTextResponse(tr("scan.bad_request"), 413)
        try:
            asked = _asked(body)
            scan = await run_in_threadpool(lambda: scanner.run(**asked))
        except LayertapError as error:
            return JSONResponse({"error": str(error)}, 400)
        except Exception as error:  # noqa: BLE001  the model's own code; the page shows what it raised
            return JSONResponse({"error": printable(f"{type(error).__name__}: {error}")}, 500)
        return JSONResponse(jsonable(scan_dict(scan, None)))

    return [
        Route("/scanner", answering(page)),
        Route("/scanner.json", answering(values)),
        Route("/scan.png", answering(tile)),
        Route(RUN, run, methods=["POST"]),
    ]


def _asked(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BadArgument(tr("scan.bad_request"))
    prompt, ids, skip = found.get("prompt", ""), found.get("ids", []), found.get("skip", [])
    good = isinstance(prompt, str) and isinstance(ids, list) and isinstance(skip, list)
    if not good or not all(type(one) is int and abs(one) < 1 << 60 for one in ids):
        raise BadArgument(tr("scan.bad_request"))
    if not all(isinstance(one, str) for one in skip):
        raise BadArgument(tr("scan.bad_request"))
    return {"prompt": prompt, "ids": ids, "skipped": skip}
