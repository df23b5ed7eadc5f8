"""The receipt: what came from each requested site, and where nothing came, why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from layertap.capture.module_tap import ModuleTap
from layertap.capture.parcel import Source
from layertap.site import Receipt, SiteReceipt

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def receipt_of(
    taps: Sequence[ModuleTap],
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
    """Balances the books of all taps."""
    by_path = {tap.path: tap for tap in taps}
    sites = []
    for tap in taps:
        for role, tally in tap.tallies.items():
            why = "" if tally.tensors else never_due or _why(tap, role, by_path)
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
        notes=tuple(notes),
    )


def why_nothing(receipt: Receipt) -> str:
    """The text of `NothingCaptured`: the commonest reasons first."""
    reasons = Counter(site.why for site in receipt.sites).most_common(3)
    lines = [f"  {count} × {why}" for why, count in reasons]
    return "\n".join([f"nothing was captured from the {len(receipt.sites)} requested sites:", *lines])


def _why(tap: ModuleTap, role: str, by_path: dict[str, ModuleTap]) -> str:
    tally = tap.tallies[role]
    if tally.dropped:
        return f"dropped for the budget, {tally.dropped} times"
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
        return tap.refused or _why_not_called(tap, by_path)
    if role.startswith("grad") and not tap.differentiable:
        return "nothing it handled required a gradient"
    if role in ("grad_input", "grad_output", "param_grad"):
        return "no gradient reached it while recording; run backward() inside the block"
    if hasattr(tap.module, "layertap_lost") and role != "param":
        return "an artefact shows what leaves its modules, and its own inputs, but not what enters a module"
    if role == "param":
        return "its parameters were recorded at the modules below it"
    return "it was called, but handled no tensor in this role"


def _why_not_called(tap: ModuleTap, by_path: dict[str, ModuleTap]) -> str:
    lost = getattr(tap.module, "layertap_lost", "")
    if lost:
        return str(lost)
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
    times = "once" if above.total == 1 else f"{above.total} times"
    return f"{name} ran {times} without calling it (a branch not taken, or its parameters used directly)"


def _nearest_called(path: str, by_path: dict[str, ModuleTap]) -> ModuleTap | None:
    while path:
        path = path.rpartition(".")[0]
        tap = by_path.get(path)
        if tap is not None and tap.total:
            return tap
    return None
