"""The zip archive of a `.pt` or `.pt2`, read and never run: no pickle is loaded, no library is opened."""

from __future__ import annotations

import io
import json
import os
import pickletools
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from layertap.errors import TargetError
from layertap.files import open_regular
from layertap.messages import tr

LARGEST = 1 << 30
"""Bytes of one member of text; a program of hundreds of layers has some tens of millions."""
_PICKLED = re.compile(r"data/(sample_inputs|weights|constants)/.*\.pt")
_CONFIGS = {
    "weights": re.compile(r"data/weights/.*_config\.json"),
    "constants": re.compile(r"data/constants/.*_config\.json"),
}
_OLD = re.compile(r"serialized_\w+\.(pt|json)")
"""The format before torch 2.8, which torch.export.load reads by pickle."""
_OPAQUE = "opaque_obj"
"""How torch.export names a constant that it saved with `pickle`."""
_SCRIPT_OBJECT = "custom_obj"
"""And one that TorchScript's own loader reads."""


class Archive:
    """The members of an archive, by name without the archive's own folder, as torch's own reader finds them."""

    def __init__(self, path: Path, name: str) -> None:
        self._name = name
        try:
            self._reader = torch._C.PyTorchFileReader(str(path))
            self.members: list[str] = self._reader.get_all_records()
            with open_regular(path) as file, zipfile.ZipFile(file) as archive:
                self._crcs = {one.filename.partition("/")[2]: one.CRC for one in archive.infolist()}
        except (OSError, RuntimeError, UnicodeDecodeError, zipfile.BadZipFile) as error:
            raise TargetError(tr("targets.archive_damaged", name=name)) from error

    def find(self, pattern: str) -> list[str]:
        """The members whose whole name matches."""
        return [member for member in self.members if re.fullmatch(pattern, member)]

    def read(self, member: str) -> bytes:
        """The bytes of a member."""
        try:
            size = self._reader.get_record_size(member)
            if size > LARGEST:
                raise TargetError(tr("targets.member_size", name=self._name, member=member, size=size, LARGEST=LARGEST))
            held: bytes = self._reader.get_record(member)
        except RuntimeError as error:
            raise TargetError(tr("targets.member_unreadable", name=self._name, member=member)) from error
        # torch's reader does not compare; after set_crc32_options(False) there is nothing to compare with.
        if self._crcs.get(member) and self._crcs[member] != zlib.crc32(held):
            raise TargetError(tr("targets.member_unreadable", name=self._name, member=member))
        return held

    def text(self, member: str) -> str:
        try:
            return self.read(member).decode()
        except UnicodeDecodeError as error:
            raise TargetError(tr("targets.member_not_text", name=self._name, member=member, error=error)) from error

    def json(self, member: str) -> Any:
        try:
            return json.loads(self.text(member))
        except (ValueError, RecursionError) as error:
            raise TargetError(tr("targets.member_not_json", name=self._name, member=member, error=error)) from error


def first_class(pickled: bytes) -> str:
    """The first class that a pickle names, from its opcodes alone.

    >>> import pickle, fractions
    >>> first_class(pickle.dumps(fractions.Fraction(1, 2), protocol=2))
    'fractions.Fraction'
    """
    try:
        for opcode, argument, _ in pickletools.genops(pickled):
            if opcode.name == "GLOBAL":
                return str(argument).replace(" ", ".")
    except Exception as error:
        raise TargetError(tr("targets.pickle_unreadable", error=error)) from error
    return ""


def refuse_pickles(archive: Archive, name: str) -> None:
    """Raises for a `.pt2` with members that `torch.export.load` would unpickle without restriction.

    It tries `weights_only=True` for some and falls back to a full pickle, which runs what the file asks for.
    """
    for member in _pickled(archive):
        own = member.rpartition("/")[2]
        if own.startswith(_OPAQUE) or _OLD.fullmatch(own):
            raise TargetError(_refused(name, member, tr("targets.not_torch_save")))
        load_tensors(archive, member, name)


def load_tensors(archive: Archive, member: str, name: str) -> Any:
    """What torch.save wrote into a member: tensors and plain containers, no other class."""
    held = archive.read(member)
    if not held:
        return None
    try:
        return torch.load(io.BytesIO(held), weights_only=True, map_location="cpu")
    except Exception as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        why = tr("targets.it_names", found=found[1]) if found else str(error).strip().partition("\n")[0]
        raise TargetError(_refused(name, member, why)) from error


def _refused(name: str, member: str, why: str) -> str:
    return tr("targets.pickle_refused", name=name, member=member, why=why)


def _pickled(archive: Archive) -> Iterator[str]:
    """All that torch.export.load would unpickle."""
    yield from (member for member in archive.members if _PICKLED.fullmatch(member) or _OLD.fullmatch(member))
    for kind, pattern in _CONFIGS.items():
        for config in (member for member in archive.members if pattern.fullmatch(member)):
            payloads = archive.json(config)
            entries = payloads.get("config") if isinstance(payloads, dict) else None
            for entry in entries.values() if isinstance(entries, dict) else ():
                own = str(entry.get("path_name")) if isinstance(entry, dict) else ""
                script = kind == "constants" and own.startswith(_SCRIPT_OBJECT)
                pickled = own and not script and (entry.get("use_pickle") or own.startswith(_OPAQUE))
                member = os.path.join(f"data/{kind}/", own)
                if pickled and member in archive.members:
                    yield member
