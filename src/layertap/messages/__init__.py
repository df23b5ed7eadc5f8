"""Every sentence that a user reads, in English and in Chinese, by code.

tr           the sentence of a code, in the user's language
language     `zh` or `en`: what LAYERTAP_LANG says, else the locale
printable    text without anything that a terminal or a browser would obey

A code is `package.what`; `en/package.py` and `zh/package.py` hold its sentence under the same code and with the same
fields. Results carry codes and values (`layertap.result.Note`); sentences are made where they are shown.
"""

from __future__ import annotations

import logging
import os
import unicodedata
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

__all__ = ["language", "printable", "tr"]


def tr(code: str, /, **values: Any) -> str:
    """The sentence of a code with its values filled in, in the user's language.

    >>> tr("result.identical")
    'IDENTICAL'
    """
    package = code.partition(".")[0]
    template = _catalogue(language(), package).get(code) or _catalogue("en", package)[code]
    if not values:
        return template.format() if "{{" in template else template
    # Which side is meant is a word of the catalogue: `side`, `side2` take "reference" or "candidate".
    sides = {name: tr(f"result.{value}") for name, value in values.items() if name in _SIDES and value in _SIDE_WORDS}
    return printable(template.format(**{**values, **sides}))


_SIDES = ("side", "side2")
_SIDE_WORDS = ("reference", "candidate")


@cache
def _catalogue(language: str, package: str) -> Mapping[str, str]:
    messages: Mapping[str, str] = import_module(f"layertap.messages.{language}.{package}").MESSAGES
    return messages


def printable(text: str) -> str:
    """The text without anything that a terminal or a browser would obey; all that layertap prints passes here.

    Site names, folder names, notes and errors of other libraries may hold escape codes, C1 controls, marks that turn
    the direction of writing around, and halves of surrogate pairs. They are written as Python writes them; line ends
    stay.

    >>> print(printable("layer\\x1b[31m.0 \\u202egnp"))
    layer\\x1b[31m.0 \\u202egnp
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _KEPT else _written(c) for c in text)


_KEPT = "\n\t"


def _written(character: str) -> str:
    if unicodedata.category(character) == "Zs":  # the wide space of Chinese, the space that does not break
        return character
    return character.encode("unicode_escape").decode("ascii")


class _Printable(logging.Filter):
    """What layertap logs goes to terminals and log files too."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = printable(record.getMessage()), None
        return True


logging.getLogger("layertap").addFilter(_Printable())


def language() -> str:
    """`zh` or `en`: what LAYERTAP_LANG says, else the locale."""
    get, (own, everything, usual) = _ENVIRONMENT.get, _LANGUAGE
    chosen = get(own) or get(everything) or get(usual) or b""
    return "zh" if chosen[:2].lower() in (b"zh", "zh") else "en"


# What os.environ keeps its values in: asked for every sentence, os.environ itself would encode each name each time.
_ENVIRONMENT: Any = getattr(os.environ, "_data", os.environ)
_LANGUAGE = [
    os.environ.encodekey(name) if _ENVIRONMENT is not os.environ else name
    for name in ("LAYERTAP_LANG", "LC_ALL", "LANG")
]
