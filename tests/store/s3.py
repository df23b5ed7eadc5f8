"""An S3 server on this machine's loopback (moto), for tests."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

BUCKET = "bucket"
VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL")


class Server:
    """A server at a port of its own."""

    def __init__(self, log: Path) -> None:
        self.port = 0
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        code = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{self.port}'])"
        with open(self._log, "w") as log:  # each request is written there; a pipe would fill up
            self._process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], stdout=log, stderr=log)
        for _ in range(600):
            if found := re.search(r"Running on http://127\.0\.0\.1:(\d+)", self._log.read_text()):
                self.port = int(found[1])
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError(f"moto did not start: {self._log.read_text()}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def environment(self) -> dict[str, str]:
        return dict(zip(VARIABLES, ("test", "test", "us-east-1", f"http://127.0.0.1:{self.port}"), strict=True))


@contextlib.contextmanager
def running(log: Path) -> Iterator[Server]:
    server = Server(log)
    server.start()
    before = {name: os.environ.get(name) for name in VARIABLES}
    os.environ.update(server.environment)
    try:
        make_bucket()
        yield server
    finally:
        server.stop()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def make_bucket() -> None:
    from pyarrow import fs

    files, _ = fs.FileSystem.from_uri(f"s3://{BUCKET}/?allow_bucket_creation=true")
    for _ in range(50):
        with contextlib.suppress(OSError):
            files.create_dir(BUCKET)
            return
        time.sleep(0.1)
    raise RuntimeError("the S3 server does not answer")
