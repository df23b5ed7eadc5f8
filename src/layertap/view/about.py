"""What is known of a run as a whole: who made it, when, of what, and what its receipt states."""

from __future__ import annotations

from typing import Any

from layertap.view.sides import Side


def run_dict(side: Side) -> dict[str, Any]:
    """The JSON form of a run's page."""
    with side.lock:
        run = side.run
        receipt = run.receipt
        return {
            "number": side.number,
            "name": side.name,
            "path": side.source,
            "sites": [str(site) for site in run.sites],
            "inputs": [str(record.site) for record in run.inputs],
            "records": run.count,
            "steps": [int(step) for step in run.index.steps()],
            "live": side.live,
            "gone": side.gone,
            "problems": list(run.problems),
            "receipt": None if receipt is None else receipt.to_dict(),
            "info": {name: value for name, value in run.info.items() if name != "receipt"},
        }
