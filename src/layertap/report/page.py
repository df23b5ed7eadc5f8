"""Any result as a page, a notebook's output, Markdown, or a picture.

html_of, notebook_of, markdown_of    a result in, text out
write                                a file, by its suffix: .html, .md, .png, .svg
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.report.document import Block, Document
from layertap.report.documents import document_of
from layertap.report.html import fragment, page
from layertap.report.markdown import markdown
from layertap.report.picture import picture, png

SUFFIXES = (".html", ".md", ".png", ".svg")


def html_of(result: Any, extra: Sequence[Block] = ()) -> str:
    """One HTML file: offline, smaller than 2 MB, readable without a script."""
    return page(document_of(result, extra))


def notebook_of(result: Any) -> str:
    """HTML for the output of a notebook's cell."""
    return fragment(document_of(result))


def markdown_of(result: Any, extra: Sequence[Block] = ()) -> str:
    return markdown(document_of(result, extra))


def write(result: Any, path: str | os.PathLike[str], extra: Sequence[Block] = ()) -> Path:
    """Writes a report of a result; the suffix says what it becomes."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise BadArgument(tr("page.suffix", path=path, known=", ".join(SUFFIXES)))
    document = document_of(result, extra)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_bytes(document, path.suffix.lower()))
    except OSError as error:
        raise BadArgument(tr("result.unwritable", path=path, strerror=error.strerror or error)) from error
    return path


def _bytes(document: Document, suffix: str) -> bytes:
    if suffix == ".png":
        return png(document)
    text = {".html": page, ".md": markdown, ".svg": picture}[suffix](document)
    return text.encode("utf-8")
