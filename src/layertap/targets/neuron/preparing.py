"""Before compiling: which modules the device shall hand out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from layertap.errors import BadArgument, MissingExtra
from layertap.formats.neuron import to_neuron
from layertap.messages import tr
from layertap.result import Note
from layertap.select import select

CONFIG = "neuronx_distributed_inference.models.config"
_NUMBERS = re.compile(r"\[([^\]]*)\]|\*")


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturePlan:
    """What was set, in words; print it."""

    sites: tuple[str, ...]
    """As Hugging Face calls the modules."""
    modules: tuple[str, ...]
    """As NxD Inference does, in the order in which their tensors will come."""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.modules:
            return Note("neuron.plan_nothing")
        head = Note("neuron.plan", count=len(self.modules))
        return "\n".join([head, *(tr("report.note_line", note=note) for note in self.notes)])


def prepare(
    neuron_config: Any,
    sites: str | Sequence[str] | None = None,
    *,
    record_layer_outputs: bool = False,
    num_layers: int | None = None,
    model: Any = None,
    capture_inputs: bool = False,
    classes: Any = None,
) -> CapturePlan:
    """Sets the fields of a `NeuronConfig` (or one of its kind) without which captures come back as nothing.

        neuron_config = MoENeuronConfig(tp_degree=64, …)
        print(neuron.prepare(neuron_config, record_layer_outputs=True, num_layers=62))    # embedding and all layers
        neuron.prepare(neuron_config, ["model.layers.[0,30,61]", "model.norm"])
        app = NeuronMiniMaxM2ForCausalLM(path, config); app.compile(traced_path)

    `sites` are Hugging Face paths, with lists of numbers; any pattern, if `model` is given (a Hugging Face model, maybe
    on the meta device). `classes` is the module of NxD Inference's configuration classes, which is imported otherwise.
    """
    paths = _paths(sites, num_layers, model)
    if record_layer_outputs:
        count = num_layers if num_layers is not None else _layers_of(model)
        paths = ["model.embed_tokens", *(f"model.layers.{number}" for number in range(count)), *paths]
    paths = list(dict.fromkeys(paths))
    if not paths:
        return CapturePlan(sites=(), modules=())
    classes = classes if classes is not None else _classes()
    modules = tuple(dict.fromkeys(module for path in paths for module in to_neuron(path, neuron_config)))
    neuron_config.tensor_capture_config = classes.TensorCaptureConfig(
        modules_to_capture=list(modules), capture_inputs=capture_inputs
    )
    notes: list[str] = []
    # Each alone fails silently: without logits on the device the captures come back as None.
    neuron_config.output_logits = True
    if getattr(neuron_config, "on_device_sampling_config", None) is None:
        neuron_config.on_device_sampling_config = classes.OnDeviceSamplingConfig()
        notes.append(Note("neuron.sampling_on"))
    notes += [text for holds, text in _warnings(neuron_config, paths) if holds]
    return CapturePlan(sites=tuple(paths), modules=modules, notes=tuple(notes))


def _warnings(config: Any, paths: Sequence[str]) -> list[tuple[bool, str]]:
    """What a configuration does to captures, and whether it is this one."""

    def on(*names: str) -> bool:
        return any(bool(getattr(config, name, False)) for name in names)

    degree = int(getattr(config, "tp_degree", 1) or 1)
    kernels = ("qkv_kernel_enabled", "qkv_nki_kernel_enabled", "mlp_kernel_enabled", "moe_fused_nki_kernel_enabled")
    ends = tuple(path.rpartition(".")[2] for path in paths)
    return [
        (
            on("enable_bucketing"),
            Note("neuron.bucketing"),
        ),
        (degree > 1, Note("neuron.tp", degree=degree)),
        (
            degree > 1 and "experts" in ends,
            Note("neuron.experts"),
        ),
        (
            on("sequence_parallel_enabled"),
            Note("neuron.sequence_parallel"),
        ),
        (
            on("qkv_kernel_fuse_residual_add") and any(end.isdigit() for end in ends),
            Note("neuron.fused_residual"),
        ),
        (
            on(*kernels),
            Note("neuron.fused_kernels"),
        ),
        (
            on("async_mode"),
            Note("neuron.async_mode"),
        ),
        ("lm_head" in ends, Note("neuron.lm_head")),
    ]


def _paths(sites: str | Sequence[str] | None, num_layers: int | None, model: Any) -> list[str]:
    if sites is None:
        return []
    asked = [sites] if isinstance(sites, str) else list(sites)
    if model is not None:
        return list(select(model, asked).paths)
    return [path for text in asked for path in _expanded(text, num_layers)]


def _expanded(text: str, num_layers: int | None) -> list[str]:
    """`model.layers.[0,30,61]` and `model.layers.*` as paths."""
    found = _NUMBERS.search(text)
    if found is None:
        return [text]
    if found[0] == "*":
        if num_layers is None:
            raise BadArgument(tr("neuron.needs_layers", text=text))
        numbers = [str(number) for number in range(num_layers)]
    else:
        numbers = [part.strip() for part in found[1].split(",")]
        if not all(number.isdigit() for number in numbers):
            raise BadArgument(tr("neuron.only_lists", text=text))
    return [text[: found.start()] + number + text[found.end() :] for number in numbers]


def _layers_of(model: Any) -> int:
    count = getattr(getattr(model, "config", None), "num_hidden_layers", None)
    if not isinstance(count, int):
        raise BadArgument(tr("neuron.layer_outputs"))
    return count


def _classes() -> Any:
    try:
        return import_module(CONFIG)
    except ImportError as error:
        raise MissingExtra(tr("neuron.needs_nxdi")) from error
