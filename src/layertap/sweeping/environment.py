"""The environment of a mode's process: what every program needs, and what the mode sets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

BASE = (
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TEMP", "TMP", "LANG", "LC_ALL", "LC_CTYPE", "SYSTEMROOT"),
    *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LAYERTAP_LANG"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES", "HF_HOME", "XDG_CACHE_HOME"),
)
"""Variables of the caller that a mode sees: where programs, libraries, caches and devices are."""

FIXED = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""Nothing is fetched, and sets have one order. A mode may set these otherwise."""


def clean_environment(
    own: Mapping[str, str], inherit: Sequence[str] = (), caller: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The whole environment of a mode's process.

    >>> clean_environment({"SCAN": "torch"}, caller={"PATH": "/bin", "SCAN_DEBUG": "1"})["SCAN"]
    'torch'
    >>> "SCAN_DEBUG" in clean_environment({}, caller={"SCAN_DEBUG": "1"})
    False
    """
    given = os.environ if caller is None else caller
    base = {name: given[name] for name in (*BASE, *inherit) if name in given}
    return {**FIXED, **base, **own}
