"""Colours that people with any kind of colour vision tell apart; words and shapes always say the same."""

from __future__ import annotations

BLUE, VERMILLION, GREEN, PURPLE, ORANGE = "#0072b2", "#d55e00", "#009e73", "#a4558b", "#b07d00"
GREY = "#8a8a8a"
INK = "#222222"
SERIES = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE)
RAMP = ("#eef4fa", "#c6dbef", "#9ecae1", "#6baed6", "#3f8fc5", "#2171b5", "#08519c", "#08306b")
"""From little to much; a value that is not finite is vermillion, which no mixture of these comes near."""
VERDICTS = {"identical": BLUE, "noise": BLUE, "fault": VERMILLION, "inconclusive": ORANGE}
MARKS = {"identical": "=", "noise": "✓", "fault": "✗", "inconclusive": "?"}

NAMES = {BLUE: "blue", VERMILLION: "verm", GREEN: "green", PURPLE: "purple", ORANGE: "orange", GREY: "grey", INK: "ink"}
"""In a page each of them is a CSS variable, so that a dark page has lighter ones."""


def variable(colour: str) -> str:
    """The colour as a page refers to it."""
    return f"var(--{NAMES[colour]},{colour})" if colour in NAMES else colour
