"""Two modes in one process, and the module in which they part."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from layertap.errors import BadArgument, LayertapError
from layertap.files import parse_json, read_bytes
from layertap.messages import tr
from layertap.result import Note
from layertap.sweeping.environment import clean_environment
from layertap.sweeping.processes import Job, run_jobs
from layertap.sweeping.result import Explanation, Sweep

OUTCOME = "mode.json"


def explain(sweep: Sweep, reference: str, candidate: str) -> Explanation:
    """Builds both modes in a process of their own and runs `find_fault`; falls back on what was recorded of them.

    Each model sees its own mode's environment while it is built and while it runs. Whether that is faithful is proven:
    both must give the output that they gave alone.
    """
    tasks = [_task(sweep, name) for name in (reference, candidate)]
    for task in tasks:
        mode = task["mode"]
        if mode["command"]:
            return _from_runs(sweep, reference, candidate, Note("sweep.explain_command", mode=mode["name"]))
        if mode["batch"]:
            return _from_runs(sweep, reference, candidate, Note("sweep.explain_batch", mode=mode["name"]))
    with tempfile.TemporaryDirectory(prefix="layertap-") as folder:
        job = Job(
            name=candidate,
            task={"kind": "explain", "sides": tasks, "sys_path": tasks[0]["sys_path"]},
            folder=Path(folder),
            environment=clean_environment({}, tasks[0].get("inherit") or ()),
            timeout=max(task["timeout"] for task in tasks) * 4,
        )
        for _ in run_jobs([job], 1, lambda job, state: None):
            pass
    if job.error:
        return _from_runs(sweep, reference, candidate, Note("sweep.explain_error", why=job.error.splitlines()[-1]))
    found = job.outcome
    if found["unfaithful"]:
        return _from_runs(sweep, reference, candidate, Note("sweep.explain_unfaithful", mode=found["unfaithful"]))
    return Explanation(
        reference=reference,
        candidate=candidate,
        verdict=found["verdict"],
        how="modules",
        finding=found["finding"],
        text=found["text"],
    )


def _from_runs(sweep: Sweep, reference: str, candidate: str, why: Note) -> Explanation:
    from layertap.compare import diff

    report = diff(sweep.modes[reference].path, sweep.modes[candidate].path)
    return Explanation(
        reference=reference,
        candidate=candidate,
        verdict=report.verdict,
        how="runs",
        finding=report.to_dict(),
        text=str(report),
        notes=(Note("sweep.explain_runs", why=why),),
    )


def _task(sweep: Sweep, name: str) -> dict[str, Any]:
    mode = sweep.modes.get(name)
    if mode is None:
        raise BadArgument(tr("sweeping.not_in_sweep", name=name, modes=", ".join(sweep.modes)))
    if not mode.path:
        raise BadArgument(tr("sweeping.no_run_explain", name=name, error=mode.error))
    try:
        outcome = parse_json(read_bytes(Path(mode.path) / OUTCOME))
        return {**outcome["task"], "outputs": outcome.get("outputs") or {}}
    except (OSError, ValueError, KeyError) as error:
        raise BadArgument(tr("sweeping.unknown_origin", path=mode.path, error=error)) from error


# What follows runs in the worker.


def explain_here(task: Mapping[str, Any]) -> dict[str, Any]:
    """Opens both sides, proves that each is what it was alone, and searches."""
    from layertap.fault import find_fault
    from layertap.sweeping.opening import open_mode

    sides = []
    for side in task["sides"]:
        with _variables(side["mode"]["env"]):
            sides.append(open_mode(side))
    for side, opened in zip(task["sides"], sides, strict=True):
        _keep_variables(opened.plain, task["sides"], side["mode"]["env"])
    for side, opened in zip(task["sides"], sides, strict=True):
        if side["outputs"] and _outputs(opened) != side["outputs"]:
            return {"unfaithful": side["mode"]["name"]}
    finding = find_fault(sides[0].model, sides[1].model, sides[0].inputs)
    return {"unfaithful": "", "verdict": finding.verdict, "finding": finding.to_dict(), "text": str(finding)}


def _outputs(opened: Any) -> dict[str, Any]:
    from layertap.capture.leaves import leaves
    from layertap.sweeping.identity import identity

    return {leaf.path: identity(leaf.tensor) for leaf in leaves(opened.call()) if leaf.tensor is not None}


def _keep_variables(model: Any, sides: Any, own: Mapping[str, str]) -> None:
    """Whatever module of the model is called, its mode's variables are set from then on, and no other mode's."""
    others = {name for side in sides for name in side["mode"]["env"]} - set(own)

    def switch(module: Any, args: Any) -> None:
        for name in others:
            os.environ.pop(name, None)
        os.environ.update(own)

    for module in model.modules():
        try:
            module.register_forward_pre_hook(switch)
        except RuntimeError as error:
            raise LayertapError(
                tr("sweeping.no_hooks", name=type(module).__name__, value=str(error).splitlines()[0])
            ) from error


@contextmanager
def _variables(own: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(own)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
