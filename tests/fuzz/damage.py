"""Ways to damage a file, each from a seeded generator: as disks and networks do it, and as people do who mean harm."""

from __future__ import annotations

import json
import random
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

HOSTILE: list[Any] = [
    *(None, True, -1, 0, 1e308, 2**63, -(2**70), "", "\x1b[2J", "\u202e", "../../etc/passwd", "x" * 5000, "\ud800"),
    *([], {}, [[]] * 3, {"a": {"b": []}}, [None], "NaN", "layers.0:output@-1", ":::@@", "(a+)+$", r"\9"),
]


def damage(path: Path, rng: random.Random) -> str:
    """Damages the file in one way; gives the way's name."""
    raw = path.read_bytes()
    ways = [flip, flip, cut, zeros, insert, repeat, swap, rubbish]
    if path.suffix == ".json" or path.name.endswith(".layertap"):
        ways += [replaced] * 8
    if zipfile.is_zipfile(path):
        ways += [repacked] * 4
    way = rng.choice(ways)
    path.write_bytes(way(bytearray(raw), rng))
    return way.__name__


def flip(raw: bytearray, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 20))):
        if raw:
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return bytes(raw)


def cut(raw: bytearray, rng: random.Random) -> bytes:
    return bytes(raw[: rng.randrange(len(raw) + 1)])


def zeros(raw: bytearray, rng: random.Random) -> bytes:
    begin, size = rng.randrange(len(raw) + 1), rng.choice((1, 8, 64, 4096))
    raw[begin : begin + size] = bytes(len(raw[begin : begin + size]))
    return bytes(raw)


def insert(raw: bytearray, rng: random.Random) -> bytes:
    begin = rng.randrange(len(raw) + 1)
    raw[begin:begin] = rng.randbytes(rng.choice((1, 7, 100)))
    return bytes(raw)


def repeat(raw: bytearray, rng: random.Random) -> bytes:
    begin = rng.randrange(len(raw) + 1)
    raw[begin:begin] = raw[begin : begin + rng.choice((1, 16, 500))]
    return bytes(raw)


def swap(raw: bytearray, rng: random.Random) -> bytes:
    a, b = sorted(rng.randrange(len(raw) + 1) for _ in range(2))
    return bytes(raw[b:] + raw[a:b] + raw[:a])


def rubbish(raw: bytearray, rng: random.Random) -> bytes:
    return rng.choice((b"", b"\0" * 100, rng.randbytes(300), b"PK\5\6" + bytes(18), b"[" * 3000, b"{}", b"null"))


def replaced(raw: bytearray, rng: random.Random) -> bytes:
    """Some value somewhere in a JSON file (or in one of its lines) becomes another."""
    lines = bytes(raw).split(b"\n")
    whole = len([line for line in lines if line.strip()]) == 1 or lines[0] in (b"{", b"[")
    number = 0 if whole else rng.randrange(len(lines))
    try:
        value = json.loads(raw if whole else lines[number])
    except ValueError:
        return bytes(raw)
    changed = json.dumps(_changed(value, rng)).encode()
    return changed if whole else b"\n".join([*lines[:number], changed, *lines[number + 1 :]])


def _changed(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {name: item for name, item in value.items() if name != key}
        return {**value, key: _changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        return [*value[:at], _changed(value[at], rng), *value[at + 1 :]]
    return rng.choice(HOSTILE)


def repacked(raw: bytearray, rng: random.Random) -> bytes:
    """One member of an archive is damaged, dropped or renamed, and the archive is right again, CRCs and all."""
    out = BytesIO()
    with zipfile.ZipFile(BytesIO(bytes(raw))) as old, zipfile.ZipFile(out, "w") as new:
        chosen = rng.choice(old.namelist())
        for name in old.namelist():
            data = old.read(name)
            if name == chosen:
                way = rng.randrange(4)
                if way == 0:
                    continue
                data = data if way == 1 else rng.choice((flip, cut, zeros, insert))(bytearray(data), rng)
                name = f"../{name}" if way == 1 else name
            new.writestr(name, data)
    return out.getvalue()
