"""The text of a token, from a `tokenizer.json` alone: its vocabulary is read, nothing is run or imported."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from layertap.errors import BadArgument
from layertap.files import parse_json, read_bytes
from layertap.messages import tr

FILE = "tokenizer.json"
LIMIT = 64 << 20
_SPACE = "\u2581"
"""How SentencePiece writes a space."""


class Vocabulary:
    """Token ids and their texts.

    >>> Vocabulary({5: "\u2581Paris", 6: "\u0120is", 7: "<0x0A>"}).texts([5, 6, 7, 8])
    (' Paris', ' is', '\\n', '8')
    """

    def __init__(self, words: dict[int, str]) -> None:
        self._words = words
        letters = _byte_letters()
        self._bytes = {letter: byte for byte, letter in letters.items()}
        # Byte-level vocabularies write a space as the letter of its byte.
        self._by_bytes = any(letters[0x20] in word for word in words.values())

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Vocabulary:
        """Reads a `tokenizer.json`, or the one in a folder; a BadArgument where there is none."""
        place = Path(path)
        place = place / FILE if place.is_dir() else place
        try:
            data = parse_json(read_bytes(place, LIMIT))
            found = data["model"]["vocab"]
            pairs = found.items() if isinstance(found, dict) else ((one[0], n) for n, one in enumerate(found))
            words = {int(number): str(word) for word, number in pairs}
            words |= {int(one["id"]): str(one["content"]) for one in data.get("added_tokens", ())}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise BadArgument(tr("view.no_vocabulary", path=place, error=error)) from None
        return cls(words)

    def texts(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The text of each; a number where it has none."""
        return tuple(self._text(number) for number in ids)

    def _text(self, number: int) -> str:
        word = self._words.get(number)
        if word is None:
            return str(number)
        if word.startswith("<0x") and word.endswith(">") and len(word) == 6:
            return bytes([int(word[3:5], 16)]).decode("utf-8", "replace")
        if self._by_bytes and all(letter in self._bytes for letter in word):
            return bytes(self._bytes[letter] for letter in word).decode("utf-8", "replace")
        return word.replace(_SPACE, " ")


def _byte_letters() -> dict[int, str]:
    """The letter that represents each byte in byte-level vocabularies: itself where it prints, else one from 256 on."""
    prints = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in prints]
    return {byte: chr(byte) for byte in prints} | {byte: chr(256 + place) for place, byte in enumerate(others)}
