"""One process that writes to a run: its name, and how it ended."""

from __future__ import annotations

import secrets
from datetime import datetime, timezone

from layertap.site import Receipt


def closed_as(receipt: Receipt | None) -> str:
    """The status of a session that has ended: one that an error stopped early is not complete."""
    return "stopped" if receipt is not None and receipt.error else "complete"


def session_name(now: float) -> str:
    # The time first, so that sessions sort; the chance after it, so that two processes of one moment do not clash.
    return f"{datetime.fromtimestamp(now, timezone.utc):%Y%m%dT%H%M%S%f}Z-{secrets.token_hex(4)}"


def iso_time(now: float) -> str:
    return datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="microseconds")
