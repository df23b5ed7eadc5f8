"""What is to be run: a target, one input, and modes; read from TOML, checked before anything starts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from layertap.errors import BadArgument
from layertap.files import parse_toml, read_text, reason
from layertap.messages import tr
from layertap.site import ROLES
from layertap.sweeping.values import check_keys, did_you_mean, of_kind, strings, table, time_limit, whole_number

DTYPES = ("float64", "float32", "float16", "bfloat16")
SECONDS = 3600.0
"""How long a mode may take by default."""
TOP = 512
"""So many of the likeliest tokens are kept at each position; the rest as one mass."""
ALL = "all"
RESERVED = ("logs", "sweep.json", "run.json", "records", "tensors")
"""Names in the sweep's folder that are no mode's."""
_INPUT = ("random", "vocabulary", "seed", "file", "prompt", "seq_len")
_SENSITIVITY = (True, False, "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeDefinition:
    """One way to run the model. What is left out is as in the target itself."""

    name: str
    about: str = ""
    """A few words for people."""
    target: str = ""
    """Another target than the sweep's."""
    env: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Of the factory."""
    dtype: str = ""
    device: str = ""
    quantize: str | Mapping[str, Any] = ""
    """A torchao configuration by name; a table for one with options: `{config = "IntxWeightOnlyConfig", …}`."""
    ignore: tuple[str, ...] = ()
    """Modules that `quantize` leaves as they are: paths, or `re:…`."""
    compile: str = ""
    """A backend of torch.compile."""
    batch: int = 0
    """The input's rows are run so many at a time; other rows fill the batch up."""
    threads: int = 0
    command: str | tuple[str, ...] = ()
    """A program that writes a run into the folder {run}, which is also in the variable LAYERTAP_RUN."""
    timeout: float = 0.0

    @property
    def composition(self) -> bool:
        """Whether it computes the same in another batch or with other threads: what it differs by is rounding."""
        others = (self.target, self.env, self.arguments, self.dtype, self.device, self.quantize, self.compile)
        return bool(self.batch or self.threads) and not any((*others, self.command))


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A sweep, as its author wrote it."""

    target: str
    modes: tuple[ModeDefinition, ...]
    reference: str
    folder: str = ""
    """Where relative paths begin."""
    sites: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    what: tuple[str, ...] = ("input", "output")
    keep: Any = "tensor"
    input: Mapping[str, Any] = field(default_factory=dict)
    presets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    questions: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """A question → the two modes (reference, candidate) whose difference answers it."""
    seed: int = 0
    timeout: float = SECONDS
    threads: int = 0
    jobs: int = 0
    inherit: tuple[str, ...] = ()
    """Variables of the caller's environment that the modes see besides the minimal ones."""
    top_k: int = TOP
    sensitivity: Any = "auto"
    """Which modes have their layers ranked: true, false, a list, or `auto`: those with `quantize`."""

    def mode(self, name: str) -> ModeDefinition:
        for mode in self.modes:
            if mode.name == name:
                return mode
        raise BadArgument(
            tr("sweeping.no_mode", name=name, name2=did_you_mean(name, self.names), names=", ".join(self.names))
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(mode.name for mode in self.modes)

    def chosen(self, modes: str | Sequence[str] | None) -> tuple[ModeDefinition, ...]:
        """The modes of a preset, a list, or all of them; in the order of the file."""
        if modes is None:
            return self.modes
        wanted = [modes] if isinstance(modes, str) else list(modes)
        names: list[str] = []
        for one in wanted:
            if one in self.presets:
                names += self.presets[one]
            elif one == ALL and one not in self.names:
                names += self.names
            elif one in self.names:
                names.append(one)
            else:
                known = (*self.presets, ALL, *self.names)
                raise BadArgument(
                    tr(
                        "sweeping.no_mode_or_preset",
                        one=one,
                        one2=did_you_mean(one, known),
                        names=", ".join(self.names),
                        value=", ".join((*self.presets, ALL)),
                    )
                )
        if not names:
            raise BadArgument(tr("sweeping.none_chosen"))
        return tuple(mode for mode in self.modes if mode.name in names)


def read_definition(source: str | os.PathLike[str] | Mapping[str, Any]) -> Definition:
    """A definition from a TOML file, or from a dictionary of the same shape.

    >>> read_definition({"target": "net.py:make", "modes": {"fp32": {}, "bf16": {"dtype": "bfloat16"}}}).reference
    'fp32'
    """
    if isinstance(source, Mapping):
        return _definition(source, tr("sweeping.the_definition"), Path.cwd())
    path = Path(source).expanduser()
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise BadArgument(tr("sweeping.unreadable", path=path, error=reason(error), path2=Path.cwd())) from error
    try:
        data = parse_toml(text)
    except ValueError as error:
        raise BadArgument(tr("sweeping.not_toml", path=path, error=reason(error))) from error
    return _definition(data, str(path), path.resolve().parent)


def _definition(data: Mapping[str, Any], where: str, folder: Path) -> Definition:
    known = {one.name for one in fields(Definition)} - {"folder"}
    check_keys(data, known, where)
    modes = data.get("modes")
    if not isinstance(modes, Mapping) or not modes:
        raise BadArgument(tr("sweeping.no_modes", where=where))
    target = of_kind(data, "target", str, where) or ""
    if not target and not all(
        isinstance(one, Mapping) and (one.get("target") or one.get("command")) for one in modes.values()
    ):
        raise BadArgument(tr("sweeping.no_target", where=where))
    read = tuple(_mode(str(name), value, f"{where}: modes.{name}") for name, value in modes.items())
    names = [mode.name for mode in read]
    reference = str(data.get("reference") or ("fp32" if "fp32" in names else names[0]))
    if reference not in names:
        raise BadArgument(
            tr(
                "sweeping.no_reference",
                where=where,
                reference=reference,
                reference2=did_you_mean(reference, names),
                names=", ".join(names),
            )
        )
    sites = data.get("sites")
    what = strings(data.get("what", ("input", "output")), f"{where}: what")
    if not what or not set(what) <= set(ROLES):
        raise BadArgument(tr("sweeping.what", where=where, what=list(what), roles=", ".join(ROLES)))
    return Definition(
        target=target,
        modes=read,
        reference=reference,
        folder=str(folder),
        sites=None if sites is None else strings(sites, f"{where}: sites"),
        exclude=strings(data.get("exclude", ()), f"{where}: exclude"),
        what=what,
        keep=data.get("keep", "tensor"),
        input=_input(data.get("input"), where),
        presets=_presets(data.get("presets"), names, where),
        questions=_questions(data.get("questions"), names, where),
        seed=whole_number(data, "seed", where, 0, least=0),
        timeout=time_limit(data.get("timeout", SECONDS), f"{where}: timeout"),
        threads=whole_number(data, "threads", where, 0),
        jobs=whole_number(data, "jobs", where, 0),
        inherit=strings(data.get("inherit", ()), f"{where}: inherit"),
        top_k=whole_number(data, "top_k", where, TOP),
        sensitivity=_sensitivity(data.get("sensitivity", "auto"), names, where),
    )


def _mode(name: str, value: Any, where: str) -> ModeDefinition:
    if (
        not name
        or name.strip() != name
        or name.startswith(".")
        or not name.isprintable()
        or "/" in name
        or "\\" in name
    ):
        raise BadArgument(tr("sweeping.mode_name", where=where, name=name))
    if name.lower() in RESERVED:
        raise BadArgument(tr("sweep.reserved_name", where=where))
    if not isinstance(value, Mapping):
        raise BadArgument(tr("sweeping.where_table", where=where, value=value))
    check_keys(value, {one.name for one in fields(ModeDefinition)} - {"name"}, where)
    dtype = (of_kind(value, "dtype", str, where) or "").removeprefix("torch.")
    dtype = {
        "fp32": "float32",
        "fp16": "float16",
        "bf16": "bfloat16",
        "half": "float16",
        "float": "float32",
        "fp64": "float64",
        "double": "float64",
    }.get(dtype, dtype)
    if dtype and dtype not in DTYPES:
        raise BadArgument(
            tr("sweeping.dtype", where=where, dtype=dtype, dtype2=did_you_mean(dtype, DTYPES), dtypes=", ".join(DTYPES))
        )
    compiled = value.get("compile", "")
    if not isinstance(compiled, (str, bool)):
        raise BadArgument(tr("sweeping.compile", where=where, compiled=compiled))
    quantize = value.get("quantize", "")
    if not isinstance(quantize, (str, Mapping)) or (isinstance(quantize, Mapping) and "config" not in quantize):
        raise BadArgument(tr("sweeping.quantize", where=where, quantize=quantize))
    mode = ModeDefinition(
        name=name,
        about=of_kind(value, "about", str, where) or "",
        target=of_kind(value, "target", str, where) or "",
        env={str(key): _env_value(one, f"{where}: env.{key}") for key, one in table(value, "env", where).items()},
        arguments=dict(table(value, "arguments", where)),
        dtype=dtype,
        device=of_kind(value, "device", str, where) or "",
        quantize=quantize,
        ignore=strings(value.get("ignore", ()), f"{where}: ignore"),
        compile="inductor" if compiled is True else compiled or "",
        batch=whole_number(value, "batch", where, 0),
        threads=whole_number(value, "threads", where, 0),
        command=_command(value.get("command", ()), where),
        timeout=time_limit(value.get("timeout", 0.0), f"{where}: timeout", least=0.0),
    )
    if mode.ignore and not mode.quantize:
        raise BadArgument(tr("sweeping.ignore", where=where))
    if mode.command and any((mode.arguments, mode.dtype, mode.device, mode.quantize, mode.compile, mode.batch)):
        raise BadArgument(tr("sweeping.command", where=where))
    return mode


def _command(value: Any, where: str) -> str | tuple[str, ...]:
    if isinstance(value, str):
        return value
    return strings(value, f"{where}: command")


def _env_value(value: Any, where: str) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise BadArgument(tr("sweeping.string_or_number", where=where, value=value))


def _input(value: Any, where: str) -> Mapping[str, Any]:
    where = f"{where}: input"
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadArgument(tr("sweeping.input_table", where=where, value=value))
    check_keys(value, set(_INPUT), where)
    sources = [key for key in ("random", "file", "prompt") if key in value]
    if len(sources) > 1:
        raise BadArgument(tr("sweeping.exclusive", where=where, sources=" and ".join(sources)))
    shape = value.get("random", [1])
    if not isinstance(shape, (list, tuple)) or not shape or not all(type(one) is int and one > 0 for one in shape):
        raise BadArgument(tr("sweeping.random", where=where, shape=shape))
    for key in ("vocabulary", "seq_len"):
        whole_number(value, key, where, 0)
    whole_number(value, "seed", where, 0, least=0)
    return dict(value)


def _presets(value: Any, names: Sequence[str], where: str) -> Mapping[str, tuple[str, ...]]:
    found = {}
    for preset, members in ({} if value is None else table({"presets": value}, "presets", where)).items():
        members = strings(members, f"{where}: presets.{preset}")
        for name in members:
            if name not in names:
                raise BadArgument(
                    tr(
                        "sweeping.preset_mode",
                        where=where,
                        preset=preset,
                        name=name,
                        name2=did_you_mean(name, names),
                        names=", ".join(names),
                    )
                )
        found[str(preset)] = members
    return found


def _questions(value: Any, names: Sequence[str], where: str) -> Mapping[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for question, pair in ({} if value is None else table({"questions": value}, "questions", where)).items():
        pair = strings(pair, f"{where}: questions.{question!r}")
        if len(pair) != 2 or not set(pair) <= set(names):
            raise BadArgument(tr("sweeping.question", where=where, question=question, pair=list(pair)))
        found[str(question)] = (pair[0], pair[1])
    return found


def _sensitivity(value: Any, names: Sequence[str], where: str) -> Any:
    if isinstance(value, (list, tuple)):
        value = strings(value, f"{where}: sensitivity")
        wrong = [name for name in value if name not in names]
        if not wrong:
            return value
        raise BadArgument(
            tr("sweeping.sensitivity_mode", where=where, wrong=wrong[0], value=did_you_mean(wrong[0], names))
        )
    if value not in _SENSITIVITY:
        raise BadArgument(tr("sweeping.sensitivity", where=where, value=value))
    return value


def slug(name: str) -> str:
    """A mode's name as the name of a folder.

    >>> slug("2-1"), slug("int8 dynamic")
    ('2-1', 'int8%20dynamic')
    """
    return re.sub(r"[^\w.-]", lambda found: "".join(f"%{byte:02x}" for byte in found[0].encode()), name)
