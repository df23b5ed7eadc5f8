"""The plan that patterns become: frozen, printable, and quick to ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from layertap.files import format_bytes
from layertap.messages import tr
from layertap.select.collapse import collapse
from layertap.select.pattern import leaf_regex
from layertap.site import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One module, and what is wanted of it."""

    path: str
    kind: str
    """The name of its class."""
    roles: tuple[str, ...]
    """In the order of `layertap.site.ROLES`."""
    leaves: tuple[tuple[str, str], ...] = ()
    """(role, glob): of this role only such leaves; a role that is not here is wanted whole."""
    without: tuple[tuple[str, str], ...] = ()
    """(role, glob): of this role not such leaves."""
    aliases: tuple[str, ...] = ()
    """Further paths of the same module."""

    def wants(self, role: str, leaf: str = "") -> bool:
        if role not in self.roles:
            return False
        only = [glob for of, glob in self.leaves if of == role]
        never = [glob for of, glob in self.without if of == role]
        return (not only or _matches(leaf, only)) and not _matches(leaf, never)

    @property
    def wanted(self) -> str:
        """As a person reads it: `input.hidden_states, output but not .1`."""
        return ", ".join(self._of_role(role) for role in self.roles)

    def __str__(self) -> str:
        return f"{self.path or repr(self.path)}  {self.kind}  {self.wanted}"

    def _of_role(self, role: str) -> str:
        only = [f"{role}.{glob}" for of, glob in self.leaves if of == role] or [role]
        never = [f".{glob}" for of, glob in self.without if of == role]
        return ", ".join(only) + (tr("select.but_not", never=" or ".join(never)) if never else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which modules, roles and leaves are wanted, in the order of `named_modules()`.

    >>> from torch import nn
    >>> from layertap.select import select
    >>> plan = select(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), ["type:Linear", "1:input"])
    >>> print(plan)
    3 of 4 modules of Sequential
    [0,2]  Linear  output
    1      ReLU    input
    >>> plan.wants("1", "output")
    False
    >>> print(plan.with_bytes({"0": 256, "2": 64}))
    3 of 4 modules of Sequential
    [0,2]  Linear  output  320 B
    1      ReLU    input       ?
    total                  320 B and what 1 module will add
    """

    choices: tuple[Choice, ...]
    model: str
    """The name of the model's class."""
    modules: int
    """How many modules the model has."""
    sizes: tuple[tuple[str, int], ...] = ()
    """(path, bytes of one step), where known."""
    _by_path: Mapping[str, Choice] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_path = {path: choice for choice in self.choices for path in (*choice.aliases, choice.path)}
        object.__setattr__(self, "_by_path", by_path)

    def wants(self, path: str, role: str = "output", leaf: str = "") -> bool:
        choice = self._by_path.get(path)
        return choice is not None and choice.wants(role, leaf)

    def get(self, path: str) -> Choice | None:
        """The choice for a module, by any of its paths."""
        return self._by_path.get(path)

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(choice.path for choice in self.choices)

    @property
    def bytes(self) -> int:
        """What one step keeps, as far as it is known."""
        return sum(size for _, size in self.sizes)

    def with_bytes(self, sizes: Mapping[str, int] | Mapping[Site, int]) -> Selection:
        """The same plan with the bytes that a dry run found at each site; sites that are not wanted are left out."""
        known: dict[str, int] = {}
        for text, size in sizes.items():
            site = Site.parse(str(text))
            if self.wants(site.path, site.role, site.leaf):
                path = self._by_path[site.path].path
                known[path] = known.get(path, 0) + size
        return replace(self, sizes=tuple((path, known[path]) for path in self.paths if path in known))

    def __len__(self) -> int:
        return len(self.choices)

    def __iter__(self) -> Iterator[Choice]:
        return iter(self.choices)

    def __contains__(self, path: object) -> bool:
        return path in self._by_path

    def __str__(self) -> str:
        sizes = dict(self.sizes)
        alike: dict[tuple[str, str], list[str]] = {}
        for choice in self.choices:
            alike.setdefault((choice.kind, choice.wanted), []).append(choice.path)
        rows: list[tuple[int, list[str]]] = []
        place = {path: number for number, path in enumerate(self.paths)}
        for (kind, wanted), paths in alike.items():
            for text, members in collapse(paths).items():
                size = _size([sizes.get(path) for path in members])
                aliases = [alias for path in members for alias in self._by_path[path].aliases]
                also = tr("select.also", value=", ".join(collapse(aliases))) if aliases else ""
                rows.append((place[members[0]], [text or '""', kind, wanted, size if sizes else "", also]))
        table = [row for _, row in sorted(rows, key=lambda row: row[0])]
        if sizes:
            table.append(
                [tr("select.total"), "", "", format_bytes(self.bytes), _unknown(len(self.choices) - len(sizes))]
            )
        head = tr("select.count_of", count=len(self.choices), count2=_modules(self.modules), model=self.model)
        return "\n".join([head, *_aligned(table)])


def _size(sizes: list[int | None]) -> str:
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return f"{format_bytes(sum(known))} + ?" if known else "?"
    return format_bytes(sum(known))


def _unknown(count: int) -> str:
    return tr("select.will_add", count=_modules(count)) if count else ""


def _modules(count: int) -> str:
    return tr("select.module" if count == 1 else "select.modules", count=count)


def _aligned(table: list[list[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = [
            cell.rjust(width) if place == 3 else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            if width
        ]
        # One space less before the remark, which continues the size.
        lines.append("  ".join(cells[:4]) + ("".join(f" {cell}" for cell in cells[4:])))
    return [line.rstrip() for line in lines]


def _matches(leaf: str, globs: list[str]) -> bool:
    return any(leaf_regex(glob).fullmatch(leaf) for glob in globs)
