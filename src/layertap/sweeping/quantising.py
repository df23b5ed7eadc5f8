"""torchao's configurations by name, applied to a model in place."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from layertap.errors import BadArgument, MissingExtra, TargetError
from layertap.messages import tr

NAMES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "int8_weight_only": ("Int8WeightOnlyConfig", {}),
    "int8_dynamic": ("Int8DynamicActivationInt8WeightConfig", {}),
    "int4_weight_only": ("IntxWeightOnlyConfig", {"weight_dtype": "int4", "group_size": 32}),
    "int4_tinygemm": ("Int4WeightOnlyConfig", {}),
    "int8_dynamic_int4": ("Int8DynamicActivationIntxWeightConfig", {"weight_dtype": "int4", "group_size": 32}),
    "float8_weight_only": ("Float8WeightOnlyConfig", {}),
    "float8_dynamic": ("Float8DynamicActivationFloat8WeightConfig", {}),
}
"""Short names; any configuration of torchao.quantization is also taken by its own name."""
_SAME = {
    "int8wo": "int8_weight_only",
    "int8dq": "int8_dynamic",
    "int8_dynamic_activation_int8_weight": "int8_dynamic",
    "int4wo": "int4_weight_only",
    "int8_dynamic_activation_int4_weight": "int8_dynamic_int4",
    "float8wo": "float8_weight_only",
    "float8dq": "float8_dynamic",
    "float8_dynamic_activation_float8_weight": "float8_dynamic",
}
_GROUPED = ("IntxWeightOnlyConfig", "Int8DynamicActivationIntxWeightConfig")


def quantise(model: nn.Module, spec: str | Mapping[str, Any], ignore: Sequence[str] = ()) -> tuple[str, ...]:
    """Quantises the linear layers of a model in place; returns their paths.

    A TargetError where nothing was quantised: such a mode would be the float model under another name.
    """
    config = configuration(spec)
    chosen = _filter(ignore)
    wanted = [name for name, module in model.named_modules() if chosen(module, name)]
    before = {name: type(model.get_submodule(name).weight) for name in wanted}
    try:
        _torchao().quantize_(model, config, filter_fn=chosen)
    except Exception as error:
        raise TargetError(
            f"quantize = {shown(spec)}: torchao: {type(error).__name__}: {str(error).splitlines()[0]}"
        ) from error
    done = tuple(name for name in wanted if _changed(model.get_submodule(name), before[name]))
    if not done:
        raise TargetError(
            tr("sweeping.quantised_none", spec=shown(spec), count=len(wanted))
            + (tr("sweeping.ignore_all") if ignore and not wanted else tr("sweeping.sizes"))
        )
    return done


def configuration(spec: str | Mapping[str, Any]) -> Any:
    """The torchao configuration of a name, or of a table `{config = …, option = …}`."""
    name = spec if isinstance(spec, str) else str(spec["config"])
    options = {} if isinstance(spec, str) else {key: value for key, value in spec.items() if key != "config"}
    short = name.lower().replace("-", "_")
    short = _SAME.get(short, short)
    kind, usual = NAMES.get(short, (name, {}))
    torchao = _torchao()
    made = getattr(torchao, kind, None)
    if made is None or not kind.endswith("Config"):
        known = [*NAMES, *sorted(one for one in dir(torchao) if one.endswith("Config"))]
        near = difflib.get_close_matches(name, known, n=2, cutoff=0.4)
        hint = tr("sweeping.did_you_mean_name", near=" or ".join(near)) if near else ""
        raise BadArgument(tr("sweeping.torchao_config", name=name, hint=hint, names=", ".join(NAMES)))
    values = {key: _value(key, value) for key, value in {**usual, **options}.items()}
    if kind in _GROUPED and "group_size" in values:
        size = values.pop("group_size")
        values["granularity" if kind == _GROUPED[0] else "weight_granularity"] = torchao.PerGroup(size)
    try:
        return made(**values)
    except TypeError as error:
        raise BadArgument(f"quantize = {shown(spec)}: {error}") from error


def shown(spec: str | Mapping[str, Any]) -> str:
    """A configuration as the user wrote it."""
    return repr(spec) if isinstance(spec, str) else str(dict(spec))


def _value(key: str, value: Any) -> Any:
    if isinstance(value, str) and key.endswith("dtype") and isinstance(getattr(torch, value, None), torch.dtype):
        return getattr(torch, value)
    return value


def _filter(ignore: Sequence[str]) -> Callable[[nn.Module, str], bool]:
    def chosen(module: nn.Module, name: str) -> bool:
        return isinstance(module, nn.Linear) and not any(_named(name, pattern) for pattern in ignore)

    return chosen


def _named(name: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.fullmatch(pattern.removeprefix("re:"), name) is not None
    return name == pattern or name.startswith(f"{pattern}.")


def _changed(module: Any, before: type) -> bool:
    return not isinstance(module, nn.Linear) or type(module.weight) is not before


def _torchao() -> Any:
    try:
        import torchao.quantization
    except ImportError as error:
        raise MissingExtra(tr("sweeping.torchao")) from error
    return torchao.quantization
