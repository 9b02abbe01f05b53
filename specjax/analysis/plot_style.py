"""One look for every figure: object-oriented matplotlib, no global state."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
import numpy as np

INK, MUTED, GRID = "#1f2933", "#616e7c", "#e4e7eb"
TARGET_COLOR, DRAFT_COLOR, FASTER, SLOWER = "#3b6fb6", "#e8912d", "#1b7f5c", "#b8433c"
CATEGORICAL = ("#3b6fb6", "#e8912d", "#1b9e77", "#8e5ea2", "#c0504d", "#4bacc6", "#7f7f7f", "#a6761d")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
WIDTH = 9.0  # inches of a full-width figure
NARROW_TITLE = 24  # characters over one panel of three


def new_figure(height: float = 4.5, width: float = WIDTH) -> Figure:
    """An empty figure that draws without a display; inches."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
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
    """``count`` axes in rows of at most ``columns``; unused places stay empty."""
    columns = min(columns, max(count, 1))
    lines = math.ceil(max(count, 1) / columns)
    figure = new_figure(height=height * lines + 0.5, width=WIDTH if columns > 1 else WIDTH * 0.65)
    grid = figure.subplots(lines, columns, squeeze=False, **kwargs).ravel().tolist()
    for unused in grid[count:]:
        unused.set_axis_off()
    return figure, grid[:count]


def legend_columns(names: Sequence[str], most: int = 5) -> int:
    """How many columns of ``names``, at 9 points with their handles, fit below a figure of full width.

    >>> legend_columns(["draft", "none"]), legend_columns(["draft-smollm2:optimal, recursive_rejection"])
    (5, 2)
    """
    return max(1, min(most, int(WIDTH / (0.6 + 0.08 * max(map(len, names))))))


def legend(axes: Axes, **kwargs: Any) -> None:
    """A frameless legend, if anything has a label."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(**{"fontsize": 8.5, "frameon": False, "labelcolor": INK} | kwargs)


def shades(count: int, name: str = "viridis") -> list[tuple[float, ...]]:
    """``count`` colours in order, none of them too pale for a white page."""
    return [matplotlib.colormaps[name](x) for x in np.linspace(0.08, 0.82, max(count, 2))[:count]]


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
