"""One look for every figure: object-oriented matplotlib, no global state."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
import numpy as np

INK, MUTED, GRID = "#1f2933", "#616e7c", "#e4e7eb"
TARGET_COLOR, DRAFT_COLOR, FASTER, SLOWER = "#3b6fb6", "#e8912d", "#1b7f5c", "#b8433c"
CATEGORICAL = ("#3b6fb6", "#e8912d", "#1b9e77", "#8e5ea2", "#c0504d", "#4bacc6", "#7f7f7f", "#a6761d")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
FILLS = ("full", "none", "bottom", "top", "left", "right")
WIDTH = 9.0  # inches of a full-width figure
LEGEND_LINE = 0.2  # inches
NARROW_TITLE = 24  # characters over one panel of three


def new_figure(height: float = 4.5, width: float = WIDTH) -> Figure:
    """An empty figure that draws without a display; inches."""
    # Wide enough that the label of one panel does not touch the panel before it
    layout = ConstrainedLayoutEngine(w_pad=0.1)
    figure = Figure(figsize=(width, height), layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def style(axes: Axes, *, title: str = "", x: str = "", y: str = "") -> Axes:
    """Labels, a light grid, no box. A title too long for a narrow panel goes on after its first comma."""
    place = axes.get_subplotspec()
    if len(title) > NARROW_TITLE and place is not None and place.get_gridspec().ncols > 2:
        title = title.replace(", ", ",\n", 1)
    axes.set_title(title, fontsize=11, color=INK, loc="left", fontweight="bold")
    axes.set_xlabel(x, fontsize=10, color=INK)
    shared = axes.get_shared_y_axes().get_siblings(axes)
    first = len(shared) == 1 or place is None or place.is_first_col()
    axes.set_ylabel(y if first else "", fontsize=10, color=INK)
    axes.tick_params(labelsize=9, colors=MUTED)
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(MUTED)
    return axes


def panels(count: int, *, columns: int = 3, height: float = 3.4, **kwargs: Any) -> tuple[Figure, list[Axes]]:
    """``count`` axes in rows of at most ``columns``; unused places stay empty, shared x ticks are named."""
    columns = min(columns, max(count, 1))
    if count == columns + 1:
        columns = math.ceil(count / 2)  # four as two pairs: none is left alone
    lines = math.ceil(max(count, 1) / columns)
    figure = new_figure(height=height * lines + 0.5, width=WIDTH if columns > 1 else WIDTH * 0.65)
    grid = figure.subplots(lines, columns, squeeze=False, **kwargs).ravel().tolist()
    for unused in grid[count:]:
        unused.set_axis_off()
    for axis in grid[:count]:
        axis.tick_params(labelbottom=True)
    return figure, grid[:count]


def legend_columns(names: Sequence[str], most: int = 5, width: float = WIDTH) -> int:
    """How many columns of ``names``, at 9 points with their handles, fit below a figure of ``width`` inches.

    A column is filled before the next one and as wide as its widest name.

    >>> legend_columns(["draft", "none"]), legend_columns(4 * ["draft-smollm2:optimal, recursive_rejection"])
    (2, 2)
    """
    widths = [0.6 + 0.075 * len(name) for name in names]
    fits = lambda count: sum(column.max() for column in np.array_split(widths, count)) <= width
    return next((count for count in range(min(most, len(names)), 1, -1) if fits(count)), 1)


def legend_below(figure: Figure, handles: Sequence[Any], *, most: int = 4) -> None:
    """One legend under all panels, in as many columns, up to ``most``, as the figure is wide enough for.

    A long one makes the figure higher, not the panels smaller.
    """
    columns = legend_columns([handle.get_label() for handle in handles], most, figure.get_figwidth())
    lines = math.ceil(len(handles) / columns)
    figure.set_figheight(figure.get_figheight() + LEGEND_LINE * max(0, lines - 2))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=columns, fontsize=9, frameon=False, labelcolor=INK
    )


def key(label: str, marker: str = "", **look: Any) -> Line2D:
    """A legend's entry of its own, which no axis draws; without a line unless ``linestyle`` is given."""
    return Line2D([], [], marker=marker, label=label, **{"color": INK, "linestyle": "none"} | look)


def legend(axes: Axes, **kwargs: Any) -> None:
    """A frameless legend, if anything has a label."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(**{"fontsize": 8.5, "frameon": False, "labelcolor": INK} | kwargs)


def shades(count: int, name: str = "viridis") -> list[tuple[float, ...]]:
    """``count`` colours in order, none of them too pale for a white page."""
    return [matplotlib.colormaps[name](x) for x in np.linspace(0.08, 0.82, max(count, 2))[:count]]


def distinct(count: int) -> list[Any]:
    """``count`` colours to tell apart in a thicket of lines; shades only where there are too many."""
    return list(CATEGORICAL[:count]) if count <= len(CATEGORICAL) else shades(count)


def temperature_colors(temperatures: Sequence[float]) -> dict[float, tuple[float, ...]]:
    """Cool to warm."""
    return dict(zip(temperatures, shades(len(temperatures), "plasma")))


def errors(value: float, interval: Sequence[float] | None) -> list[list[float]] | None:
    """Matplotlib's [[below], [above]] of one point, or None without an interval."""
    if interval is None:
        return None
    # A BCa interval need not contain its estimate; matplotlib refuses negative lengths.
    return [[max(0.0, value - interval[0])], [max(0.0, interval[1] - value)]]


def all_errors(values: Sequence[float], intervals: Sequence[Sequence[float] | None]) -> np.ndarray:
    """The same for many points, [2, N]; NaN, which draws nothing, without an interval."""
    nothing = [[np.nan], [np.nan]]
    return np.hstack([errors(value, limits) or nothing for value, limits in zip(values, intervals)])


def empty(message: str) -> Figure:
    """A figure that says why there is nothing to see."""
    figure = new_figure(height=1.2)
    figure.text(0.5, 0.5, message, ha="center", va="center", color=MUTED, fontsize=11)
    return figure
