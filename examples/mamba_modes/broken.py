"""The same modes as a project had them whose fp32 mode was not FP32: two mistakes, and no error message.

One script sets the variables of one mode after the other and clears none of them; and it loads the INT8 checkpoint
whatever the mode is called.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from mixer import Settings
from model import build
from torch import nn

VARIABLES = {
    "fp32": {"MAMBA_MODEL": "fp32"},
    "0": {},
    "2-0": {"MAMBA_ROUND_TRIP": "1"},
    "2-1": {"MAMBA_SCAN": "torch", "MAMBA_ROUND_TRIP": "0"},
    "2-2": {"MAMBA_SCAN": "fp32"},
    "2-3": {"MAMBA_CONV": "fp32", "MAMBA_SCAN": "kernel"},
    "2-4": {"MAMBA_CONV": "fp32", "MAMBA_SCAN": "fp32"},
    "3": {"MAMBA_SCALES": "dynamic"},
}


def make(mode: str, pretrained_dir: str = "checkpoints") -> nn.Module:
    """What the script has set when it comes to the mode."""
    for name, variables in VARIABLES.items():
        os.environ.update(variables)
        if name == mode:
            break
    how = Settings.of(os.environ)
    return build(Path(__file__).parent / pretrained_dir, replace(how, model="w8a8"))
