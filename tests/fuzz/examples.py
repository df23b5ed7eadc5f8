"""One sound example of everything that is read, small, so that many damaged copies of it can be read."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from formats.foreign import recorded
from fuzz.programs import make_programs
from layertap.formats import export
from layertap.store import RunWriter
from layertap.testing import save_golden
from store.making import kept, receipt

VALUES = [torch.linspace(-1, 1, 12).reshape(3, 4) * (n + 1) for n in range(4)]


def make(folder: Path) -> None:
    """Writes each example into a folder of its own."""
    for name in ("run", "reference"):
        _run(folder / name)
    source = recorded(["model.layers.0", "model.layers.1", "model.norm"], steps=1, input_ids=torch.tensor([[1, 2, 3]]))
    for layout in ("layers", "monitor"):
        export(source, folder / layout, layout)
    export(source, folder / "npz" / "io.npz", "npz", names={"model.layers.0": "output"})
    for name in ("neuron", "golden", "mapping", "watch", "npy", "safetensors", "polygraphy", "nested", "checkpoint"):
        (folder / name).mkdir()
    for layer in range(3):
        name = f"captured_tensors_cte_step_1_module_layers.{layer}_output.pt"
        torch.save(torch.randn(2, 3), folder / "neuron" / name)
    save_golden(recorded(["model.layers.0", "model.layers.1"]), folder / "golden" / "g.layertap")
    _text(folder / "mapping" / "m.json", {r"layer_(\d+)": r"model.layers.\1", "a": {"to": "b"}})
    (folder / "mapping" / "m.toml").write_text("'layer_(\\d+)' = 'model.layers.\\1'\n")
    _text(folder / "watch" / "w.json", {"sites": ["layers.*"], "ring": 5, "what": ["output"]})
    (folder / "watch" / "w.toml").write_text("[watch]\nsites = ['layers.*']\nschedule = 'every 10'\nkeep = 'stats'\n")
    for n, value in enumerate(VALUES):
        np.save(folder / "npy" / f"layer_{n}.npy", value.numpy())
    save_file({f"layers.{n}": value for n, value in enumerate(VALUES)}, folder / "safetensors" / "states.safetensors")
    nest = {"layers": {str(n): {"output": value, "input": (value - 1, None)} for n, value in enumerate(VALUES)}}
    torch.save({"prompt": "Hello", "input_ids": torch.arange(4)[None], **nest}, folder / "nested" / "nested.pt")
    _msprobe(folder / "msprobe" / "step0" / "rank0")
    _sglang(folder / "sglang")
    _passes(folder / "passes" / "TP0_PP0_Rank0_pid17")
    _polygraphy(folder / "polygraphy" / "results.json")
    _checkpoint(folder / "checkpoint")
    make_programs(folder)


def _run(folder: Path) -> None:
    info = {"model": "Toy", "meta": {"mode": "bf16"}, "parameter_dtypes": ["bfloat16"]}
    writer = RunWriter(folder, info=info, durability="none")
    for step in range(2):
        for site in range(3):
            array = np.full((3, 4), step + site, np.float32)
            writer.add(*kept(array, f"layers.{site}", step, order=site))
        writer.commit()
    writer.close(receipt())


def _msprobe(folder: Path) -> None:
    data, tensors = {}, folder / "dump_tensor_data"
    tensors.mkdir(parents=True)
    for n, value in enumerate(VALUES):
        name = f"Module.layers.{n}.Linear.forward.0"
        numbers = {"Max": value.max(), "Min": value.min(), "Mean": value.mean(), "Norm": value.norm()}
        told = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [3, 4], "data_name": f"{name}.output.0.pt"}
        data[name] = {"input_args": [], "output": [told | {key: float(number) for key, number in numbers.items()}]}
        if n:  # of the first there are statistics alone
            torch.save(value, tensors / f"{name}.output.0.pt")
    _text(folder / "dump.json", {"task": "tensor", "level": "L0", "data": data})


def _sglang(folder: Path) -> None:
    folder.mkdir()
    for n, value in enumerate(VALUES):
        name = f"step=0___rank=0___dump_index={n + 1}___name=attn_output___layer_id={n}.pt"
        torch.save({"value": value, "meta": {"world_rank": 0}}, folder / name)


def _passes(folder: Path) -> None:
    folder.mkdir(parents=True)
    torch.save({"model.layers.0.mlp": VALUES[0], "model.layers.1.mlp": VALUES[1]}, folder / "Pass00000.pt")
    torch.save({"model.layers.0.mlp": VALUES[2], "lm_head": [VALUES[3], VALUES[0]]}, folder / "Pass00001.pt")


def _polygraphy(path: Path) -> None:
    outputs = {f"/layer{n}/Conv_output_0": {"values": _encoded(value)} for n, value in enumerate(VALUES)}
    step = {"outputs": outputs, "runtime": 0.1, "runner_name": "one", "polygraphy_class": "IterationResult"}
    _text(path, {"lst": [["one", [step, step]]], "polygraphy_class": "RunResults"})


def _encoded(value: torch.Tensor) -> dict[str, str]:
    raw = io.BytesIO()
    np.save(raw, value.numpy())
    return {"array": base64.b64encode(raw.getvalue()).decode(), "polygraphy_class": "ndarray"}


def _checkpoint(folder: Path) -> None:
    index = {}
    for n, value in enumerate(VALUES[:3]):
        name = f"model-{n + 1:05d}-of-00003.safetensors"
        save_file({f"layers.{n}.weight": value}, folder / name)
        index[f"layers.{n}.weight"] = name
    _text(folder / "model.safetensors.index.json", {"metadata": {"total_size": 144}, "weight_map": index})
    _text(folder / "config.json", {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 3})


def _text(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))
