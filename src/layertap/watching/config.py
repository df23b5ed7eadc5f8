"""What a watch is asked for: from keywords, a mapping, or a TOML or JSON file; printable before it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from layertap.capture.keep import parse_level
from layertap.capture.schedule import Schedule, parse_schedule
from layertap.capture.sink import POLICIES
from layertap.errors import BadArgument
from layertap.files import parse_bytes, parse_json, parse_toml, read_text, reading, reason
from layertap.messages import tr
from layertap.site import ROLES
from layertap.watching.actions import check_action
from layertap.watching.rules import SiteRule, parse_rules
from layertap.watching.trigger import Triggers, parse_triggers

OPTIMIZER, UPDATE, STEP_GRAD = "optimizer", "update", "step_grad"
"""What can be watched besides the six roles: norms of the optimizer's state, the updates that it makes, and the
gradients as it uses them: accumulated, reduced over ranks, unscaled, clipped."""

Config = Mapping[str, Any] | str | os.PathLike[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchConfig:
    """The options of a watch, checked.

    >>> print(read_config({"schedule": "every 10", "what": "grad_output"}))
    watch runs/watch
      sites      the repeated blocks, embeddings, final norm and head
      what       grad_output, in phase train
      keep       stats
      schedule   every 10th step: 0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, …; 100 of the first 1000 steps
      ring       none
      triggers   NaN or Inf
      disk       at most 20GiB; above it, older steps are thinned
    """

    path: str = "runs/watch"
    """The run's folder."""
    model: str = ""
    """The model's class or variable, for a script that is not edited; empty: what the optimizer trains."""
    sites: Any = None
    exclude: Any = None
    what: tuple[str, ...] = ("output", "grad_output")
    """Any of the six roles, `optimizer`, `update` and `step_grad`."""
    keep: Any = "stats"
    schedule: Any = None
    """The steps that are written; by default every step, or with a ring none."""
    phases: tuple[str, ...] = ("train",)
    ring: int = 0
    """How many of the last steps wait in memory for a trigger; with a ring every step is tapped."""
    ring_budget: int | str = "1GiB"
    """Bytes of tensors in the ring; past them the oldest steps keep their statistics alone."""
    triggers: Any = None
    rules: Any = None
    """Rules about single sites, and of one's own: see docs/watching.md."""
    actions: tuple[str, ...] = ()
    """What every trigger does besides: `stop`, `command: …`, a URL."""
    tensorboard: str = ""
    """A folder for TensorBoard: scalars of the training and of every record, as it goes on."""
    progress: float = 0.0
    """Seconds between two lines of progress on the error stream; 0: none."""
    after: int = 2
    """Steps that are written after a trigger."""
    keep_batch: bool = False
    """Whether the model's inputs are kept whole; their fingerprints always are."""
    ranks: tuple[int, ...] = ()
    """The ranks that record; empty: all."""
    start: int | None = None
    """The number of the first step; None: what the optimizer's state says, else 0 or one after the last recorded."""
    disk: int | str = "20GiB"
    """Bytes that the run may take, all ranks together; past them older steps are thinned."""
    budget: int | str = "2GiB"
    policy: str = "stats"
    """Past the budget: `stats`, `drop`, or `block` (which makes the loop wait for the disk)."""
    exists: str = "resume"
    """A run that is there: `resume` goes on with it where the optimizer's state proves that this training does, and
    else takes a folder beside it; `append` goes on in any case; `replace`; `error`."""
    strict: bool = False

    @property
    def roles(self) -> tuple[str, ...]:
        """What the recorder is asked for; the ratio of an update needs the weight too."""
        asked = [role for role in self.what if role in ROLES]
        if UPDATE in self.what and "param" not in asked:
            asked.append("param")
        return tuple(asked)

    @property
    def written(self) -> Schedule:
        """Which steps are written without any trigger."""
        return parse_schedule("never" if self.schedule is None and self.ring else self.schedule)

    @property
    def parsed_triggers(self) -> Triggers:
        return parse_triggers(self.triggers)

    @property
    def site_rules(self) -> tuple[SiteRule, ...]:
        return parse_rules(self.rules)

    def __str__(self) -> str:
        sites = tr("watch.plan_default") if self.sites is None else self.sites
        ring = tr("watch.plan_ring", ring=self.ring, ring_budget=self.ring_budget) if self.ring else "none"
        lines = {
            "sites": f"{sites}{(tr('watch.plan_but', exclude=self.exclude) if self.exclude else '')}",
            "what": tr("watch.plan_what", what=", ".join(self.what), phases=" and ".join(self.phases)),
            "keep": self.keep,
            "schedule": self.written.plan(),
            "ring": ring,
            "triggers": "; ".join([self.parsed_triggers.text, *map(str, self.site_rules)]),
            "disk": tr("watch.plan_disk", disk=self.disk),
        }
        return "\n".join([f"watch {self.path}", *(f"  {name:10} {value}" for name, value in lines.items())])


def read_config(source: Config | WatchConfig = None, **options: Any) -> WatchConfig:
    """A checked configuration from a file or a mapping; what is given as keywords weighs more."""
    if isinstance(source, WatchConfig):
        given = {field.name: getattr(source, field.name) for field in fields(source)}
    elif source is None or isinstance(source, Mapping):
        given = dict(source or {})
    else:
        given = file_options(Path(source))
    given |= {name: value for name, value in options.items() if value is not None}
    known = [field.name for field in fields(WatchConfig)]
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            raise BadArgument(
                tr(
                    "watch.no_option",
                    name=name,
                    more=tr("watch.nearest", near=near[0]) if near else "",
                    known=", ".join(known),
                )
            )
    for name in ("what", "phases", "ranks", "actions"):
        if name in given:
            given[name] = _several(given[name])
    if isinstance(given.get("path"), os.PathLike):
        given["path"] = os.fspath(given["path"])
    for field in fields(WatchConfig):
        kinds, expected = _KINDS.get(str(field.type), ((), ""))
        value = given.get(field.name, field.default)
        if kinds and not all(type(item) in kinds for item in (value if isinstance(value, tuple) else (value,))):
            raise BadArgument(tr("watch.expected", name=field.name, value=value, expected=tr(expected)))
    with reading("watch", tr("watch.bad_option"), BadArgument):
        config = WatchConfig(**given)
        _check(config)
    return config


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "watch.text"),
    "int": ((int,), "watch.whole"),
    "bool": ((bool,), "watch.boolean"),
    "int | None": ((int, type(None)), "watch.whole"),
    "int | str": ((int, str), "watch.size"),
    "tuple[str, ...]": ((str,), "watch.names"),
    "tuple[int, ...]": ((int,), "watch.wholes"),
}


def _check(config: WatchConfig) -> None:
    known = (*ROLES, OPTIMIZER, UPDATE, STEP_GRAD)
    if not config.what or not set(config.what) <= set(known):
        raise BadArgument(tr("watch.what", what=list(config.what), known=", ".join(known)))
    if not config.phases or not set(config.phases) <= {"train", "eval"}:
        raise BadArgument(tr("watch.phases", phases=list(config.phases)))
    if config.policy not in POLICIES:
        raise BadArgument(tr("watch.policy", policy=config.policy, POLICIES=", ".join(POLICIES)))
    if config.exists not in ("resume", "append", "replace", "error"):
        raise BadArgument(tr("watch.exists", exists=config.exists))
    if config.ring < 0 or config.after < 0:
        raise BadArgument(tr("watch.negative", ring=config.ring, after=config.after))
    for level in config.keep.values() if isinstance(config.keep, Mapping) else [config.keep]:
        parse_level(level)  # reported before the training starts, not when its optimizer is made
    parse_bytes(config.budget)
    parse_bytes(config.ring_budget)
    parse_bytes(config.disk)
    _ = config.written, config.parsed_triggers, config.site_rules
    for action in config.actions:
        check_action(action)
    if config.progress < 0:
        raise BadArgument(tr("watch.progress", progress=config.progress))


def _several(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(","))
    return tuple(value) if isinstance(value, (list, tuple, set, frozenset)) else (value,)


def file_options(path: Path) -> dict[str, Any]:
    """The options in a TOML or JSON file, at its top or in a table `watch`."""
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise BadArgument(tr("watch.config_unreadable", path=path, reason=reason(error))) from None
    with reading(f"watch: {path}", tr("watch.not_config"), BadArgument):
        data = parse_json(text) if path.suffix == ".json" else parse_toml(text)
    if isinstance(data, dict) and isinstance(data.get("watch"), dict):
        data = data["watch"]
    if not isinstance(data, dict):
        raise BadArgument(tr("watch.table", path=path))
    return data
