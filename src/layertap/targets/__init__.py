"""Anything that can be run with taps.

    open_target   `file.py:factory`, `hf:PATH`, TorchScript, `.pt2`, `.onnx`, OpenVINO IR → Target
    Target        a model, the inputs that came with it, `sites`, `run`, `describe`, `save`
    make_inputs   what to run it on: a prompt, a file, the factory's own inputs, or seeded random ids
    neuron        models compiled by NxD Inference: prepare before compiling, decode what comes back

Files: `target.py` holds the noun, `opening.py` reads the spec, `file.py` and `hf.py` open one kind each, `inputs.py`
makes inputs. A compiled file is read by a `Reader` (`torchscript.py`; `exported.py`, `onnx_file.py`, `openvino_ir.py`,
which share `scopes.py`; `baked_file.py`) and becomes a tree of modules in `shadow.py`; `trust.py` asks whether its
captures are real, `opaque.py` names files in which nothing can be seen. None imports torch before it is used.
"""

from layertap.targets.inputs import make_inputs
from layertap.targets.opening import ARTEFACTS, open_target
from layertap.targets.target import Description, Inputs, Target

__all__ = ["ARTEFACTS", "Description", "Inputs", "Target", "make_inputs", "open_target"]
