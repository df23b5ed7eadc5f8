"""The receipt: what came from each requested site, and where nothing came, why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from layertap.capture.artefact import artefact_of
from layertap.capture.module_tap import ModuleTap
from layertap.capture.pending_record import Source
from layertap.site import Receipt, Site, SiteReceipt

NAMED = 6
"""Sites that a text names; the others are counted."""

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def receipt_of(
    taps: Sequence[ModuleTap],
    modules: Mapping[str, nn.Module],
    *,
    steps: int,
    never_due: str,
    records: int,
    nbytes: int,
    seconds: float,
    overhead: float,
    lost: int,
    error: str,
    sources: Iterable[tuple[str, Source]] = (),
    notes: Sequence[str] = (),
) -> Receipt:
    """What came from each tap; `modules` are those that the model has now, by path."""
    by_path = {tap.path: tap for tap in taps}
    changed = _changed(taps, modules)
    sites = []
    for tap in taps:
        for role, tally in tap.tallies.items():
            why = "" if tally.tensors else never_due or _why(tap, role, by_path, changed, error)
            sites.append(
                SiteReceipt(
                    path=tap.path,
                    role=role,
                    kind=tap.kind,
                    fired=tally.fired,
                    tensors=tally.tensors,
                    direct=tally.direct,
                    skipped=dict(tally.skipped),
                    recomputed=tally.recomputed,
                    dropped=tally.dropped,
                    why=why,
                )
            )
    sites += [
        SiteReceipt(
            path=source.path,
            role=role,
            kind=source.kind,
            fired=source.tally.fired,
            tensors=source.tally.tensors,
            skipped=dict(source.tally.skipped),
            dropped=source.tally.dropped,
        )
        for role, source in sources
    ]
    return Receipt(
        sites=tuple(sites),
        steps=steps,
        records=records,
        bytes=nbytes,
        seconds=seconds,
        overhead=overhead,
        lost=lost,
        error=error,
        notes=(*_note_of(changed), *notes),
    )


def why_nothing(receipt: Receipt) -> str:
    """The text of `NothingCaptured`: the commonest reasons first, each with the sites that it is about."""
    reasons: dict[str, list[str]] = {}
    for site in receipt.sites:
        reasons.setdefault(site.why, []).append(str(Site(path=site.path, role=site.role)))
    commonest = sorted(reasons.items(), key=lambda item: -len(item[1]))[:3]
    lines = [f"  {len(sites)} × {why}\n      {_named(sites)}" for why, sites in commonest]
    return "\n".join([f"nothing was captured from the {len(receipt.sites)} requested sites:", *lines])


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _changed(taps: Sequence[ModuleTap], modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """Path → what has become of the module there since recording began."""
    found = {}
    for tap in taps:
        now = modules.get(tap.path)
        if now is None:
            found[tap.path] = "it was taken out of the model while recording"
        elif now is not tap.module:
            found[tap.path] = "another module took its place while recording; start a new recording for that one"
    known = {id(tap.module) for tap in taps}
    for path, module in modules.items():
        if path not in found and id(module) not in known:
            found[path] = "it was added while recording; start a new recording for it"
    return found


def _note_of(changed: Mapping[str, str]) -> list[str]:
    if not changed:
        return []
    return [f"modules that were replaced, added or taken out while recording are not recorded: {_named(list(changed))}"]


def _why(tap: ModuleTap, role: str, by_path: dict[str, ModuleTap], changed: Mapping[str, str], error: str) -> str:
    tally = tap.tallies[role]
    if error and not tally.fired:
        return f"recording stopped before anything came from it ({error})"
    if tally.dropped:
        return f"not kept, because the budget was used up, {tally.dropped} times"
    if tap.refused and not tap.total:
        return tap.refused
    if tap.region is not None and not isinstance(tap.module, _CONTAINERS):
        told = tap.region.why(role, tap.total)
        if told:
            return told
    if tally.skipped:
        return "no tensor that can be recorded: " + ", ".join(f"{why} × {n}" for why, n in tally.skipped.items())
    if role in ("param", "param_grad") and not any(True for _ in tap.module.parameters()):
        return "it has no parameters"
    if role == "param_grad" and not tap.differentiable:
        return "none of its parameters requires a gradient, or modules below it were asked for them"
    if not tap.total:
        return changed.get(tap.path) or _why_not_called(tap, by_path)
    if tap.ended and role == "output" and not tally.fired:
        return f"it was called, and {tap.ended} was raised before it returned"
    if role.startswith("grad") and not tap.differentiable:
        return "nothing it handled required a gradient"
    if role in ("grad_input", "grad_output", "param_grad"):
        return "no gradient reached it while recording; run backward() inside the block"
    if artefact_of(tap.module) is not None and role != "param":
        return "an artefact shows what leaves its modules, and its own inputs, but not what enters a module"
    if role == "param":
        return "its parameters were recorded at the modules below it"
    return "it was called, but handled no tensor in this role"


def _why_not_called(tap: ModuleTap, by_path: dict[str, ModuleTap]) -> str:
    artefact = artefact_of(tap.module)
    if artefact is not None and artefact.lost:
        return artefact.lost
    if isinstance(tap.module, _CONTAINERS):
        return f"{tap.kind} is a container, which torch never calls; ask for its children"
    above = _nearest_called(tap.path, by_path)
    if above is None:
        return "the model was never called while recording; of torch.compile(model), record what it returned"
    name = above.path or "the model"
    if isinstance(above.module, nn.TransformerEncoderLayer):
        return f"{name} ran its fused fast path, which computes its children without calling them"
    if isinstance(above.module, torch.jit.ScriptModule):
        return f"{name} is TorchScript, whose calls Python does not see; open it: target = lt.open_target(model)"
    if above.ended:
        return f"{name} was left by {above.ended} before it came to this module, or took a branch without it"
    times = "once" if above.total == 1 else f"{above.total} times"
    return f"{name} ran {times} without calling it (a branch not taken, or its parameters used directly)"


def _nearest_called(path: str, by_path: dict[str, ModuleTap]) -> ModuleTap | None:
    while path:
        path = path.rpartition(".")[0]
        tap = by_path.get(path)
        if tap is not None and tap.total:
            return tap
    return None
