"""Never in the way: what goes wrong inside a method that a training loop calls is told, and does not reach the loop."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from layertap.words import say

log = logging.getLogger("layertap")

F = TypeVar("F", bound=Callable[..., Any])


def never_raise(nothing: Callable[[], Any]) -> Callable[[F], F]:
    """The method, returning `nothing()` where it fails; with `self._strict` it raises as it would."""

    def decorate(method: F) -> F:
        @functools.wraps(method)
        def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                if self._strict:
                    raise
                where = f"{type(self).__name__}.{method.__name__}"
                told = say("{where}: {error}; training goes on", where=where, error=f"{type(error).__name__}: {error}")
                log.error("layertap: %s", told)
                return nothing()

        return guarded  # type: ignore[return-value]

    return decorate


def nothing() -> None:
    return None
