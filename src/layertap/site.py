"""The nouns: where a tensor comes from, what is known of it, and what a capture really did.

Nothing here imports torch or numpy: a laptop that reads a cluster's run needs only these.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from itertools import zip_longest
from typing import Any, TypeVar

from layertap.messages import tr
from layertap.result import Note, Result, codes, note_from, with_codes

ROLES = ("input", "output", "grad_input", "grad_output", "param", "param_grad")
"""What a module can be tapped for, in the order in which the design names them."""
STATE = "state"
"""What a call leaves in objects that it was given, such as a cache: only where two live models are compared."""
UNCHANGED = "#unchanged"
"""The leaf of an object, a cache for instance, that is as the model's own last call left it, not recorded again."""

_SITE = re.compile(
    r"(?P<path>[^:@]*)(?::(?P<role>" + "|".join((*ROLES, STATE)) + r")(?:\.(?P<leaf>[^:@]+))?)?(?:@(?P<call>\d+))?"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """Where a tensor comes from, written `path:role.leaf@call`.

    >>> Site.parse("model.layers.3.self_attn:output.1@2")
    Site('model.layers.3.self_attn:output.1@2')
    >>> str(Site(path="model.layers.3"))
    'model.layers.3'
    >>> Site(path="head", call=2) == "head@2"
    True
    """

    path: str
    """The module's path in `named_modules()`; the root is the empty string."""
    role: str = "output"
    """One of `ROLES`, or `STATE`."""
    leaf: str = ""
    """The key path inside a nested value; empty when the value is one tensor."""
    call: int = 0
    """Which call of the module within one step."""

    def __str__(self) -> str:
        return _text(self.path, self.role, self.leaf, self.call)

    def __repr__(self) -> str:
        return f"Site({str(self)!r})"

    # A site equals its own text, so that `"model.layers.3" in run.sites` reads as it should.
    def __eq__(self, other: object) -> bool:
        if isinstance(other, Site):
            same = self.path == other.path and self.leaf == other.leaf
            return self is other or (same and self.call == other.call and self.role == other.role)
        return str(self) == other if isinstance(other, str) else NotImplemented

    def __hash__(self) -> int:
        return hash(_text(self.path, self.role, self.leaf, self.call))

    @classmethod
    def parse(cls, text: str) -> Site:
        """Reads what `str(site)` wrote; a bare path means `:output`."""
        match = _SITE.fullmatch(text)
        if match is None:
            raise ValueError(tr("site.expected", text=text, ROLES=", ".join(ROLES)))
        return cls(
            path=_unescape(match["path"]),
            role=match["role"] or "output",
            leaf=_unescape(match["leaf"] or ""),
            call=int(match["call"] or 0),
        )


@lru_cache(maxsize=1 << 16)
def _text(path: str, role: str, leaf: str, call: int) -> str:
    """Of the same sites again and again, since a site is found in a dictionary by its text."""
    text = _escape(path)
    if role != "output" or leaf or not text:
        text += f":{role}"
    if leaf:
        text += f".{_escape(leaf)}"
    return f"{text}@{call}" if call else text


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace(":", "%3A").replace("@", "%40")


def _unescape(text: str) -> str:
    return text.replace("%40", "@").replace("%3A", ":").replace("%25", "%")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What one pass over a tensor measures; the finite values only, the rest is counted.

    Complex tensors count as twice as many reals. With no finite value at all the means and extremes are NaN.
    """

    count: int
    """How many values there are, finite or not."""
    mean: float
    std: float
    """With ddof 0."""
    min: float
    max: float
    abs_mean: float
    l2: float
    nan: int
    pos_inf: int
    neg_inf: int
    zero: int
    first: tuple[float, ...]
    """The first values in C order, ten at most, as they are (NaN and Inf included)."""

    @property
    def abs_max(self) -> float:
        return max(abs(self.min), abs(self.max))

    @property
    def finite(self) -> int:
        """How many values are finite."""
        return self.count - self.nonfinite

    @property
    def nonfinite(self) -> int:
        """How many values are NaN or infinite."""
        return self.nan + self.pos_inf + self.neg_inf

    @classmethod
    def of(
        cls,
        *,
        count: int,
        mean: float,
        m2: float,
        abs_sum: float,
        min: float,  # noqa: A002
        max: float,  # noqa: A002
        nan: int = 0,
        pos_inf: int = 0,
        neg_inf: int = 0,
        zero: int = 0,
        first: tuple[float, ...] = (),
    ) -> Statistics:
        """From the sums a kernel leaves behind: `mean` and `m2` (about that mean) of the finite values."""
        finite = count - nan - pos_inf - neg_inf
        known = finite > 0
        return cls(
            count=count,
            mean=mean if known else math.nan,
            std=math.sqrt(m2 / finite) if known and m2 > 0 else (0.0 if known else math.nan),
            min=min if known else math.nan,
            max=max if known else math.nan,
            abs_mean=abs_sum / finite if known else math.nan,
            l2=math.sqrt(m2 + finite * mean * mean) if known else 0.0,
            nan=nan,
            pos_inf=pos_inf,
            neg_inf=neg_inf,
            zero=zero,
            first=first,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How a distributed tensor is cut up; what is recorded of it is this rank's part."""

    placements: tuple[str, ...]
    """torch's words, one for each dimension of the mesh: `Shard(dim=1)`, `Replicate()`, `Partial(sum)`."""
    global_shape: tuple[int, ...] = ()
    """The shape of the whole tensor."""
    offset: tuple[int, ...] = ()
    """Where this part begins in the whole, an index for each dimension; empty when it is not known."""
    mesh_shape: tuple[int, ...] = ()
    """How many ranks each dimension of the device mesh has."""
    mesh_names: tuple[str, ...] = ()
    """The names of those dimensions, for instance `dp`, `tp`; empty when they have none."""
    mesh_coordinate: tuple[int, ...] = ()
    """Where this rank is in the mesh, an index for each dimension; empty when it is not known."""
    mesh_origin: int = -1
    """The rank at the mesh's first place, which distinguishes meshes of one shape; -1 when it is not known."""

    @property
    def partial(self) -> bool:
        """Whether the ranks hold summands, and not slices, of the whole.

        >>> Sharding(placements=("Partial(sum)",), mesh_shape=(2,)).partial
        True
        """
        sizes = self.mesh_shape or (2,) * len(self.placements)
        return any("Partial" in text and size > 1 for text, size in zip(self.placements, sizes, strict=False))

    def is_whole(self, shape: tuple[int, ...]) -> bool:
        """Whether what a rank holds, of this shape, is the whole value.

        >>> Sharding(placements=("Shard(dim=0)",), global_shape=(4, 2), mesh_shape=(2,)).is_whole((2, 2))
        False
        """
        if self.partial:
            return False
        if self.global_shape:
            return self.global_shape == shape
        return all(text == "Replicate()" for text in self.placements)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One tensor at one moment."""

    site: Site
    kind: str
    """The class of the module, for instance `Linear`."""
    order: int
    """The place of this record in the step's order of execution."""
    step: int
    epoch: int | None = None
    batch: int | None = None
    phase: str
    """`train` or `eval`, as the model was set at the call."""
    rank: int = 0
    shape: tuple[int, ...]
    dtype: str
    """torch's name without the prefix: `bfloat16`."""
    device: str
    sharding: Sharding | None = None
    """Of a distributed tensor; `shape`, statistics and so on are those of this rank's part."""
    statistics: Statistics
    fingerprint: int
    """64 bits; equal fingerprints, dtypes and shapes mean bit-identical tensors."""
    sketch: bytes = field(repr=False)
    """251 little-endian float32, see store/FORMAT.md."""
    fingerprint_in_whole: int | None = None
    """Of a part: what it adds to the fingerprint of the whole; None of other tensors, or where its place is unknown."""
    sketch_in_whole: bytes | None = field(default=None, repr=False)
    """The same of the sketch."""
    kept: str = "stats"
    """`stats`, `tensor`, or the name of the reduction whose result was kept."""
    kept_shape: tuple[int, ...] = ()
    kept_dtype: str = ""
    """Shape and dtype of what was kept; a reduction's differ from the tensor's own."""
    kept_fingerprint: int | None = None
    """The fingerprint of the kept bytes, by which they are checked; None if nothing was kept, or in format 1."""
    asked: bool = True
    """False for the model's own inputs, which are recorded unasked: they make two runs comparable."""
    file: str = ""
    key: str = ""
    """The file under `tensors/` and the name in it; empty when nothing was kept."""


def _typed(kind: type[T], values: Mapping[str, Any]) -> T:
    """An object of a class from values of its fields' types, which have been anywhere since."""
    for field_ in fields(kind):  # type: ignore[arg-type]
        value = values.get(field_.name)
        allowed = _TYPES.get(str(field_.type))
        if allowed is None or field_.name not in values:
            continue
        inner = [*value.values()] if isinstance(value, Mapping) else value if isinstance(value, tuple) else []
        if _kind(value) not in allowed[0] or not all(_kind(item) in allowed[1] for item in inner):
            raise TypeError(tr("site.type", name=field_.name, type=field_.type))
    return kind(**values)


def _kind(value: Any) -> type:
    return str if isinstance(value, Note) else type(value)


T = TypeVar("T")
_TYPES: dict[str, tuple[tuple[type, ...], tuple[type, ...]]] = {
    "int": ((int,), ()),
    "float": ((int, float), ()),
    "str": ((str,), ()),
    "Mapping[str, int]": ((dict,), (int,)),
    "tuple[str, ...]": ((tuple,), (str,)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteReceipt:
    """What became of one requested module and role."""

    path: str
    role: str
    kind: str
    fired: int = 0
    """How often the module was seen in this role."""
    tensors: int = 0
    """How many tensors that gave."""
    direct: int = 0
    """Calls that came as `module.forward(…)`, which a hook would have missed."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Leaves that are no tensors, or that cannot be recorded: reason → count."""
    recomputed: int = 0
    """Calls recognised as activation-checkpoint recomputation, and not recorded twice."""
    dropped: int = 0
    """Tensors not kept for lack of budget; their statistics are there unless the policy is `drop`."""
    why: str = ""
    """Why nothing came, when nothing came."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Receipt(Result):
    """What a capture really did."""

    sites: tuple[SiteReceipt, ...]
    steps: int
    """Steps from which something was recorded."""
    records: int
    bytes: int
    """Bytes of tensors kept."""
    seconds: float
    """Wall-clock time from start to stop."""
    overhead: float
    """Seconds of it that the calling thread spent inside layertap."""
    lost: int = 0
    """Records that could not be written."""
    error: str = ""
    """The internal error that ended recording early; empty when there was none."""
    notes: tuple[str, ...] = ()
    """What else a reader must know: of an artefact, its drift and freshness; of a training, steps that were skipped."""

    @property
    def fired(self) -> tuple[SiteReceipt, ...]:
        return tuple(site for site in self.sites if site.tensors)

    @property
    def silent(self) -> tuple[SiteReceipt, ...]:
        """The requested sites from which no tensor came; each says why."""
        return tuple(site for site in self.sites if not site.tensors)

    @property
    def complete(self) -> bool:
        """Whether everything that fired is in the run."""
        return not (self.error or self.lost or any(site.dropped for site in self.sites))

    def to_dict(self) -> dict[str, Any]:
        """As plain values for `run.json`; notes, and the codes of notes, only where there are some."""
        data = asdict(self)
        data["sites"] = [
            {**plain, "why_code": codes([site.why])[0]} if isinstance(site.why, Note) else plain
            for plain, site in zip(data["sites"], self.sites, strict=True)
        ]
        if not self.notes:
            del data["notes"]
        return with_codes(data, self, "notes") if any(isinstance(note, Note) for note in self.notes) else data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Receipt:
        """Reads what `to_dict` gave; a ValueError or TypeError where something is of another kind."""
        sites = tuple(
            _typed(
                SiteReceipt, {**_known(SiteReceipt, site), "why": note_from(site.get("why", ""), site.get("why_code"))}
            )
            for site in data["sites"]
        )
        note_codes = data.get("note_codes") or ()
        notes = tuple(note_from(text, code) for text, code in zip_longest(data.get("notes", ()), note_codes))
        return _typed(cls, {**_known(cls, data), "sites": sites, "notes": notes})


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sorting key that puts `layer_2` before `layer_10`; digits of other scripts are letters.

    >>> sorted(["layer_10", "layer_2", "layer_²"], key=natural_key)
    ['layer_2', 'layer_10', 'layer_²']
    """
    parts = re.split(r"([0-9]+)", text)
    return tuple((0, int(part), "") if place % 2 else (1, 0, part) for place, part in enumerate(parts) if part)


def _known(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    names = {field_.name for field_ in fields(kind)}
    return {name: value for name, value in data.items() if name in names or not name.endswith(("_code", "_codes"))}
