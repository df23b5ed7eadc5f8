"""A pair of models with a known answer."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Set
from dataclasses import dataclass

import torch
from benchmarks.faultbench.families import Built, Inputs
from torch import nn

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def nothing(model: nn.Module) -> None:
    """The plant of a clean pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Reference, candidate and inputs, with what is wrong in the candidate and where."""

    name: str
    family: str
    dtype: str
    """The candidate's: fp32, bf16, fp16 or int8 (torchao, weights only)."""
    kind: str
    build: Callable[[], Built]
    """The reference in float32, and the inputs."""
    plant: Callable[[nn.Module], None] = nothing
    """Changes a float32 copy of the reference in place; the cast comes afterwards."""
    culprits: tuple[Set[str], ...] = ()
    """One set of acceptable module paths for each fault, in order of execution; empty for a clean pair."""
    causes: tuple[Set[str], ...] = ()
    """One set of acceptable causes for each fault."""
    planted: tuple[str, ...] = ()
    """The modules that were changed."""
    reference_dtype: str = "fp32"
    tiny: bool = False
    """Whether rounding explains a difference of this size: then noise is a right answer, a wrong culprit is not."""

    @property
    def clean(self) -> bool:
        return not self.culprits

    def make(self) -> tuple[nn.Module, nn.Module, Inputs]:
        """(reference, candidate, inputs)."""
        reference, inputs = self.build()
        candidate = copy.deepcopy(reference)
        self.plant(candidate)
        return cast(reference, self.reference_dtype), cast(candidate, self.dtype), inputs


def cast(model: nn.Module, dtype: str) -> nn.Module:
    """The model in that dtype, in place, as loaders do it: rotary frequencies stay in float32."""
    if dtype == "int8":
        return _quantised(model)
    frequencies = [(m, m.inv_freq, m.original_inv_freq) for m in model.modules() if hasattr(m, "original_inv_freq")]
    model.to(DTYPES[dtype])
    for module, now, original in frequencies:
        module.inv_freq, module.original_inv_freq = now, original
    return model


def _quantised(model: nn.Module) -> nn.Module:
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # torchao reports at length which kernels this machine does not have
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torchao.quantization import Int8WeightOnlyConfig, quantize_

            quantize_(model, Int8WeightOnlyConfig(), filter_fn=_quantisable)
    finally:
        logging.disable(level)
    return model


def _quantisable(module: nn.Module, path: str) -> bool:
    # Mamba multiplies by dt_proj.weight itself, which a quantised tensor does not take part in.
    return isinstance(module, nn.Linear) and not path.endswith("dt_proj")
