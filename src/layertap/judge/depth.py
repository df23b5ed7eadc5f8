"""How deep in a model a site lies."""

from __future__ import annotations

import re
from functools import lru_cache

from layertap.site import Record

_NUMBER = re.compile(r"\d+")


def depth(record: Record) -> int:
    """How many layers lie above a site: the first number in its path, or the place in the order of execution."""
    number = first_number(record.site.path)
    return record.order if number is None else number


@lru_cache(maxsize=1 << 16)
def first_number(path: str) -> int | None:
    """The first number in a path.

    >>> first_number("model.layers.30.mlp"), first_number("lm_head")
    (30, None)
    """
    number = _NUMBER.search(path)
    return int(number[0]) if number else None
