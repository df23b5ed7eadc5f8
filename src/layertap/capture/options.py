"""How a model is recorded: what `record` is given besides the model and the path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from layertap.capture.sink import POLICIES
from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.site import ROLES
from layertap.store.stated import Mapped
from layertap.store.writer import DURABILITIES


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """The options of a recording; what each means is in the docstring of `record`."""

    sites: Any
    exclude: Any = None
    what: str | tuple[str, ...]
    keep: Any
    schedule: Any
    budget: int | str
    policy: str
    strict: bool
    exists: Literal["error", "append", "replace"]
    durability: Literal["fsync", "none"] = "fsync"
    meta: Mapping[str, Any] | None
    mapping: Mapped | None = None
    roles: tuple[str, ...] = field(init=False)
    """`what`, read once."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "roles", (self.what,) if isinstance(self.what, str) else tuple(self.what))
        if not self.roles or not set(self.roles) <= set(ROLES):
            raise BadArgument(tr("record.what", what=self.what, ROLES=", ".join(ROLES)))
        if self.policy not in POLICIES:
            raise BadArgument(tr("record.policy", policy=self.policy, POLICIES=", ".join(POLICIES)))
        if self.durability not in DURABILITIES:
            known = ", ".join(DURABILITIES)
            raise BadArgument(tr("record.durability", durability=self.durability, DURABILITIES=known))

    def arguments(self, schedule: str) -> dict[str, Any]:
        """What `run.json` says of how the run was recorded; `schedule` is what the option was read as."""
        return {
            "sites": self.sites,
            "exclude": self.exclude,
            "what": list(self.roles),
            "keep": self.keep,
            "schedule": schedule,
            "budget": self.budget,
            "policy": self.policy,
        }
