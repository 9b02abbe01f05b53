"""Figure of the alpha that pays at the measured costs."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
import numpy as np

from specjax.analysis import cells, theory
from specjax.analysis import plot_style as ps
from specjax.analysis.break_even import SPEEDUPS, AlphaNeeded, alphas_needed

LINES = ("-", "--", ":")  # of SPEEDUPS
STEP = 0.03  # between two temperatures, of the width of a panel


def alpha_needed_figure(rows: Sequence[cells.Row]) -> Figure:
    """Alpha needed over gamma for each of SPEEDUPS, the measured alphas on it, one panel a drafter."""
    drafters: dict[str, list[AlphaNeeded]] = {}
    for line in alphas_needed(rows):
        drafters.setdefault(line.label, []).append(line)
    if not drafters:
        return ps.empty("No measured costs.")
    figure, axes = ps.panels(len(drafters), sharey=True)
    colors = ps.temperature_colors(sorted({row["temperature"] for row in cells.speculative(rows)}))
    for axis, (name, lines) in zip(axes, drafters.items()):
        ps.style(axis, title=name, x="gamma (draft tokens per round)", y="alpha")
        _needed(axis, [line.row for line in lines])
        step = STEP * max(line.row["gamma"] for line in lines)
        for i, (temperature, color) in enumerate(colors.items()):
            shift = (i - (len(colors) - 1) / 2) * step
            _measured(axis, [line for line in lines if line.row["temperature"] == temperature], shift, color)
        axis.set_xticks(sorted({line.row["gamma"] for line in lines}))
        axis.set_ylim(0, 1.03)
    handles = axes[0].get_legend_handles_labels()[0]
    handles += [ps.key(f"alpha_overlap, T = {t:g}", "o", color=color) for t, color in colors.items()]
    handles += [ps.key("alpha of the measured tau", "D", color=ps.MUTED, markerfacecolor="white")]
    ps.legend_below(figure, handles)
    return figure


def _needed(axis: Axes, rows: Sequence[cells.Row]) -> None:
    """Curves at the drafter's median costs, linear between measured gammas; they end where alpha = 1 does."""
    d, v = (cells.linear(curve) for curve in cells.cost_curves(rows))
    gammas = np.arange(1, max(row["gamma"] for row in rows) + 1)
    drafting, scoring = [d(gamma) for gamma in gammas], [v(gamma + 1) for gamma in gammas]
    for speedup, linestyle in zip(SPEEDUPS, LINES):
        alphas = theory.alpha_needed(speedup, gammas, drafting, scoring)
        name = "break even" if speedup == 1 else f"{speedup:g}x"
        axis.plot(gammas, alphas, linestyle, color=ps.INK, linewidth=1.4, label=f"needed: {name}")
        if speedup == 1:
            axis.fill_between(
                gammas, np.nan_to_num(alphas, nan=1.0), color=ps.SLOWER, alpha=0.09, linewidth=0
            )


def _measured(axis: Axes, lines: Sequence[AlphaNeeded], shift: float, color: tuple[float, ...]) -> None:
    """alpha_overlap with its interval, filled, and hollow the alpha of tau."""
    places = [line.row["gamma"] + shift for line in lines]
    hollow = [line.alpha_of_tau for line in lines]
    axis.plot(places, hollow, "D", color=color, markerfacecolor="white", markersize=5, clip_on=False)
    tested = [(x, line.row) for x, line in zip(places, lines) if line.row["alpha_overlap"] is not None]
    if tested:
        alphas = [row["alpha_overlap"] for _, row in tested]
        axis.errorbar(
            [x for x, _ in tested], alphas,
            yerr=ps.all_errors(alphas, [row["alpha_overlap_ci"] for _, row in tested]),
            fmt="o", color=color, markersize=4.5, capsize=2.5, elinewidth=1, clip_on=False,
        )  # fmt: skip
