"""Recording one mode, in its own process: its run, what its output was, and what it really computed in."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from layertap.capture import record
from layertap.capture.leaves import leaves
from layertap.select.tree import Tree
from layertap.sweeping.batches import Batches
from layertap.sweeping.ends import resolve_sites
from layertap.sweeping.evidence import evidence_of, fingerprints
from layertap.sweeping.identity import identity
from layertap.sweeping.opening import Opened, open_mode
from layertap.sweeping.tokens import ids_of, keep_tokens


def record_mode(task: Mapping[str, Any]) -> dict[str, Any]:
    """Opens the mode, records one pass into the task's folder, and looks at what the pass was made of."""
    torch.set_num_threads(task["threads"])
    began = time.perf_counter()
    opened = open_mode(task)
    loaded = time.perf_counter()
    folder = Path(task["folder"])
    mode = task["mode"]
    output, receipt = _record(opened, task, folder)
    recorded = time.perf_counter()
    tokens = keep_tokens(output, ids_of(opened.inputs), folder, task["top_k"])
    outputs = {leaf.path: identity(leaf.tensor) for leaf in leaves(output) if leaf.tensor is not None}
    evidence = evidence_of(opened)
    return {
        "hash": task["hash"],
        "mode": mode["name"],
        "inputs": opened.given,
        "outputs": outputs,
        "evidence": evidence,
        "weights": fingerprints(opened.plain),
        "tokens": tokens,
        "quantised": list(opened.quantised),
        "notes": [note.to_dict() for note in opened.notes],
        "receipt": {"silent": [f"{one.path}:{one.role}: {one.why}" for one in receipt.silent]},
        "threads": torch.get_num_threads(),
        "versions": {"torch": torch.__version__},
        "times": {"load": loaded - began, "record": recorded - loaded, "look": time.perf_counter() - recorded},
    }


def _record(opened: Opened, task: Mapping[str, Any], folder: Path) -> tuple[Any, Any]:
    mode = task["mode"]
    sites = resolve_sites(Tree.of(opened.plain), task["sites"])
    options: dict[str, Any] = {
        "sites": sites,
        "exclude": task["exclude"] or None,
        "what": tuple(task["what"]),
        "keep": task["keep"],
        "meta": {"mode": mode["name"], "target": task["target"]},
    }
    if not mode["batch"]:
        with record(opened.model, folder, **options) as recording:
            output = opened.call()
        return output, recording.receipt
    batches = Batches(opened.inputs, mode["batch"])
    with record(opened.model, None, **options) as recording:
        outputs = []
        for inputs in batches:
            outputs.append(opened.call(inputs))
            recording.step()
    batches.write(recording.run, folder, recording.receipt, options["meta"])
    return batches.joined(outputs), recording.receipt
