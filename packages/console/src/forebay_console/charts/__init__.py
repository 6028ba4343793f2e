"""Charts as SVG, drawn on the server: plots without text, which the page stretches to its width.

Colours are classes of the style sheet, since the pages allow no inline styles. The pages add axes,
captions and the same numbers as a table to each plot, or as CSV where there are too many for a
page; to the small plots of the overview, the lowest and the highest.
"""

from forebay_console.charts.bars import Bars, bars, stacked
from forebay_console.charts.grid import Cell, grid
from forebay_console.charts.scale import Scale
from forebay_console.charts.strips import Strip, strips

__all__ = ["Bars", "Cell", "Scale", "Strip", "bars", "grid", "stacked", "strips"]
