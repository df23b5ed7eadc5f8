"""The routes: from a module and example inputs to something that can be run."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.routes import fresh
from torch import nn

Inputs = dict[str, torch.Tensor]
Run = Callable[[Inputs], Any]


@dataclass(frozen=True)
class Route:
    """One way to compile."""

    name: str
    build: Callable[[nn.Module, Inputs, Path], Any]
    """Gives something to call, or the path of an artefact if there is a `kind`."""
    kind: str = ""
    """How fresh.py runs the artefact; empty where nothing is saved."""

    def run(self, module: nn.Module, inputs: Inputs, folder: Path) -> tuple[Run, Path | None]:
        """Compiles the module on these inputs; the artefact, if there is one, is loaded again before it is run."""
        with quiet(), torch.no_grad():
            built = self.build(module, inputs, folder)
        if self.kind:
            with quiet():
                return _without_gradients(fresh.KINDS[self.kind](built)), built
        return _without_gradients(lambda given: built(**given)), None


def _without_gradients(run: Run) -> Run:
    def ran(inputs: Inputs) -> Any:
        with torch.no_grad():
            return run(inputs)

    return ran


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Compilers talk a lot; what goes wrong is raised all the same."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def trace(module: nn.Module, inputs: Inputs, folder: Path) -> Any:
    return torch.jit.trace(module, example_kwarg_inputs=inputs, check_trace=False)


def trace_saved(module: nn.Module, inputs: Inputs, folder: Path) -> Path:
    torch.jit.save(trace(module, inputs, folder), folder / "traced.pt")
    return folder / "traced.pt"


def trace_frozen(module: nn.Module, inputs: Inputs, folder: Path) -> Path:
    torch.jit.save(torch.jit.freeze(trace(module, inputs, folder).eval()), folder / "frozen.pt")
    return folder / "frozen.pt"


def export(module: nn.Module, inputs: Inputs, folder: Path, *, strict: bool = False) -> Any:
    return torch.export.export(module, (), inputs, strict=strict)


def export_saved(module: nn.Module, inputs: Inputs, folder: Path) -> Path:
    torch.export.save(export(module, inputs, folder), folder / "exported.pt2")
    return folder / "exported.pt2"


def compiled(backend: str) -> Callable[[nn.Module, Inputs, Path], Any]:
    def build(module: nn.Module, inputs: Inputs, folder: Path) -> Any:
        made = torch.compile(module, backend=backend, fullgraph=True)
        made(**inputs)
        return made

    return build


def aoti(module: nn.Module, inputs: Inputs, folder: Path) -> Path:
    package = str(folder / "package.pt2")
    torch._inductor.aoti_compile_and_package(export(module, inputs, folder), package_path=package)
    return Path(package)


def onnx(module: nn.Module, inputs: Inputs, folder: Path) -> Path:
    torch.onnx.export(module, (), folder / "model.onnx", kwargs=inputs, dynamo=True, verbose=False)
    return folder / "model.onnx"


def openvino(module: nn.Module, inputs: Inputs, folder: Path) -> Path:
    import openvino as ov

    ov.save_model(ov.convert_model(onnx(module, inputs, folder)), folder / "model.xml", compress_to_fp16=False)
    return folder / "model.xml"


def iree(module: nn.Module, inputs: Inputs, folder: Path) -> Path:
    from iree import compiler
    from iree.turbine import aot

    # Its importer lacks some of torch's larger operations; taken apart they are known to it.
    aot.export(export(module, inputs, folder).run_decompositions()).save_mlir(folder / "model.mlir")
    compiler.compile_file(
        str(folder / "model.mlir"),
        target_backends=["llvm-cpu"],
        extra_args=["--iree-llvmcpu-target-cpu=host"],
        output_file=str(folder / "model.vmfb"),
    )
    return folder / "model.vmfb"


ROUTES = (
    Route("jit.trace", trace),
    Route("jit.trace saved", trace_saved, "torchscript"),
    Route("jit.trace frozen", trace_frozen, "torchscript"),
    Route("export", lambda *given: export(*given).module()),
    Route("export strict", lambda *given: export(*given, strict=True).module()),
    Route("export decomposed", lambda *given: export(*given).run_decompositions().module()),
    Route("export saved", export_saved, "exported"),
    Route("compile eager", compiled("eager")),
    Route("compile aot_eager", compiled("aot_eager")),
    Route("compile inductor", compiled("inductor")),
    Route("AOTInductor", aoti, "aoti"),
    Route("ONNX Runtime", onnx, "onnx"),
    Route("OpenVINO", openvino, "openvino"),
    Route("IREE", iree, "iree"),
)
