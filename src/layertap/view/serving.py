"""Starts the server: one socket on the loopback interface, in this process, until Ctrl-C."""

from __future__ import annotations

import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from layertap.errors import BadArgument, MissingExtra
from layertap.messages import tr

PORT = 7717
"""The port that is tried first when none is asked for."""
_TRIED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What one viewer shows: the options of `serve` about runs and models."""

    runs: Sequence[str]
    floors: Sequence[str]
    mapping: str | None
    tokenizer: str | None
    scanner: Any


def run(shown: Shown, *, port: int | None, browser: bool, started: Callable[[str], object]) -> None:
    """Serves until Ctrl-C; `started` is called with the address."""
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise MissingExtra(tr("view.missing", package=error.name)) from error
    from layertap.view.app import make_app
    from layertap.view.sides import Session

    scanner = shown.scanner
    if not shown.runs and scanner is None:
        raise BadArgument(tr("view.nothing"))
    with listening(port) as sock:
        session = Session(shown.runs, floors=shown.floors, mapping=shown.mapping, tokenizer=shown.tokenizer)
        token = secrets.token_urlsafe(24) if scanner is not None else ""
        address = f"http://127.0.0.1:{sock.getsockname()[1]}/"
        if scanner is not None:
            address += f"scanner?token={token}"
        app = make_app(session, scanner=scanner, token=token)
        config = uvicorn.Config(
            app,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=1,
        )
        started(address)
        if browser:
            threading.Timer(0.3, webbrowser.open, [address]).start()
        try:
            uvicorn.Server(config).run(sockets=[sock])
        except KeyboardInterrupt:  # uvicorn hands the signal on when it has ended
            return


def listening(port: int | None) -> socket.socket:
    """A socket on the loopback interface: at the port that is asked for, else at the first free one."""
    if port is not None and not 0 <= port <= 65535:
        raise BadArgument(tr("view.bad_port", port=port))
    wanted = [port] if port is not None else [*range(PORT, PORT + _TRIED), 0]
    for number in wanted:
        try:
            return socket.create_server(("127.0.0.1", number), backlog=64)
        except OSError:
            continue
    raise BadArgument(tr("view.port_taken", port=port))
