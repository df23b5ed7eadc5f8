"""Runs a saved artefact, in this process or in one that has never seen the model.

    python -m benchmarks.routes.fresh KIND ARTEFACT INPUTS.npz RESULT.npz

Nothing here imports torch but the formats that are torch's own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from layertap.store import Layout

Arrays = Mapping[str, Any]
Run = Callable[[Arrays], list[Any]]


def _torch_inputs(inputs: Arrays) -> dict[str, Any]:
    import torch

    return {name: torch.as_tensor(value) for name, value in inputs.items()}


def torchscript(path: Path) -> Run:
    import torch

    module = torch.jit.load(path)
    return lambda inputs: list(module(**_torch_inputs(inputs)))


def exported(path: Path) -> Run:
    import torch

    module = torch.export.load(path).module()
    return lambda inputs: list(module(**_torch_inputs(inputs)))


def aoti(path: Path) -> Run:
    import torch

    module = torch._inductor.aoti_load_package(str(path))
    return lambda inputs: list(module(**_torch_inputs(inputs)))


def onnx(path: Path) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    return lambda inputs: list(session.run(None, {name: np.asarray(inputs[name]) for name in names}))


def openvino(path: Path) -> Run:
    import openvino as ov

    # Without the hint a CPU that has bf16 uses it, and says nothing.
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    model = ov.Core().compile_model(str(path), "CPU", settings)

    def run(inputs: Arrays) -> list[Any]:
        found = model({given.any_name: np.asarray(inputs[given.any_name]) for given in model.inputs})
        return [np.array(found[place]) for place in range(len(model.outputs))]

    return run


def iree(path: Path) -> Run:
    from iree import runtime

    config = runtime.Config("local-sync")
    module = runtime.load_vm_module(runtime.VmModule.copy_buffer(config.vm_instance, path.read_bytes()), config)

    def run(inputs: Arrays) -> list[Any]:
        found = module.main(*[np.asarray(value) for value in inputs.values()])
        return [value.to_host() for value in (found if isinstance(found, (tuple, list)) else [found])]

    return run


KINDS: dict[str, Callable[[Path], Run]] = {
    kind.__name__: kind for kind in (torchscript, exported, aoti, onnx, openvino, iree)
}
WITHOUT_TORCH = ("onnx", "openvino", "iree")


def main(kind: str, artefact: str, inputs: str, result: str) -> None:
    run = KINDS[kind](Path(artefact))
    with np.load(inputs) as arrays:
        raw = run({name: arrays[name] for name in arrays.files})
    output, taps = Layout.load(artefact).split([_array(value) for value in raw])
    if kind in WITHOUT_TORCH and "torch" in sys.modules:
        raise SystemExit(f"{kind} is to run without torch, and something imported it")
    np.savez(result, **{str(site): value for site, value in taps.items()}, __output__=type(output).__name__)


def _array(value: Any) -> Any:
    return value.detach().numpy() if hasattr(value, "detach") else np.asarray(value)


if __name__ == "__main__":
    main(*sys.argv[1:])
