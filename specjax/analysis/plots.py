"""Figures of what a sweep measured. Each takes results lines and returns a matplotlib Figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
import numpy as np

from specjax.analysis import cells, theory
from specjax.analysis import plot_style as ps
from specjax.analysis.cells import Row

MIN_TESTS = 10  # a draft position tested fewer times is not drawn
NOTHING = "No finished cell with a drafter."
# Field, line, marker where one gamma leaves no line, name
PREDICTIONS = (
    ("speedup_cost_model", "--", "D", "predicted: tau / (d + v)"),
    ("speedup_leviathan", ":", "x", "predicted: Theorem 3.8, v = 1"),
)


def speedup_figure(rows: Sequence[Row]) -> Figure:
    """Speedup over gamma, one panel a drafter: measured with CI, and both predictions."""
    groups = cells.by_drafter(rows)
    if not groups:
        return ps.empty(NOTHING)
    figure, axes = ps.panels(len(groups), sharey=True)
    colors = ps.temperature_colors(sorted({row["temperature"] for row in cells.speculative(rows)}))
    for axis, (name, group) in zip(axes, groups.items()):
        ps.style(axis, title=name, x="gamma (draft tokens per round)", y="speedup (x plain decoding)")
        axis.axhline(1, color=ps.MUTED, linewidth=1)
        for temperature, lines in cells.by_temperature(group).items():
            color = colors[temperature]
            for row in lines:
                _point(axis, row["gamma"], row["speedup"], row["speedup_ci"], color=color)
            _line(axis, lines, "speedup", color=color)
            for field, linestyle, marker, _ in PREDICTIONS:
                _line(axis, lines, field, alone=marker, color=color, linestyle=linestyle, alpha=0.8)
        axis.set_xticks(sorted({row["gamma"] for row in group}))
    handles = [
        ps.key(f"measured, T = {t:g}", "o", color=color, linestyle="-", markersize=4.5)
        for t, color in colors.items()
    ]
    points = {line.get_marker() for axis in axes for line in axis.lines}
    for _, linestyle, marker, name in PREDICTIONS:
        shown = marker if marker in points else ""
        handles.append(ps.key(name, shown, color=ps.MUTED, linestyle=linestyle, markerfacecolor="none"))
    ps.legend_below(figure, handles, most=3)
    return figure


def heatmap_figure(rows: Sequence[Row]) -> Figure:
    """Measured speedup by gamma and temperature, one panel a drafter."""
    groups = cells.by_drafter(rows)
    values = [row["speedup"] for row in cells.speculative(rows) if row["speedup"] is not None]
    if not values:
        return ps.empty(NOTHING)
    norm = TwoSlopeNorm(vmin=min(0.5, *values), vcenter=1, vmax=max(1.5, *values))
    figure, axes = ps.panels(len(groups), height=2.6)
    for axis, (name, group) in zip(axes, groups.items()):
        gammas = sorted({row["gamma"] for row in group})
        temperatures = sorted({row["temperature"] for row in group})
        table = np.full((len(temperatures), len(gammas)), np.nan)
        for row in group:
            if row["speedup"] is not None:
                table[temperatures.index(row["temperature"]), gammas.index(row["gamma"])] = row["speedup"]
        image = axis.imshow(table, norm=norm, cmap="RdBu", aspect="auto")
        for (i, j), value in np.ndenumerate(table):
            strong = abs(norm(value) - 0.5) > 0.3
            text = "-" if np.isnan(value) else f"{value:.2f}"
            axis.text(j, i, text, ha="center", va="center", fontsize=10, color="white" if strong else ps.INK)
        ps.style(axis, title=name, x="gamma (draft tokens per round)", y="temperature").grid(False)
        axis.set_xticks(range(len(gammas)), [str(g) for g in gammas])
        axis.set_yticks(range(len(temperatures)), [f"{t:g}" for t in temperatures])
    bar = figure.colorbar(image, ax=axes, shrink=0.9)
    bar.set_label("speedup (x plain decoding)", fontsize=9, color=ps.INK)
    bar.ax.tick_params(labelsize=8, colors=ps.MUTED)
    return figure


def acceptance_figure(rows: Sequence[Row]) -> Figure:
    """c_k by position with CI, and the prefix products c_1 ... c_k, at each drafter's largest gamma."""
    groups = cells.by_drafter(rows)
    if not groups:
        return ps.empty(NOTHING)
    figure, axes = ps.panels(len(groups), sharex=True, sharey=True)
    colors = ps.temperature_colors(sorted({row["temperature"] for row in cells.speculative(rows)}))
    for axis, (name, group) in zip(axes, groups.items()):
        ps.style(axis, title=name, x="draft position k", y="acceptance probability")
        for temperature, lines in cells.by_temperature(group).items():
            row, color = lines[-1], colors[temperature]
            known = _known_positions(row)
            positions = np.arange(1, len(known) + 1)
            axis.plot(positions, known, "o-", color=color, markersize=4, linewidth=1.5, clip_on=False)
            intervals = [ci or (c, c) for c, ci in zip(known, row["acceptance_by_position_ci"])]
            if intervals:
                axis.fill_between(positions, *np.transpose(intervals), color=color, alpha=0.15, linewidth=0)
            axis.plot(positions, theory.prefix_products(known), color=color, linestyle="--", alpha=0.8)
        axis.set_ylim(0, 1.03)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles = [
        ps.key(f"c_k at T = {t:g}", "o", color=color, linestyle="-", markersize=4)
        for t, color in colors.items()
    ]
    name = "c_1 ... c_k: k drafts or more accepted"
    ps.legend_below(figure, [*handles, ps.key(name, color=ps.MUTED, linestyle="--")], most=2)
    return figure


def gain_figure(rows: Sequence[Row]) -> Figure:
    """What one more point of c_k is worth, by position, at each drafter's largest gamma."""
    groups = cells.by_drafter(rows)
    if not groups:
        return ps.empty(NOTHING)
    figure, axes = ps.panels(len(groups), sharex=True, sharey=True)
    colors = ps.temperature_colors(sorted({row["temperature"] for row in cells.speculative(rows)}))
    for axis, (name, group) in zip(axes, groups.items()):
        ps.style(axis, title=name, x="draft position k", y="tokens per round, per point of c_k")
        temperatures = cells.by_temperature(group)
        width = 0.8 / len(temperatures)
        for i, (temperature, lines) in enumerate(temperatures.items()):
            gains = theory.gain_by_position(_known_positions(lines[-1])) / 100
            places = np.arange(1, len(gains) + 1) + (i - (len(temperatures) - 1) / 2) * width
            axis.bar(places, gains, width=width, color=colors[temperature], label=f"T = {temperature:g}")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        ps.legend(axis, loc="upper right")
    return figure


def costs_figure(rows: Sequence[Row]) -> Figure:
    """What a round costs: v(T) of the target and d(gamma) of each drafter, in one-token target steps."""
    rows = [row for row in cells.speculative(rows) if row["verify_cost_ratio"] is not None]
    if not rows:
        return ps.empty("No measured costs.")
    figure, (scoring, drafting) = ps.panels(2, columns=2, height=3.8)
    ps.style(
        scoring, title="scoring: v(T)", x="T (tokens in one target step)", y="time (one-token target steps)"
    )
    ps.style(
        drafting,
        title="drafting: d(gamma)",
        x="gamma (draft tokens per round)",
        y="time (one-token target steps)",
    )
    for color, target in zip(ps.CATEGORICAL, sorted({row["target"] for row in rows})):
        lines = [row for row in rows if row["target"] == target]
        _, v = cells.cost_curves(lines)
        scoring.plot(sorted(v), [v[t] for t in sorted(v)], color=color, label=target)
        for row in lines:
            _point(
                scoring, row["gamma"] + 1, row["verify_cost_ratio"], row["verify_cost_ratio_ci"], color=color
            )
    scoring.axhline(1, color=ps.MUTED, linestyle=":", label="v = 1: scoring is free (the paper)")
    scoring.set_ylim(0, None)
    ps.legend(scoring)
    for color, (name, group) in zip(ps.CATEGORICAL, cells.by_drafter(rows).items()):
        d, _ = cells.cost_curves(group)
        ratios = [row["draft_cost_ratio"] for row in group if row["draft_cost_ratio"] is not None]
        tag = f"{name}, c = {np.median(ratios):.3f}" if ratios else name
        drafting.plot(sorted(d), [d[g] for g in sorted(d)], color=color, label=tag)
        for row in group:
            _point(
                drafting, row["gamma"], row["proposal_cost_ratio"], row["proposal_cost_ratio_ci"], color=color
            )
    drafting.set_ylim(0, None)
    ps.legend(drafting)
    return figure


def _known_positions(row: Row) -> list[float]:
    """c_1, c_2, ... up to the first position with too few tests to tell anything."""
    known = [n >= MIN_TESTS for n in row["tested_by_position"]] + [False]
    return row["acceptance_by_position"][: known.index(False)]


def _line(axis: Axes, lines: Sequence[Row], field: str, *, alone: str = "", **kwargs: Any) -> None:
    """A line over gamma; ``alone`` is the marker of a single point, of which a line shows nothing."""
    points = [(row["gamma"], row[field]) for row in lines if row[field] is not None]
    marker = alone if len(points) == 1 else ""
    axis.plot(
        [x for x, _ in points], [y for _, y in points], linewidth=1.5, marker=marker, markersize=8,
        markerfacecolor="none", **kwargs,
    )  # fmt: skip


def _point(axis, x: float, value: float | None, interval: Sequence[float] | None, *, color) -> None:
    if value is not None:
        axis.errorbar(
            [x], [value], yerr=ps.errors(value, interval), fmt="o", markersize=4.5, capsize=2.5, color=color
        )
