"""A folder in object storage (`s3://bucket/runs/a`), through `pyarrow.fs`: names, sizes, objects put and read.

Object storage has no rename, and needs none here: an object is there whole or not at all, so one PUT is the commit.
`pyarrow.fs` cannot send `If-None-Match`; the name of every shard holds the time and 32 random bits of its session, so
no two writers put the same one, and `put_new` looks before it puts.

Credentials and the address of the server come from where pyarrow takes them: the environment (`AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT_URL`), profiles, the machine's role, or the URL's own query.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from layertap.durable import replacing
from layertap.errors import BadArgument, RunError
from layertap.files import reason
from layertap.messages import tr
from layertap.store.dtype import Bytes

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss")
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://.+", re.DOTALL)


def is_url(path: object) -> bool:
    """Whether this names a folder in object storage, and not one of this machine.

    >>> is_url("s3://bucket/runs/a"), is_url("runs/a")
    (True, False)
    """
    return isinstance(path, str) and _URL.fullmatch(path) is not None


def on_this_machine(path: str | os.PathLike[str], what: str) -> Path:
    """The path, which `what` needs on a file system; a BadArgument for a URL."""
    if is_url(path):
        raise BadArgument(tr("storage.local_only", path=path, what=what))
    return Path(path)


class Storage:
    """One folder of an object store. Its errors are RunErrors that name the URL."""

    def __init__(self, url: str) -> None:
        from pyarrow import fs

        self.url = url.partition("?")[0].rstrip("/")
        scheme = url.partition("://")[0]
        if scheme not in SCHEMES:
            raise BadArgument(tr("storage.scheme", url=self.url, schemes=", ".join(SCHEMES)))
        with self._telling("storage.unreachable"):
            self._files, root = fs.FileSystem.from_uri(url)
        self._root = root.rstrip("/")

    def sizes(self, folder: str = "") -> dict[str, int]:
        """The objects directly below a folder: name → bytes."""
        from pyarrow import fs

        below = f"{self._root}/{folder}".rstrip("/")
        with self._telling("storage.unreachable"):
            found = self._files.get_file_info(fs.FileSelector(below, allow_not_found=True))
        return {item.base_name: item.size for item in found if item.type == fs.FileType.File}

    def put(self, file: Path, name: str) -> None:
        """Puts a file, in place of an older object of that name; it is there when this returns."""
        with self._telling("storage.not_put", name=name):
            data = file.read_bytes() if file.stat().st_size < _WHOLE else None
            with self._files.open_output_stream(f"{self._root}/{name}", compression=None) as stream:
                if data is not None:
                    stream.write(data)
                else:
                    with file.open("rb") as source:
                        while block := source.read(_BLOCK):
                            stream.write(block)
            # A stream that met an error may still have been closed as if it were whole.
            there = self._files.get_file_info(f"{self._root}/{name}").size
            if there != file.stat().st_size:
                raise OSError(tr("storage.short", there=there, expected=file.stat().st_size))

    def put_new(self, file: Path, name: str) -> None:
        """Puts a file that only this process may put: an object of that name and another size is an error."""
        folder, _, base = name.rpartition("/")
        there = self.sizes(folder).get(base)
        if there is not None and there != file.stat().st_size:
            raise RunError(tr("storage.taken", name=f"{self.url}/{name}"))
        self.put(file, name)

    def get(self, name: str, file: Path) -> None:
        """Copies an object into a file, which is there whole or not at all."""
        with self._telling("storage.not_read", name=name):
            source = self._files.open_input_stream(f"{self._root}/{name}", compression=None)
            with source, replacing(file) as target:
                while block := source.read(_BLOCK):
                    target.write(block)

    def read(self, name: str, begin: int, end: int) -> Bytes:
        """Some bytes of an object; fewer where it ends before."""
        raw = np.empty(end - begin, np.uint8)
        with (
            self._telling("storage.not_read", name=name),
            self._files.open_input_file(f"{self._root}/{name}") as source,
        ):
            source.seek(begin)
            count = source.readinto(raw.data) if len(raw) else 0
        return raw[:count]

    def read_into(self, name: str, begin: int, end: int, target: IO[bytes]) -> None:
        """Copies some bytes of an object into a file, block by block; fewer where it ends before."""
        with (
            self._telling("storage.not_read", name=name),
            self._files.open_input_file(f"{self._root}/{name}") as source,
        ):
            source.seek(begin)
            while begin < end and (block := source.read(min(_BLOCK, end - begin))):
                target.write(block)
                begin += len(block)

    def delete(self, name: str) -> None:
        """Deletes an object."""
        with self._telling("storage.not_deleted", name=name):
            self._files.delete_file(f"{self._root}/{name}")

    @contextmanager
    def _telling(self, code: str, **values: Any) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, NotImplementedError) as error:
            if isinstance(error, (RunError, BadArgument)):
                raise
            raise RunError(tr(code, url=self.url, why=reason(error, 300), **values)) from None


_BLOCK = 8 << 20
_WHOLE = 64 << 20
"""Smaller files are put from memory, in one request."""
