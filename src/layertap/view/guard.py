"""What the viewer answers: requests from this machine's own browser, for its own pages, that only read.

Any page that a browser shows may send requests to 127.0.0.1. So the `Host` must be ours (a foreign name that resolves
to this machine is refused), other origins get nothing, only GET and HEAD are known, and what runs something carries a
token.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from layertap.messages import tr

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

NAMES = ("127.0.0.1", "localhost", "[::1]")
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}


class Guard:
    """Stands before the application. `token` opens the paths below `guarded`, by POST alone."""

    def __init__(self, app: App, *, token: str = "", guarded: tuple[str, ...] = ()) -> None:
        self._app = app
        self._token = token
        self._guarded = guarded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        refused = self._refused(scope)
        if refused is not None:
            status, why = refused
            headers = {**HEADERS, "content-type": "text/plain; charset=utf-8"}
            if status == 405:
                headers["allow"] = "GET, HEAD"
            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": status, "headers": raw})
            await send({"type": "http.response.body", "body": why.encode()})
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name for name, _ in message["headers"]}
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in more if pair[0] not in there)]
            await send(message)

        await self._app(scope, receive, answer)

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        hosts = headers.get("host", [])
        if len(hosts) != 1 or not is_ours(hosts[0], scope):
            return 421, tr("view.host_refused")
        if any(origin != f"http://{hosts[0]}" for origin in headers.get("origin", [])):
            return 403, tr("view.origin_refused")
        site = headers.get("sec-fetch-site", ["none"])[0]
        opened = headers.get("sec-fetch-mode", [""])[0] == "navigate" and (
            headers.get("sec-fetch-dest", [""])[0] == "document"
        )
        if site not in ("none", "same-origin") and not (opened and scope["method"] == "GET"):
            return 403, tr("view.origin_refused")
        if scope["method"] in ("GET", "HEAD"):
            return None
        if scope["method"] != "POST" or scope["path"] not in self._guarded:
            return 405, tr("view.method_refused")
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if not self._token or not hmac.compare_digest(given.encode(), self._token.encode()):
            return 403, tr("view.token_refused")
        return None


def is_ours(host: str, scope: Scope) -> bool:
    """Whether a `Host` header names this server.

    >>> is_ours("localhost:8000", {"server": ("127.0.0.1", 8000)}), is_ours("evil.test:8000", {"server": None})
    (True, False)
    """
    try:
        parts = urlsplit(f"//{host}")
        port = parts.port
    except ValueError:
        return False
    if parts.netloc != host or parts.path or "@" in host:
        return False
    name = host.rsplit(":", 1)[0] if port is not None else host
    server = scope.get("server")
    return name.lower() in NAMES and (server is None or port in (server[1], *([None] if server[1] == 80 else [])))
