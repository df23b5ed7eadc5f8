"""One sound example of each file that describing, auditing, sweeping and watching read."""

from __future__ import annotations

import io
import json
import warnings
from contextlib import redirect_stdout
from pathlib import Path

import gguf
import numpy as np
import torch
import torch.distributed.checkpoint as checkpoint
from safetensors.torch import save_file

import layertap as lt
from layertap.store import RunWriter
from layertap.sweeping.result import Matrix, ModeResult, SiteRow, Sweep
from layertap.watching.trigger_report import TriggerReport
from layertap.weights import fingerprints, save_pruned
from store.making import kept, receipt

LAYERS = 3


class Net(torch.nn.Module):
    """Small, and of every kind of name that a reader takes apart."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(LAYERS))
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)


def net() -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net().eval()


def make_programs(folder: Path) -> None:
    """Writes each of them into a folder of its own."""
    model, x = net(), torch.ones(1, 4)
    for name in ["torchscript", "exported", "torchfile", "fingerprints", "inputs", "sweep", "modes", "watched", "gguf"]:
        (folder / name).mkdir()
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(model, x), folder / "torchscript" / "net.pt")
        torch.export.save(torch.export.export(model, (x,)), folder / "exported" / "net.pt2")
    torch.save(model.state_dict(), folder / "torchfile" / "pytorch_model.bin")
    _gguf(folder / "gguf" / "net.gguf", model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint.save(model.state_dict(), checkpoint_id=folder / "distributed", no_dist=True)
    fingerprints(model).to_json(folder / "fingerprints" / "model.json")
    np.savez(folder / "inputs" / "x.npz", x=x.numpy())
    save_file({"x": x}, folder / "inputs" / "x.safetensors")
    (folder / "inputs" / "x.json").write_text(json.dumps({"x": [[1.0, 2.0, 3.0, 4.0]]}))
    torch.save({"x": x}, folder / "inputs" / "x.pt")
    (folder / "sweep" / "sweep.json").write_text(json.dumps(_sweep().to_dict()))
    _definitions(folder / "modes")
    pruned = lt.prune(net(), {"layers.1": "skip"}, inputs=(x,))
    save_pruned(pruned, folder / "pruning", inputs=(x,))
    _watched(folder / "watched")


def _gguf(path: Path, model: Net) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    for name, value in model.state_dict().items():
        writer.add_tensor(name, value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _sweep() -> Sweep:
    numbers = {"error": 0.25, "floor": 0.5, "ratio": 0.5, "sqnr": 12.0, "ideal_sqnr": 40.0, "stands_out": 1.0}
    row = SiteRow(site="layers.0", kind="Linear", order=0, verdict="noise", floor_kind="modelled", **numbers)
    modes = {
        name: ModeResult(name=name, path="", rows=(row,), dtypes={"float32": "parameters"}) for name in ("fp32", "int8")
    }
    return Sweep(
        name="modes.toml",
        target="net.py:make",
        folder="runs",
        reference="fp32",
        verdict="noise",
        modes=modes,
        groups=(("fp32",), ("int8",)),
        matrix=Matrix({"fp32": {"int8": {"layers.0": 0.25}}}),
    )


def _definitions(folder: Path) -> None:
    (folder / "modes.toml").write_text(
        "target = 'net.py:make'\nreference = 'fp32'\njobs = 1\n[modes.fp32]\n[modes.'2-0']\nenv = { SCAN = 'torch' }\n"
    )


def _watched(folder: Path) -> None:
    writer = RunWriter(folder / "run", info={"model": "Toy"}, durability="none")
    for step in range(3):
        for site in range(2):
            writer.add(*kept(np.full((2, 2), step + site, np.float32), f"layers.{site}", step, order=site))
    writer.close(receipt())
    lines = [json.dumps({"step": step, "loss": 1.0 / (step + 1)}) for step in range(3)]
    (folder / "run" / "scalars.jsonl").write_text("\n".join(lines))
    told = TriggerReport(
        rule="loss_spike",
        reason="loss 3 is above 2",
        step=2,
        epoch=None,
        batch=None,
        rank=0,
        birth=None,
        loss=3.0,
        inputs=({"name": "x", "shape": [1, 4], "dtype": "float32", "fingerprint": "00"},),
        steps=(1, 2),
    )
    (folder / "run" / "triggers").mkdir()
    (folder / "run" / "triggers" / "000002.json").write_text(json.dumps(told.to_dict()))
