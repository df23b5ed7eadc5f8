"""One input through many modes, each in a clean process of its own; and what every switch does to the numbers.

sweep        the whole of it: plan, run what is not there yet, compare, judge (running.py: read this first)
definition   what is to be run, read from TOML (values: checked one by one); task: one mode of it as JSON, and its hash
environment  all that a mode's process sees; processes: how many at once (memory), and what became of each
jobs_by_engine  the same processes, started by the workers of a Ray cluster
worker       the other side: recording, opening, quantising, batches, ends, evidence, grids, tokens
comparing    every mode against every other; ideal: what so many bits can do; language: two models by what they say
judging      the result; sharing: identical tensors lie on the disk once
sensitivity  which layers matter: teaching and ranking, in processes of their own
explaining   find_fault between two modes
exports      one layer's input and output in every mode as .npz, JSON and a histogram
result       Sweep, ModeResult, SiteRow, Tokens, Sensitivity, Answer, Explanation
"""

from layertap.sweeping.definition import Definition, ModeDefinition, read_definition
from layertap.sweeping.result import Explanation, Matrix, ModeResult, Sensitivity, SiteRow, Sweep, Tokens
from layertap.sweeping.running import read_sweep, sweep

__all__ = [
    "Definition",
    "Explanation",
    "Matrix",
    "ModeDefinition",
    "ModeResult",
    "Sensitivity",
    "SiteRow",
    "Sweep",
    "Tokens",
    "read_definition",
    "read_sweep",
    "sweep",
]
