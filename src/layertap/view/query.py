"""What an address asks for: two runs, a step, a site. The state of a page is its address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from layertap.errors import BadArgument
from layertap.messages import tr


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """An address, checked."""

    a: int = 0
    """The number of the run that is looked at, or is the reference."""
    b: int | None = None
    """The number of the candidate; None where one run is looked at by itself."""
    step: int | None = None
    site: str = ""
    token: int | None = None
    """The chosen token of the input."""
    index: tuple[int, ...] = ()
    """Which part of a tensor with more than two axes is shown."""
    given: Mapping[str, str]
    """All of it, as it came."""

    @classmethod
    def of(cls, given: Mapping[str, str], runs: int) -> Query:
        """Reads an address; a BadArgument where it makes no sense."""
        a = _number(given, "a", 0)
        b = None if runs < 2 or given.get("b") == "none" else _number(given, "b", 1 if a != 1 else 0)
        for number in (a, b):
            if runs and number is not None and not 0 <= number < runs:
                raise BadArgument(tr("view.no_run", number=number, count=runs))
        return cls(
            a=a or 0,
            b=b,
            step=_number(given, "step", None),
            site=given.get("site", ""),
            token=_number(given, "t", None),
            index=tuple(
                _number({"index": part}, "index", 0) or 0 for part in given.get("index", "").split(",") if part
            ),
            given=given,
        )

    def pair(self) -> dict[str, Any]:
        """The runs, for links to other pages."""
        return {"a": self.a, "b": "none" if self.b is None and "b" in self.given else self.b}

    def moment(self) -> dict[str, Any]:
        """The runs and the step, for links to other sites."""
        return {**self.pair(), "step": self.step, "t": self.token}

    def number(self, name: str, default: int) -> int:
        """A further whole number of the address."""
        found = _number(self.given, name, default)
        return default if found is None else found


def _number(given: Mapping[str, str], name: str, default: int | None) -> int | None:
    text = given.get(name, "")
    if not text:
        return default
    try:
        number = int(text)
    except ValueError:
        raise BadArgument(tr("view.whole", name=name, text=text)) from None
    if abs(number) > 1 << 62:
        raise BadArgument(tr("view.query_too_large", name=name, text=text))
    return number
