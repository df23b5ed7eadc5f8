"""Which output of a compiled artefact is what: the model's own output, and the tensor of each tap.

A baked model returns a flat tuple, since that is what every compiler hands out. Its layout is JSON, saved inside the
artefact or beside it, so that a process without torch and without the model's source can take the tuple apart.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from layertap.errors import BadArgument, CorruptRun, NewerFormat, NotARun
from layertap.files import check_unpacked, parse_json, read_text, reading
from layertap.measure import portable
from layertap.messages import tr
from layertap.site import Site

NAME = "layertap_layout.json"
"""The extra file's name inside an artefact; beside one it is ARTEFACT.layout.json."""
VERSION = 1
_IMPORTED = re.compile(r"transformers\.(modeling_outputs|models\.\w+\.modeling_\w+)")
"""Modules that are imported to give an output its own type again; a class of any other must be loaded already."""
_OUTPUT = ("transformers.utils.generic", "ModelOutput.__post_init__")
"""The one further step of a dataclass's constructor that is known to do no more than sort its fields."""

Node = list[Any]
"""["tensor", index] · ["value", v] · ["tuple", nodes] · ["list", nodes] · ["dict", [[key, node], …]] · ["class", name,
[[field, node], …]] · ["fields", name, [[field, node], …]] (of a class that cannot be made from its fields) · ["lost",
name] (nothing in it could be handed out)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TapPlace:
    """One tap among the outputs."""

    site: str
    kind: str
    """The class of the module."""
    level: str
    """`tensor`, `stats`, or the name of a reduction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How to read what a tapped artefact returns.

    >>> layout = Layout(model="Net", own=1, output=["dict", [["loss", ["value", None]], ["logits", ["tensor", 0]]]],
    ...                 taps=(TapPlace(site="layers.0", kind="Linear", level="tensor"),))
    >>> layout.split(("the logits", "a tensor"))
    ({'loss': None, 'logits': 'the logits'}, {Site('layers.0'): 'a tensor'})
    """

    model: str
    """The class of the model."""
    own: int
    """How many tensors the model's own output has; they come first."""
    output: Node
    taps: tuple[TapPlace, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Site → why it is no tensor: `None`, `int`, …"""
    silent: Mapping[str, str] = field(default_factory=dict)
    """Requested module and role → why nothing came."""

    @property
    def sites(self) -> tuple[Site, ...]:
        return tuple(Site.parse(tap.site) for tap in self.taps)

    def split(self, raw: Any) -> tuple[Any, dict[Site, Any]]:
        """The model's own output, and site → tensor (`Statistics` where only those were baked in)."""
        flat = list(raw.values()) if isinstance(raw, Mapping) else list(raw) if _several(raw) else [raw]
        if len(flat) != self.own + len(self.taps):
            raise BadArgument(
                tr("store.layout_count", model=self.model, own=self.own, count=len(self.taps), count2=len(flat))
            )
        taps = {
            Site.parse(tap.site): portable.read(_numbers(value)) if tap.level == "stats" else value
            for tap, value in zip(self.taps, flat[self.own :], strict=True)
        }
        return _built(self.output, flat), taps

    def dumps(self) -> str:
        """As JSON, to be put into an artefact: `torch.jit.save(…, _extra_files={NAME: layout.dumps()})`."""
        return json.dumps({"format": "layertap-layout", "version": VERSION, **asdict(self)}, indent=1)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes `ARTEFACT.layout.json` beside an artefact."""
        file = _beside(Path(path))
        file.write_text(self.dumps(), encoding="utf-8")
        return file

    @classmethod
    def loads(cls, text: str, origin: str | None = None) -> Layout:
        origin = tr("store.this_text") if origin is None else origin
        try:
            data = parse_json(text)
        except ValueError as error:
            raise CorruptRun(tr("store.layout_json", origin=origin, error=error)) from error
        if not isinstance(data, dict) or data.pop("format", "") != "layertap-layout":
            raise NotARun(tr("store.layout_foreign", origin=origin))
        version = data.pop("version", None)
        if isinstance(version, int) and version > VERSION:
            raise NewerFormat(tr("store.layout_version", origin=origin, version=version, version2=VERSION))
        try:
            return cls(**{**data, "taps": tuple(TapPlace(**tap) for tap in data["taps"])})
        except (KeyError, TypeError) as error:
            raise CorruptRun(tr("store.layout_damaged", origin=origin, error=error)) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Layout:
        """Reads the layout inside an artefact (TorchScript, `.pt2`), beside it, or the JSON file itself."""
        path = Path(path)
        beside = path if path.name.endswith(".layout.json") else _beside(path)
        if beside.is_file():
            with reading(str(beside), tr("store.not_layout")):
                return cls.loads(read_text(beside), str(beside))
        if path.is_file():
            with reading(str(path), tr("store.not_archive")):
                found = _inside(path)
            if found is not None:
                return cls.loads(*found)
        raise NotARun(tr("store.no_layout", path=path, name=beside.name, name2=path.name))


def _inside(path: Path) -> tuple[str, str] | None:
    """The layout's text in an archive, and where it stands."""
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.filename.rpartition("/")[2] == NAME:
                where = f"{member.filename} in {path}"
                check_unpacked(where, member.file_size, member.compress_size)
                return archive.read(member).decode(), where
    return None


class Fields(SimpleNamespace):
    """An output whose class is not at hand, or cannot be made from its fields: `output.logits`, `output["logits"]`.

    No dictionary: a cache has fields called `keys` and `values`.
    """

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]


def _built(node: Node, flat: Sequence[Any]) -> Any:
    kind, *rest = node
    if kind == "tensor":
        return flat[rest[0]]
    if kind == "value":
        return rest[0]
    if kind in ("tuple", "list"):
        items = [_built(item, flat) for item in rest[0]]
        return tuple(items) if kind == "tuple" else items
    if kind == "dict":
        return {key: _built(item, flat) for key, item in rest[0]}
    if kind == "lost":
        return None
    fields = {name: _built(item, flat) for name, item in rest[1]}
    return _instance(rest[0], fields) if kind == "class" else Fields(**fields)


def _instance(name: str, fields: dict[str, Any]) -> Any:
    cls = _class(name)
    if cls is None or not _only_holds(cls, fields):
        return Fields(**fields)
    if issubclass(cls, tuple):
        return cls(*fields.values())
    try:
        return cls(**fields)
    except TypeError:  # its constructor asks for something else than its fields
        return Fields(**fields)


def _only_holds(cls: type, fields: Mapping[str, Any]) -> bool:
    """Whether making an instance does nothing else than keep the fields: namedtuples, and plain dataclasses.

    A layout is a file, and may name any class: `subprocess:Popen` would be a program to run. So the constructor must be
    the one that Python made from the fields.
    """
    if issubclass(cls, tuple):
        made = [vars(base) for base in cls.__mro__ if base not in (tuple, object)]
        plain = [members for members in made if "__new__" in members or "__init__" in members]
        return (
            len(getattr(cls, "_fields", ())) == len(fields)
            and len(plain) == 1
            and "__init__" not in plain[0]
            and _generated(cls.__new__)
        )
    if not dataclasses.is_dataclass(cls) or not _generated(cls.__init__) or type(cls) is not type:
        return False
    after: Any = getattr(cls, "__post_init__", None)
    known = after is None or (after.__module__, after.__qualname__) == _OUTPUT
    return known and cls.__new__ in (object.__new__, dict.__new__, OrderedDict.__new__)


def _generated(function: Any) -> bool:
    """Whether Python wrote it itself, as it does for dataclasses and namedtuples."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename == "<string>"


def _class(name: str) -> type | None:
    module, _, path = name.partition(":")
    # A process that does without torch is not made to import it for the sake of a name.
    if module not in sys.modules and _IMPORTED.fullmatch(module) and "torch" in sys.modules:
        try:
            importlib.import_module(module)
        except ImportError:
            return None
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = vars(found).get(part) if isinstance(found, (type, ModuleType)) else None
    return found if isinstance(found, type) else None


def _several(raw: Any) -> bool:
    return isinstance(raw, Sequence) and not isinstance(raw, (str, bytes))


def _numbers(value: Any) -> list[float]:
    flat = value.reshape(-1).tolist() if hasattr(value, "reshape") else list(value)
    return [float(number) for number in flat]


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.layout.json")
