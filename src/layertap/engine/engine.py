"""One operation, a function over many items in order, and who does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from layertap.errors import BadArgument
from layertap.messages import tr

Item = TypeVar("Item")
Found = TypeVar("Found")

NAMES = ("in-process", "ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How another process makes what the work needs, once in its life: a function of a module, and what it is given.

    Both are pickled. What is large stays where it is: a recipe names folders and lets the other process open them.
    """

    prepare: Callable[[Any], Any]
    given: Any = None


class Engine:
    """Does the work of an analysis where it is asked for; engines of other kinds have other processes do it."""

    remote = False
    """Whether the work is done by other processes, which see only what is sent to them."""

    def map(
        self,
        work: Callable[[Any, Item], Found],
        items: Iterable[Item],
        *,
        here: Any,
        there: Callable[[], Recipe],
        called: Callable[[Item], str],
        processors: int = 1,
        at_once: int | None = None,
    ) -> Iterator[Found]:
        """`work(state, item)` for each item, in the items' order; an item is taken only when there is room for it.

        `here` is the state for this process, `there()` tells others how to make theirs, and `called` what an item is
        called in an error. An exception of the work comes out as the same exception. Of the processors of another
        process the work takes so many, and at most `at_once` items are at work.
        """
        return map(partial(work, here), items)


EngineChoice: TypeAlias = Engine | str | None
"""What users pass as `engine=`: "in-process" (the same as None), "ray", or an engine that is open already."""


IN_PROCESS = Engine()


def open_engine(engine: EngineChoice = None, address: str | None = None) -> AbstractContextManager[Engine]:
    """The engine that is meant, for a `with` block; what was started for it ends with the block.

    >>> with open_engine() as engine:
    ...     list(engine.map(pow, [2, 3], here=10, there=lambda: Recipe(prepare=int), called=str))
    [100, 1000]
    """
    if engine == "ray":
        from layertap.engine.over_ray import RayEngine

        return RayEngine(address)
    if address is not None:
        raise BadArgument(tr("engine.address", address=address))
    if engine is None or engine == "in-process":
        return nullcontext(IN_PROCESS)
    if isinstance(engine, str):
        raise BadArgument(tr("engine.unknown", engine=engine, known=", ".join(NAMES)))
    return nullcontext(engine)
