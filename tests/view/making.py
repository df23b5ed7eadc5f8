"""Runs of a small decoder, and a viewer in a thread."""

import http.client
import json
import threading
from contextlib import contextmanager

import torch
import uvicorn

from layertap.capture import record
from layertap.view.app import make_app
from layertap.view.serving import listening
from layertap.view.sides import Session

SITES = ["embed", "blocks.*", "blocks.*.*", "norm", "head"]


def take(model, path, ids, **options):
    with record(model, path, **{"sites": SITES, "keep": "tensor", "exists": "replace", **options}):
        model(ids)
    return str(path)


def ids():
    return torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(1))


class Viewer:
    def __init__(self, port, session):
        self.port, self.session = port, session
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, path, method="GET", **headers):
        """Status, headers and body; the path goes out as it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": f"127.0.0.1:{self.port}", **headers}.items():
            if value is not None:
                connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        try:
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def json(self, path):
        status, _, body = self.ask(path)
        assert status == 200, body[:500]
        return json.loads(body)


@contextmanager
def viewer(*sources, scanner=None, token="", **options):
    with listening(0) as sock:
        session = Session(sources, **options)
        app = make_app(session, scanner=scanner, token=token)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        yield Viewer(sock.getsockname()[1], session)
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
