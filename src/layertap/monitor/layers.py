"""`layers_to_monitor`: which layers, under which names, and how much of each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, cast

from torch import nn

from layertap.capture.compiled import Uncompiled, uncompiled_name
from layertap.errors import BadArgument
from layertap.files import parse_json, read_bytes, reason
from layertap.messages import tr

RecordType = Literal["single", "epoch_full"]
RECORD_TYPES = ("single", "epoch_full")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoredLayer:
    """One layer under one alias."""

    layer: str
    """As the user wrote it."""
    alias: str
    record_type: RecordType
    path: str
    """The module's first name in the model; the same as `layer` unless the module is shared."""


def read_layers(
    model: nn.Module,
    layers_to_monitor: Any,
    epochs_to_record: Iterable[int],
    batch_indices: Iterable[int] | None,
) -> tuple[MonitoredLayer, ...]:
    """Reads and checks what a monitor is asked for.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> [(item.layer, item.alias) for item in read_layers(model, ["0", "1"], [1], [0])]
    [('0', '0'), ('1', '1')]
    >>> read_layers(model, {"0": {"alias": "first", "record_type": "every"}}, [1], None)
    Traceback (most recent call last):
    layertap.errors.BadArgument: Invalid record_type: every. Must be 'single' or 'epoch_full'.
    """
    wishes = list(_wishes(layers_to_monitor))
    if not list(epochs_to_record):
        raise BadArgument(tr("monitor.no_epochs"))
    for _, _, record_type in wishes:
        if record_type not in RECORD_TYPES:
            raise BadArgument(tr("monitor.record_type", record_type=record_type))
    if any(record_type == "single" for _, _, record_type in wishes) and not list(batch_indices or ()):
        raise BadArgument(tr("monitor.batch_indices"))
    named = Uncompiled(model)
    first_names = {id(module): name for name, module in reversed(list(named.named_modules()))}
    known = {name: first_names[id(module)] for name, module in named.named_modules(remove_duplicate=False)}
    missing = [layer for layer, _, _ in wishes if uncompiled_name(layer) not in known]
    if missing:
        raise BadArgument(_missing(missing, list(known)))
    aliases: set[str] = set()
    watched = []
    for layer, alias, record_type in wishes:
        name = alias or layer or "model"
        if name in aliases:
            raise BadArgument(tr("monitor.duplicate_alias", name=name))
        aliases.add(name)
        watched.append(
            MonitoredLayer(
                layer=layer, alias=name, record_type=cast(RecordType, record_type), path=known[uncompiled_name(layer)]
            )
        )
    return tuple(watched)


CONFIG = {
    "layers_to_monitor": "monitor_layers",
    "epochs_to_record": "monitor_epochs",
    "batch_indices": "monitor_batches",
    "output_dir": "monitor_output_dir",
}
"""What the arguments of a monitor are called in a training's own configuration."""


def read_config(config: str | os.PathLike[str] | Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a monitor from `config.json`, or from what was read from it; options go first."""
    given = config if isinstance(config, Mapping) else _read_json(Path(config))
    found = {name: given[key] for name, key in CONFIG.items() if key in given}
    arguments = {"output_dir": "monitor_outputs", **found, **options}
    for name in ("layers_to_monitor", "epochs_to_record"):
        if name not in arguments:
            raise BadArgument(tr("monitor.configuration", CONFIG=CONFIG[name], map=", ".join(map(str, given))))
    return arguments


def integer_list(name: str, given: Any) -> list[int]:
    """A list of epochs or batches.

    >>> integer_list("epochs_to_record", 5)
    Traceback (most recent call last):
    layertap.errors.BadArgument: epochs_to_record=5: expected a list of whole numbers, for instance [5]
    """
    try:
        numbers = [] if isinstance(given, (str, bytes)) else [(int(item), float(item)) for item in given]
        whole = not isinstance(given, (str, bytes)) and all(low == exact for low, exact in numbers)
    except (TypeError, ValueError):
        whole = False
    if not whole:
        example = f"[{given}]" if isinstance(given, int) else "[1, 5]"
        raise BadArgument(tr("monitor.whole_numbers", name=name, given=given, example=example))
    return [low for low, _ in numbers]


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        found = parse_json(read_bytes(path))
    except (OSError, ValueError) as error:
        raise BadArgument(tr("monitor.config_unreadable", path=path, reason=reason(error))) from error
    if not isinstance(found, Mapping):
        raise BadArgument(tr("monitor.config_object", path=path))
    return found


def _wishes(layers: Any) -> Iterable[tuple[str, str | None, Any]]:
    """Layer, alias, record type."""
    if isinstance(layers, Mapping):
        if not layers:
            raise BadArgument(tr("monitor.no_layers"))
        for layer, given in layers.items():
            for options in given if isinstance(given, (list, tuple)) else [given]:
                yield _wish(layer, options)
    elif isinstance(layers, Sequence) and not isinstance(layers, (str, bytes)):
        if not layers:
            raise BadArgument(tr("monitor.no_layers"))
        for layer in layers:
            yield _wish(layer, None)
    else:
        raise BadArgument(tr("monitor.list_or_dict"))


def _wish(layer: Any, options: Any) -> tuple[str, str | None, Any]:
    if not isinstance(layer, str):
        raise BadArgument(tr("monitor.layer_name", layer=layer))
    if options is None:
        return layer, None, "single"
    if not isinstance(options, Mapping):
        raise BadArgument(tr("monitor.layer_options", layer=layer, options=options))
    strange = set(options) - {"alias", "record_type"}
    if strange:
        raise BadArgument(tr("monitor.unknown_key", layer=layer, map=min(map(str, strange))))
    alias = options.get("alias")
    if alias is not None and not isinstance(alias, str):
        raise BadArgument(tr("monitor.alias", layer=layer, alias=alias))
    return layer, alias, options.get("record_type") or "single"


def _missing(missing: list[str], known: list[str]) -> str:
    named = [name for name in known if name]
    near = {name: get_close_matches(name, named, n=3, cutoff=0.5) for name in missing}
    # The same name below another prefix is the commonest slip, and spelling alone ranks it low.
    for name, found in near.items():
        moved = [other for other in named if other.endswith(f".{name}") or name.endswith(f".{other}")]
        near[name] = list(dict.fromkeys([*moved[:3], *found]))[:3]
    hints = "".join(
        tr("monitor.nearest_to", name=name, found=", ".join(found)) for name, found in near.items() if found
    )
    return tr("monitor.layers_missing", missing=missing, hints=hints, named=named)
