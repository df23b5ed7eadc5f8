"""Charts, each written once as a Vega-Lite specification (a plain dictionary).

spec      the specifications: errors over a floor, histograms, lines, heat maps, intervals
draw      a specification as SVG, without a script and without a library
frame     axes, titles, legends
scales    from values to places
palette   colours for any kind of colour vision, light and dark
picture   PNG and SVG files by vl-convert
"""

from layertap.report.charts.draw import svg
from layertap.report.charts.spec import Point, errors, heat_map, histogram, intervals, lines

__all__ = ["Point", "errors", "heat_map", "histogram", "intervals", "lines", "svg"]
