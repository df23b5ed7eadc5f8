"""The console that all of layertap's texts for people are printed with: nothing in them can command the terminal."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from layertap.messages import printable


class Screen(Console):
    """A rich console that prints what the styles ask for, and of the texts only what can be printed."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            # Segments with control codes are rich's own: the cursor of a progress bar.
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def plain_text(view: RenderableType, width: int = 200) -> str:
    """What a screen of this width would show, for `print`, pytest and logs."""
    out = io.StringIO()
    Screen(file=out, width=width, color_system=None).print(view)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
