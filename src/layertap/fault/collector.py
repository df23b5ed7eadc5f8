"""Python's garbage collector during a search: it need not walk through what was there before.

A search makes tens of thousands of small objects in half a second, and so may bring about a collection of everything.
That walks through all objects of the process, of which torch alone has half a million: 100 to 200 ms, as long as five
forward passes, in one search and not in the next.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def only_new_objects() -> Iterator[None]:
    """Collections inside look at what was made inside alone, so garbage of a search is collected all the same.

    Where the program has set objects aside itself, they stay as they are: Python can only give back all of them.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
