"""Figure of acceptance and speed by group of prompts."""

from __future__ import annotations

from collections.abc import Sequence
import itertools

from matplotlib.axes import Axes
from matplotlib.figure import Figure
import numpy as np

from specjax.analysis import plot_style as ps
from specjax.analysis.cells import Row
from specjax.analysis.groups import GroupTable, group_tables

PANELS = {"alpha_accept": "alpha_accept", "speedup": "speedup (x plain decoding)"}
POOLED = "all prompts"
SPREAD = 0.8  # of the height of a group, shared by its drafters


def group_figure(rows: Sequence[Row]) -> Figure:
    """alpha_accept and speedup by group, one colour a drafter at its best gamma, one row a temperature."""
    tables = group_tables(rows)
    if not tables:
        return ps.empty("All prompts are of one group.")
    names = list(dict.fromkeys(name for table in tables for name in table.lines))
    looks = dict(zip(names, zip(itertools.cycle(ps.CATEGORICAL), itertools.cycle(ps.MARKERS))))
    places = max(len(table.groups) for table in tables) + 1
    height = max(2.2, 0.11 * places * (len(names) + 1))
    figure, axes = ps.panels(2 * len(tables), columns=2, height=height, sharex="col")
    for table, pair in zip(tables, zip(axes[::2], axes[1::2])):
        for axis, (field, x) in zip(pair, PANELS.items()):
            ps.style(axis, title=f"T = {table.temperature:g}", x=x, y="group of prompts")
            _dots(axis, table, field, looks)
        pair[0].set_xlim(0, 1)
        pair[1].axvline(1, color=ps.MUTED, linewidth=1)
        pair[1].set_ylabel("")
        pair[1].tick_params(labelleft=False)
    handles = [ps.key(name, marker, color=color) for name, (color, marker) in looks.items()]
    ps.legend_below(figure, handles, most=5)
    return figure


def _dots(axis: Axes, table: GroupTable, field: str, looks: dict) -> None:
    """A dot with its interval for each drafter and group; the pooled estimate on top."""
    groups = [POOLED, *table.groups]
    for i, (name, row) in enumerate(table.lines.items()):
        offset = (i - (len(table.lines) - 1) / 2) * SPREAD / len(table.lines)
        color, marker = looks[name]
        lines = [row, *(row["by_group"].get(name, {}) for name in table.groups)]
        known = [(place, line) for place, line in enumerate(lines) if line.get(field) is not None]
        if known:
            values = [line[field] for _, line in known]
            axis.errorbar(
                values, [place + offset for place, _ in known],
                xerr=ps.all_errors(values, [line[f"{field}_ci"] for _, line in known]),
                fmt=marker, color=color, markersize=4.5, capsize=2, elinewidth=1, clip_on=False,
            )  # fmt: skip
    axis.axhspan(-0.5, 0.5, color=ps.GRID, alpha=0.5, linewidth=0)
    for boundary in np.arange(len(groups) - 1) + 0.5:
        axis.axhline(boundary, color=ps.GRID, linewidth=0.8)
    axis.grid(False, axis="y")
    axis.set_yticks(range(len(groups)), [group or "(none)" for group in groups])
    axis.set_ylim(len(groups) - 0.5, -0.5)
