"""A script that Ctrl-C ended still ends by Ctrl-C, however much is written on the way out."""

from __future__ import annotations

import atexit
import contextlib
import functools
import sys


@functools.cache
def keep_interrupts() -> None:
    """To be called before `atexit.register`: first in, last out."""
    atexit.register(_as_interrupted)


def _as_interrupted() -> None:
    """Python ends by SIGINT if the last text that it ran as code left with KeyboardInterrupt.

    What is imported while a run is completed (pyarrow tries pandas) runs such texts, and the exit code would be 1,
    which launchers take for a crash. So the last one is run once more.
    """
    if getattr(sys, "last_type", None) is KeyboardInterrupt and not hasattr(sys, "ps1"):
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")
