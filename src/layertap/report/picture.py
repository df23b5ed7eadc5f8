"""A document as one picture: the verdict, and the chart with the most information. SVG by itself, PNG by vl-convert."""

from __future__ import annotations

import io
import textwrap

from rich.cells import cell_len

from layertap.errors import MissingExtra
from layertap.messages import language, printable, tr
from layertap.report.charts.draw import svg
from layertap.report.charts.frame import CHARACTER, text
from layertap.report.charts.palette import GREY, INK, MARKS, VERDICTS
from layertap.report.document import Chart, Document

PIP = "pip install 'layertap[view]'"
LINE = 16
MARGIN = 14
FONTS = {
    "en": "'DejaVu Sans',Arial,sans-serif",
    # First, or whatever font has the characters would be taken for each of them.
    "zh": "'Noto Sans CJK SC','Source Han Sans SC','PingFang SC','Microsoft YaHei','WenQuanYi Zen Hei',sans-serif",
}
COLOURS = 128
SHARP = 2.0
"""Pixels of the PNG for each of the SVG."""


def picture(document: Document) -> str:
    """An SVG file."""
    charts = [block for block in document.blocks if isinstance(block, Chart)]
    opening = [chart for chart in charts if chart.opening][:2] or charts[:1]
    drawn = [svg(chart.spec, page=False) for chart in opening]
    sizes = [_size(one) for one in drawn]
    width = max([wide for wide, _ in sizes] + [720.0])
    ink = VERDICTS.get(document.verdict, INK)
    mark = MARKS.get(document.verdict, "")
    head = _wrapped(f"{mark} {document.headline}".strip(), (width - 2 * MARGIN) / (CHARACTER * 1.27))
    rest = [line for long_line in document.lines for line in _wrapped(long_line, (width - 2 * MARGIN) / CHARACTER)]
    parts, top = [], 26.0
    for line in head:
        parts.append(text(MARGIN, top, line, ink, "start", extra=" font-size='15' font-weight='600'"))
        top += 20
    for line in rest:
        parts.append(text(MARGIN, top, line, INK, "start", extra=" font-size='12'"))
        top += LINE
    if not drawn:
        parts.append(text(MARGIN, top, tr("page.no_chart"), GREY, "start"))
    for one, (_, high) in zip(drawn, sizes, strict=True):
        parts.append(f"<g transform='translate({MARGIN},{top:.0f})'>{_inside(one)}</g>")
        top += high + 8
    size = (
        f"viewBox='0 0 {width + 2 * MARGIN:.0f} {top + 8:.0f}' width='{width + 2 * MARGIN:.0f}' height='{top + 8:.0f}'"
    )
    font = f'font-family="{FONTS[language()]}" font-size="11"'
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} {font}><rect width='100%' height='100%' fill='#ffffff'/>"
        f"{''.join(parts)}</svg>\n"
    )


def png(document: Document) -> bytes:
    """A PNG file of the same; a MissingExtra where vl-convert is not installed."""
    return as_png(picture(document))


def as_png(drawing: str) -> bytes:
    """An SVG file as PNG."""
    try:
        import vl_convert
    except ImportError as error:
        raise MissingExtra(tr("page.no_png", pip=PIP)) from error
    return _small(vl_convert.svg_to_png(drawing, scale=SHARP))


def _small(data: bytes) -> bytes:
    """The same picture with as many colours as a drawing needs, where Pillow is there: a fifth of the bytes."""
    try:
        from PIL import Image
    except ImportError:
        return data
    out = io.BytesIO()
    with Image.open(io.BytesIO(data)) as image:
        image.convert("RGB").quantize(COLOURS).save(out, "PNG", optimize=True)
    return min(out.getvalue(), data, key=len)


def _size(drawing: str) -> tuple[float, float]:
    _, _, width, height = drawing.partition("viewBox='")[2].partition("'")[0].split()
    return float(width), float(height)


def _inside(drawing: str) -> str:
    """What a drawing of ours holds, to be put into another."""
    return drawing.partition("fill='#ffffff'/>")[2].removesuffix("</svg>")


def _wrapped(said: str, width: float) -> list[str]:
    """Lines of at most so many characters' width; Chinese breaks anywhere."""
    said = printable(said).replace("\n", " ")
    if cell_len(said) == len(said):
        return textwrap.wrap(said, int(width)) or [""]
    lines, line = [], ""
    for character in said:
        if cell_len(line + character) > width:
            lines.append(line)
            line = ""
        line += character
    return [*lines, line]
