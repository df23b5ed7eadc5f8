"""A folder that NxD Inference's own capture hook wrote on a Neuron device.

    captured_tensors_cte_step_1_module_layers.0_output.pt     one tensor of one module at one step
    captured_tensors_tkg_step_2_module_layers.0_input.pt      its input, where capture_inputs was on
    captured_tensors_tkg_step_2_manual_tensor_0.pt            registered by hand; it has no module
    capture_metadata.json                                     the same as JSON

The hook calls step 1 `cte` (the prompt) and every later one `tkg` (a token), counts on from one prompt to the next, and
writes what it is given: a placeholder of one zero for a module that was never hit, NaN where there was nothing.
"""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layertap.errors import CorruptRun
from layertap.formats.safe_load import ForeignFiles, listed, load_pt, record_of, regular
from layertap.messages import tr
from layertap.result import Note
from layertap.site import Record, Site, natural_key
from layertap.store.run import Run

if TYPE_CHECKING:
    import torch

_FILE = re.compile(
    r"captured_tensors_(?P<phase>cte|ctx|tkg)_step_(?P<step>\d+)_"
    r"(?:module_(?P<module>.+?)(?:[._](?P<role>output|input)s?(?:_(?P<leaf>\w+))?)?|manual_tensor_(?P<manual>\d+))\.pt"
)
EQUIVALENT = {
    "mlp.gate": "mlp.router.linear_router",
    "mlp.experts": "mlp.expert_mlps",
    "mlp.router": "feed_forward.moe.router.linear_router",
    "block_sparse_moe.gate": "block_sparse_moe.router.linear_router",
    "block_sparse_moe.experts": "block_sparse_moe.expert_mlps",
    "self_attn.q_proj": "self_attn.qkv_proj.q_proj",
    "self_attn.k_proj": "self_attn.qkv_proj.k_proj",
    "self_attn.v_proj": "self_attn.qkv_proj.v_proj",
    "self_attn.o_proj": "self_attn.o_proj.o_proj",
    "self_attn.q_norm": "self_attn.q_layernorm",
    "self_attn.k_norm": "self_attn.k_layernorm",
}
"""How Hugging Face's modules are called there, by the ends of their paths."""
_HOLDS = {
    "mlp.router": "mlp.gate",
    "block_sparse_moe.router": "block_sparse_moe.gate",
    "self_attn.qkv_proj": "self_attn.q_proj",
    "feed_forward.moe.router": "mlp.router",
    "feed_forward.moe.expert_mlps": "mlp.experts",
    "feed_forward.moe": "mlp",
}
"""Modules there whose first output, which is all that is captured, is that of one of Hugging Face's."""
_STAGE = re.compile(r"\.(?:cte|tkg)_(qkv_proj|o_proj|mlp)(?=\.|$)")
"""Where prompt and tokens run on other groups of ranks, a module is there twice."""
_OUTSIDE = ("lm_head",)
"""What Hugging Face has beside `model.`, not in it."""


def to_neuron(path: str, config: Any = None) -> tuple[str, ...]:
    """The modules of NxD Inference that hold what a Hugging Face module returns; `config` is the NeuronConfig.

    >>> to_neuron("model.layers.3.mlp.gate"), to_neuron("model.embed_tokens"), to_neuron("lm_head")
    (('layers.3.mlp.router.linear_router',), ('embed_tokens',), ('lm_head',))
    """
    path = path.removeprefix("model.")
    for ours, theirs in EQUIVALENT.items():
        if path.endswith(f".{ours}"):
            path = path.removesuffix(ours) + theirs
            break
    if getattr(config, "fused_qkv", False):
        # One projection for all three, of which the wrapper around it returns the queries first.
        path = re.sub(r"\.qkv_proj\.q_proj$", ".qkv_proj", path)
        path = re.sub(r"\.qkv_proj\.[kv]_proj$", ".qkv_proj.Wqkv", path)
    attention, feed_forward = _stages(config)
    for names, twice in ((r"qkv_proj|o_proj", attention), (r"mlp", feed_forward)):
        found = re.search(rf"\.({names})(?=\.|$)", path) if twice else None
        if found:
            at = found.start(1)
            return tuple(f"{path[:at]}{stage}_{path[at:]}" for stage in ("cte", "tkg"))
    return (path,)


def to_hf(path: str) -> str:
    """The way back.

    >>> to_hf("layers.3.self_attn.tkg_o_proj.o_proj"), to_hf("norm"), to_hf("lm_head")
    ('model.layers.3.self_attn.o_proj', 'model.norm', 'lm_head')
    """
    path = _STAGE.sub(r".\1", path)
    for ours, theirs in (*EQUIVALENT.items(), *((ours, theirs) for theirs, ours in _HOLDS.items())):
        if path.endswith(f".{theirs}"):
            path = path.removesuffix(theirs) + ours
            break
    return path if path.split(".")[0] in _OUTSIDE or path.startswith("model.") else f"model.{path}"


def _stages(config: Any) -> tuple[bool, bool]:
    """Whether attention, and the feed-forward network, are there once for the prompt and once for tokens."""
    context, data, feed_forward = (
        int(getattr(config, name, 1) or 1) for name in ("cp_degree", "attention_dp_degree", "mlp_cp_degree")
    )
    return (context > 1 or data > 1) and context != data, feed_forward > 1


def no_capture(tensor: torch.Tensor) -> str:
    """Why a tensor is no capture, or the empty string: a placeholder, or padding."""
    if is_padding(tensor):
        return Note("neuron.padding")
    return Note("neuron.placeholder") if _single(tensor) == 0 else ""


def is_padding(tensor: torch.Tensor) -> bool:
    """Whether a tensor only fills a place of the list: one NaN."""
    value = _single(tensor)
    return value is not None and value != value


def _single(tensor: torch.Tensor) -> float | None:
    return float(tensor.reshape(-1)[0]) if tensor.numel() == 1 and tensor.ndim < 2 else None


def is_neuron_file(name: str) -> bool:
    """Whether a file name belongs to this layout.

    >>> is_neuron_file("captured_tensors_cte_step_1_module_layers.0_output.pt"), is_neuron_file("layer_1_output.pt")
    (True, False)
    """
    return _FILE.fullmatch(name) is not None


def read_neuron(path: str | os.PathLike[str]) -> Run:
    """Reads such a folder; sites have Hugging Face's names, steps count from 0.

        run = read_neuron("captured_tensors")
        run["model.layers.0"].tensor()

    Placeholders and padding are no records: each is reported in `run.problems`, and so are tensors without a module.
    """
    folder = Path(path)
    foreign = ForeignFiles(folder, layout="neuron")
    phases: dict[str, str] = {}
    for name in sorted(listed(folder), key=natural_key):
        found = _FILE.fullmatch(name)
        if found is None:
            continue
        if found["module"] is None:
            foreign.problems.append(Note("formats.neuron_manual", value=folder / name))
            continue
        step = int(found["step"]) - 1
        phases[str(step)] = found["phase"]
        # The first tensor is what the device's own captures hold; a reference's further ones keep their numbers.
        leaf = found["leaf"] or ""
        site = Site(path=to_hf(found["module"]), role=found["role"] or "output", leaf="" if leaf == "0" else leaf)
        _take(foreign, site, folder / name, step)
    return foreign.run(_order, phases=phases, tensor_parallel=tr("formats.neuron_shard"))


def _take(foreign: ForeignFiles, site: Site, path: Path, step: int) -> None:
    import torch

    try:
        before = regular(path)
        tensor = load_pt(path)
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(tr("formats.a_expected_tensor", name=type(tensor).__name__))
        why = no_capture(tensor)
        if why:
            foreign.used.add(path)
            foreign.problems.append(Note("formats.site_step_why", path=path, site=site, step=step, why=why))
            return
        foreign.put(record_of(site, tensor, step=step), path, before, partial(load_pt, path))
    except CorruptRun as error:
        foreign.problems.append(str(error))
    except ValueError as error:
        foreign.problems.append(Note("formats.path_contains", path=path, error=error))


def _order(record: Record) -> tuple[object, ...]:
    path = record.site.path
    last = path.rpartition(".")[2]
    place = 0 if "embed" in path else 2 if last in ("norm", "lm_head") else 1
    return place, last == "lm_head", natural_key(path), record.site.role != "input"
