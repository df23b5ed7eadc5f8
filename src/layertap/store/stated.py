"""What a mapping says of the tensors that ranks hold parts of: `{"mesh": {"tp": 2}, "layers.*": {"dims": "t h[tp]"}}`.

    read_mapping(mapping)      a dict, or a YAML, JSON or TOML file -> where it is from, and its lines
    stated_layouts(mapping)    its mesh and its dims -> StatedLayouts, or None where it has none
    layouts.of(site)           the annotation of a site; .sharding(site, shape, rank) for a record

The pattern of a rule with dims has to match a site's whole name, without the number of the call.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from layertap.errors import BadArgument, MissingExtra
from layertap.files import parse_json, parse_toml, read_text, reason
from layertap.messages import tr
from layertap.result import Note
from layertap.site import Sharding, Site
from layertap.store.dims import Dims, Mesh

Mapped = Mapping[str, Any] | str | os.PathLike[str]

MESH = "mesh"
"""The line of a mapping that is no rule."""
PIPELINE = "pp"
"""The axis of a mesh that counts the stages of a pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedLayouts:
    """The mesh, and the annotations by pattern."""

    mesh: Mesh
    rules: tuple[tuple[re.Pattern[str], Dims], ...]
    _used: set[int] = field(default_factory=set)
    _known: dict[tuple[str, str, str], Dims | None] = field(default_factory=dict)

    def of(self, site: Site) -> Dims | None:
        """The annotation of a site, by the last rule that matches; None where nothing is said."""
        key = site.path, site.role, site.leaf
        if key not in self._known:
            text = str(Site(path=site.path, role=site.role, leaf=site.leaf))
            matching = [number for number, (pattern, _) in enumerate(self.rules) if pattern.fullmatch(text)]
            self._used.update(matching)
            self._known[key] = self.rules[matching[-1]][1] if matching else None
        return self._known[key]

    def sharding(self, site: Site, shape: tuple[int, ...], rank: int) -> Sharding | None:
        """What a record of a plain tensor says of it; a BadArgument where the annotation does not fit it."""
        dims = self.of(site)
        if dims is None:
            return None
        found = dims.sharding(shape, rank, site)
        if found is None:
            raise self.absent(rank)
        return found

    def absent(self, rank: int) -> BadArgument:
        """The error for a rank that is not in the mesh."""
        ranks = ", ".join(map(str, self.mesh.ranks))
        return BadArgument(tr("dims.not_in_mesh", rank=rank, mesh=self.mesh, ranks=ranks))

    def unused(self) -> list[Note]:
        """A line for each rule that has matched nothing."""
        return [
            Note("dims.unused", pattern=pattern.pattern)
            for number, (pattern, _) in enumerate(self.rules)
            if number not in self._used
        ]


def stated_layouts(mapping: Mapped | None) -> StatedLayouts | None:
    """The layouts that a mapping states; None where it has no mesh.

    >>> layouts = stated_layouts({"mesh": {"tp": 2}, r"layers.\\d+": {"dims": "t h[tp]"}})
    >>> layouts.sharding(Site(path="layers.3"), (4, 8), rank=1).offset
    (0, 8)
    """
    if mapping is None:
        return None
    where, lines = read_mapping(mapping)
    given = [value for name, value in lines.items() if is_mesh(name, value)]
    dims_texts = list(_annotations(lines))
    if not given:
        for pattern, _ in dims_texts:
            raise BadArgument(tr("dims.mesh_missing", where=where, pattern=pattern))
        return None
    mesh = Mesh.of(given[0])
    rules = []
    for pattern, text in dims_texts:
        try:
            rules.append((re.compile(pattern), Dims.parse(str(text), mesh)))
        except re.error as error:
            raise BadArgument(tr("align.mapping_regex", where=where, pattern=pattern, to="", error=error)) from None
        except BadArgument as error:
            raise BadArgument(tr("dims.in_rule", where=where, pattern=pattern, problem=error)) from None
    return StatedLayouts(mesh=mesh, rules=tuple(rules))


def is_mesh(name: str, value: Any) -> bool:
    """Whether a line of a mapping gives the mesh, and renames nothing."""
    return (
        name == MESH and not isinstance(value, str) and not (isinstance(value, Mapping) and {"to", "dims"} & {*value})
    )


def read_mapping(mapping: Mapped) -> tuple[str, Mapping[str, Any]]:
    """Where a mapping is from, in words, and its lines."""
    if isinstance(mapping, Mapping):
        return "mapping", mapping
    return str(mapping), _read_file(Path(mapping))


def _annotations(lines: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for pattern, value in lines.items():
        if isinstance(value, Mapping) and not is_mesh(pattern, value) and value.get("dims") is not None:
            yield str(pattern), value["dims"]


def _read_file(path: Path) -> Mapping[str, Any]:
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise BadArgument(tr("align.mapping_unreadable", path=path, reason=reason(error))) from None
    kind = path.suffix.lower()
    data: Any
    try:
        if kind in (".yaml", ".yml"):
            data = _yaml().safe_load(text)
        elif kind == ".toml":
            data = parse_toml(text)
        elif kind == ".json":
            data = parse_json(text)
        else:
            raise BadArgument(tr("align.mapping_suffix", path=path))
    except (BadArgument, MissingExtra):
        raise
    except Exception as error:  # noqa: BLE001  (yaml's errors have no class that is there without yaml)
        raise BadArgument(f"mapping {path}: {' '.join(str(error).split())}") from None
    if isinstance(data, Mapping) and set(data) == {"mapping"} and isinstance(data["mapping"], Mapping):
        data = data["mapping"]  # a TOML file likes to have a table
    if not isinstance(data, Mapping):
        raise BadArgument(tr("align.mapping_shape", path=path, name=type(data).__name__))
    return data


def _yaml() -> Any:
    try:
        return import_module("yaml")
    except ImportError:
        raise MissingExtra(tr("align.yaml_missing")) from None
