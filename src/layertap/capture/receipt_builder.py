"""The receipt: what came from each requested site, and where nothing came, why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from layertap.artefact import artefact_of
from layertap.capture.module_tap import ModuleTap
from layertap.messages import tr
from layertap.result import Note
from layertap.site import Receipt, Site, SiteReceipt

NAMED = 6
"""Sites that a text names; the others are counted."""

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def site_receipts(
    taps: Sequence[ModuleTap], changed: Mapping[str, str], *, never_due: str, error: str
) -> Iterator[SiteReceipt]:
    """What came from each tap; `changed` is what has become of the modules (`what_changed`)."""
    by_path = {tap.path: tap for tap in taps}
    for tap in taps:
        for role, counts in tap.counts_by_role.items():
            why = "" if counts.tensors else never_due or _why(tap, role, by_path, changed, error)
            yield counts.receipt(path=tap.path, role=role, kind=tap.kind, why=why)


def why_nothing(receipt: Receipt) -> str:
    """The text of `NothingCaptured`: the commonest reasons first, each with the sites that it is about."""
    reasons: dict[str, list[str]] = {}
    for site in receipt.sites:
        reasons.setdefault(site.why, []).append(str(Site(path=site.path, role=site.role)))
    commonest = sorted(reasons.items(), key=lambda item: -len(item[1]))[:3]
    lines = [f"  {len(sites)} × {why}\n      {_named(sites)}" for why, sites in commonest]
    return "\n".join([tr("receipt.nothing_captured", count=len(receipt.sites)), *lines])


def _named(names: Sequence[str]) -> str:
    more = Note("capture.and_more", count=len(names) - NAMED) if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def what_changed(taps: Sequence[ModuleTap], modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """Path → what has become of the module there since recording began; `modules` are those that there are now."""
    found: dict[str, str] = {}
    for tap in taps:
        now = modules.get(tap.path)
        if now is None:
            found[tap.path] = Note("why.removed")
        elif now is not tap.module:
            found[tap.path] = Note("why.replaced")
    known = {id(tap.module) for tap in taps}
    for path, module in modules.items():
        if path not in found and id(module) not in known:
            found[path] = Note("why.added")
    return found


def note_of(changed: Mapping[str, str]) -> list[str]:
    """The sentence for the receipt, if anything has changed."""
    if not changed:
        return []
    return [Note("receipt.changed", named=_named(list(changed)))]


def _why(tap: ModuleTap, role: str, by_path: dict[str, ModuleTap], changed: Mapping[str, str], error: str) -> str:
    counts = tap.counts_by_role[role]
    if error and not counts.fired:
        return Note("why.stopped", error=error)
    if counts.dropped:
        return Note("why.dropped", dropped=counts.dropped)
    if tap.refused and not tap.total:
        return tap.refused
    if tap.region is not None and not isinstance(tap.module, _CONTAINERS):
        why = tap.region.why(role, tap.total)
        if why:
            return why
    if counts.skipped:
        listed = ", ".join(f"{why} × {n}" for why, n in counts.skipped.items())
        return Note("why.no_tensor", listed=listed)
    if role in ("param", "param_grad") and not any(True for _ in tap.module.parameters()):
        return Note("why.no_parameters")
    if role == "param_grad" and not tap.differentiable:
        return Note("why.no_gradients")
    if not tap.total:
        return changed.get(tap.path) or _why_not_called(tap, by_path)
    if tap.ended and role == "output" and not counts.fired:
        return Note("why.raised", ended=tap.ended)
    if role.startswith("grad") and not tap.differentiable:
        return Note("why.nothing_required")
    if role in ("grad_input", "grad_output", "param_grad"):
        return Note("why.no_backward")
    if artefact_of(tap.module) is not None and role != "param":
        return Note("why.artefact")
    if role == "param":
        return Note("why.params_below")
    return Note("why.no_tensor_in_role")


def _why_not_called(tap: ModuleTap, by_path: dict[str, ModuleTap]) -> str:
    artefact = artefact_of(tap.module)
    if artefact is not None and artefact.lost:
        return artefact.lost
    if isinstance(tap.module, _CONTAINERS):
        return Note("why.container", kind=tap.kind)
    above = _nearest_called(tap.path, by_path)
    if above is None:
        return Note("why.model_never_called")
    name = above.path or Note("capture.the_model")
    if isinstance(above.module, nn.TransformerEncoderLayer):
        return Note("why.fast_path", name=name)
    if isinstance(above.module, torch.jit.ScriptModule):
        return Note("why.script", name=name)
    if above.ended:
        return Note("why.left", name=name, ended=above.ended)
    times = Note("capture.once") if above.total == 1 else Note("capture.times", count=above.total)
    return Note("why.not_taken", name=name, times=times)


def _nearest_called(path: str, by_path: dict[str, ModuleTap]) -> ModuleTap | None:
    while path:
        path = path.rpartition(".")[0]
        tap = by_path.get(path)
        if tap is not None and tap.total:
            return tap
    return None
