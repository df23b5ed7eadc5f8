"""Anything that can be run with taps.

    open_target   `file.py:factory` or `hf:PATH` → Target
    Target        a model, the inputs that came with it, and `run`
    make_inputs   what to run it on: a prompt, a file, the factory's own inputs, or seeded random ids

Files: `target.py` holds the noun, `opening.py` reads the spec, `file.py` and `hf.py` open one kind each, `inputs.py`
makes inputs. None of them imports torch before it is used.
"""

from layertap.targets.inputs import make_inputs
from layertap.targets.opening import open_target
from layertap.targets.target import Inputs, Target

__all__ = ["Inputs", "Target", "make_inputs", "open_target"]
