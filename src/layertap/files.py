"""Files that anyone may have written: opened only when they are regular, held to a bound before they are read.

Every reader of the package goes through these functions: a pipe would be waited on forever, a device never ends, and a
file of one megabyte can ask for gigabytes of memory.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import IO, Any

from layertap.errors import BadArgument, CorruptRun, LayertapError, MissingExtra
from layertap.messages import tr

MAX_TEXT = 64 << 20
"""A longer text (run.json, a configuration, a mapping) is refused: no tool writes such a file."""
MAX_UNPACKED = "LAYERTAP_MAX_UNPACKED"
"""The environment variable that raises the bound on what a file may take in memory beyond its own size."""
DEFAULT_UNPACKED = "512MiB"
RATIO = 16
"""Real data is not packed tighter than this; what is must stay below the bound."""
_BLOCK = 1 << 20
_VALUE = 128
"""Bytes that one JSON value takes in memory, about."""

PathLike = str | os.PathLike[str]


def open_regular(path: PathLike, buffering: int = -1) -> Any:
    """Opens a file to read; an OSError when it is a pipe, a device, a socket or a folder. Never waits."""
    # Without O_NONBLOCK opening a pipe waits for a writer; reading a regular file does not heed the flag.
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, tr("files.not_regular"), str(path))
        return os.fdopen(fd, "rb", buffering)
    except BaseException:
        os.close(fd)
        raise


def read_bytes(path: PathLike, limit: int = MAX_TEXT) -> bytes:
    """A whole file of at most `limit` bytes; a longer one is an OSError, and so is what is no regular file."""
    with open_regular(path) as file:
        found: bytes = file.read(limit + 1)
    if len(found) > limit:
        raise OSError(errno.EFBIG, tr("files.too_large", limit=limit), str(path))
    return found


def read_text(path: PathLike, limit: int = MAX_TEXT) -> str:
    """A whole text file; an OSError when it cannot be read, a ValueError when it is not UTF-8."""
    return read_bytes(path, limit).decode("utf-8")


def parse_json(text: str | bytes, **options: Any) -> Any:
    """`json.loads` with bounds: a ValueError for what is damaged, nested too deeply, or would fill the memory."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    values = sum(map(data.count, (b",", b"[", b"{")))
    if values * _VALUE > unpacked_limit():
        raise ValueError(tr("files.values", value=values, bound=_bound()))
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError(tr("files.nested")) from None


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text; a ValueError for what is none."""
    for name in ("tomllib", "tomli"):
        try:
            found: dict[str, Any] = import_module(name).loads(text)
        except ImportError:
            continue
        return found
    raise MissingExtra(tr("files.needs_tomli"))


def too_large(unpacked: int, stored: int) -> str:
    """Why something of `stored` bytes is not unpacked to `unpacked` bytes in memory; empty when it may be."""
    if unpacked <= max(unpacked_limit(), RATIO * stored):
        return ""
    return tr(
        "files.unpacked",
        stored=stored,
        unpacked=unpacked,
        bound=_bound(),
        MAX_UNPACKED=MAX_UNPACKED,
        round=_round(unpacked),
    )


def check_unpacked(name: str, unpacked: int, stored: int) -> None:
    """A CorruptRun for what would take far more memory than it has bytes on disk, which says how to allow it."""
    if why := too_large(unpacked, stored):
        raise CorruptRun(f"{name}: {why}")


def check_archive(path: PathLike, name: str) -> None:
    """Refuses a zip archive (.npz, .pt) whose members say that they are far larger than the archive."""
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        size = os.fstat(file.fileno()).st_size
        check_unpacked(name, sum(member.file_size for member in archive.infolist()), size)


def check_crcs(file: PathLike | IO[bytes]) -> None:
    """Reads every member of a zip archive, which raises where one does not fit its checksum.

    torch reads the members of its archives without comparing, so a flipped bit passes.
    """
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if not any(member.CRC for member in members):
            return  # written after torch.serialization.set_crc32_options(False)
        for member in members:
            with archive.open(member) as held:
                while held.read(_BLOCK):
                    pass


def unpacked_limit() -> int:
    """The bound in bytes; `LAYERTAP_MAX_UNPACKED` sets it."""
    try:
        return parse_bytes(os.environ.get(MAX_UNPACKED) or DEFAULT_UNPACKED)
    except BadArgument as error:  # of no ValueError's kind, which readers take for damage
        raise LayertapError(f"{MAX_UNPACKED}: {error}") from None


@contextmanager
def reading(name: str, what: str = "", error: type[LayertapError] = CorruptRun) -> Iterator[None]:
    """Whatever a foreign library raises while it reads `name` becomes one clear error; layertap's own pass unchanged.

    Damaged files make numpy, torch, pyarrow, zipfile and zlib raise dozens of kinds, RecursionError and MemoryError
    among them.
    """
    try:
        yield
    except LayertapError:
        raise
    except Exception as caught:  # noqa: BLE001 - the boundary: no list of kinds is ever complete
        raise error(f"{name}: damaged{f', or {what}' if what else ''} ({reason(caught)})") from None


def attempt(work: Callable[[], Any], name: str, what: str = "", error: type[LayertapError] = CorruptRun) -> Any:
    """What `work()` gives, inside `reading`."""
    with reading(name, what, error):
        return work()


def reason(error: BaseException, length: int = 200) -> str:
    """The first line of an error, shortened; its kind where it has no text. An error of layertap's own whole."""
    if isinstance(error, LayertapError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    # torch's own text advises weights_only=False, which is how such a file gets to run its code.
    return lines[0][:length] if lines and "weights_only" not in lines[0] else type(error).__name__


def parse_bytes(size: int | str) -> int:
    """Reads a number of bytes.

    >>> parse_bytes("2GiB") == 2 * 1024**3
    True
    """
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    units = {"": 1, "B": 1}
    for power, letter in enumerate("KMGT", start=1):
        units |= {f"{letter}B": 1000**power, f"{letter}iB": 1024**power, letter: 1024**power}
    if isinstance(size, str):
        number = size.strip().rstrip("BKMGTi ")
        unit = size.strip()[len(number) :].strip()
        try:
            value = int(float(number) * units[unit])
        except (ValueError, KeyError, OverflowError):
            value = 0
        if value > 0:
            return value
    raise BadArgument(tr("files.size", size=size))


def format_bytes(size: float) -> str:
    """A number of bytes in the binary unit that fits.

    >>> format_bytes(196608), format_bytes(12), format_bytes(12.4 * 2**20)
    ('192.0 KiB', '12 B', '12.4 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _bound() -> str:
    return tr("files.bound", get=os.environ.get(MAX_UNPACKED) or DEFAULT_UNPACKED, MAX_UNPACKED=MAX_UNPACKED)


def _round(nbytes: int) -> str:
    return f"{-(-nbytes // (1 << 30))}GiB"
