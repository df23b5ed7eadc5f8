"""See inside any PyTorch model, wherever it runs, and find the first layer that goes wrong, and why.

    record       record tensors of a model into a run, and hand back a receipt of what really came
    Run          a run on disk: its sites, its table, its tensors
    bake         a model whose taps are outputs of its graph: trace, export, compile it
    open_target  anything that can be run with taps: `file.py:factory`, `hf:PATH`, TorchScript, `.pt2`, ONNX, OpenVINO
    diff         two runs, one verdict: identical, noise, fault or inconclusive
    find_fault   two live models, one culprit: the module that goes wrong, and why
    audit        a model against a checkpoint, tensor by tensor: what is in it, and what was lost on the way
    prune        a model without some of its branches: gone round, or removed
    Monitor      chosen layers at chosen epochs and batches of a training loop
    watch        a training loop recorded from outside, with triggers; never in its way
    sweep        one input through many modes, each in a clean process: what every switch does to the numbers
    Site         where a tensor comes from, `path:role.leaf@call`

Read `site.py` first. Nothing here imports torch until a name that needs it is used: a laptop reads a cluster's run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from layertap.result import register

if TYPE_CHECKING:
    from layertap.capture import bake, record
    from layertap.compare import diff
    from layertap.fault import find_fault
    from layertap.monitor import Monitor
    from layertap.site import Site
    from layertap.store import Run
    from layertap.sweeping import sweep
    from layertap.targets import open_target
    from layertap.watching import watch
    from layertap.weights import audit, prune

__all__ = [
    "Monitor",
    "Run",
    "Site",
    "audit",
    "bake",
    "diff",
    "find_fault",
    "open_target",
    "prune",
    "record",
    "sweep",
    "watch",
]
__version__ = "0.1.0"

_PACKAGES = {
    "Monitor": "layertap.monitor",
    "Run": "layertap.store",
    "Site": "layertap.site",
    "audit": "layertap.weights",
    "bake": "layertap.capture",
    "diff": "layertap.compare",
    "find_fault": "layertap.fault",
    "open_target": "layertap.targets",
    "prune": "layertap.weights",
    "record": "layertap.capture",
    "sweep": "layertap.sweeping",
    "watch": "layertap.watching",
}


# Who renders which result: named here, loaded when a result is shown.
register("Report", text="layertap.report.diff:report_text", dict="layertap.report.diff:report_dict")
register("TrainingReport", text="layertap.report.training:training_text", dict="layertap.report.training:training_dict")
register("Finding", text="layertap.report.finding:finding_text", dict="layertap.report.finding:finding_dict")
register("Receipt", text="layertap.report.receipt:receipt_text")
register("Sweep", text="layertap.report.sweep:sweep_text", dict="layertap.report.sweep:sweep_dict")
register("Audit", text="layertap.weights.text:audit_text")
for _kind in ("Run", "Report", "TrainingReport", "Finding", "Audit", "Knockout", "Diagnosis", "Sweep"):
    register(
        _kind,
        html="layertap.report.page:html_of",
        notebook="layertap.report.page:notebook_of",
        markdown="layertap.report.page:markdown_of",
    )


def __getattr__(name: str) -> Any:
    if name not in _PACKAGES:
        raise AttributeError(f"layertap has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_PACKAGES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
