"""Figures of the paper (Leviathan et al. 2023) with a sweep's own points on them."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
import numpy as np

from specjax.analysis import cells, theory, trees
from specjax.analysis import plot_style as ps
from specjax.analysis.cells import Row
from specjax.analysis.plots import NOTHING

ALPHAS = np.linspace(0, 0.995, 200)
COSTS_SHOWN = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)


def expected_tokens_figure(rows: Sequence[Row]) -> Figure:
    """E[tokens] over alpha for each gamma, the measured tau on it (Fig. 2)."""
    rows = [row for row in cells.speculative(rows) if row["alpha_overlap"] is not None]
    if not rows:
        return ps.empty(NOTHING)
    figure = ps.new_figure(height=4.8)
    axis = ps.style(figure.subplots(), x="alpha_overlap (mean of sum min(p, q))", y="tau (tokens per round)")
    gammas = sorted({row["gamma"] for row in rows})
    for gamma, color in zip(gammas, ps.shades(len(gammas))):
        axis.plot(
            ALPHAS, theory.expected_tokens(ALPHAS, gamma), color=color, label=f"Equation (1), gamma = {gamma}"
        )
        for marker, group in zip(ps.MARKERS, cells.by_drafter(rows).values()):
            for row in (row for row in group if row["gamma"] == gamma):
                _measured(axis, row, row["tau"], row["tau_ci"], color=color, marker=marker)
    _name_markers(axis, rows)
    axis.set_xlim(0, 1)
    axis.set_ylim(0.9, 1.25 * max(row["tau"] for row in rows) + 0.5)
    ps.legend(axis, loc="upper left")
    return figure


def optimal_gamma_figure(rows: Sequence[Row]) -> Figure:
    """Optimal gamma over alpha for several c (Fig. 3), each drafter and temperature marked."""
    rows = [row for row in cells.speculative(rows) if row["alpha_overlap"] is not None]
    if not rows:
        return ps.empty(NOTHING)
    figure = ps.new_figure(height=4.8)
    axis = ps.style(figure.subplots(), x="alpha", y="optimal gamma (draft tokens per round)")
    alphas = ALPHAS[::2]
    for c, color in zip(COSTS_SHOWN, ps.shades(len(COSTS_SHOWN))):
        best = [theory.optimal_gamma(float(alpha), c=c) for alpha in alphas]
        axis.step(alphas, best, where="mid", color=color, linewidth=1.4, label=f"Theorem 3.8, c = {c:g}")
    for marker, group in zip(ps.MARKERS, cells.by_drafter(rows).values()):
        for lines in cells.by_temperature(group).values():
            row = cells.most_tested(lines)
            fastest = max(lines, key=lambda line: line["speedup"] or 0.0)
            axis.plot(row["alpha_overlap"], fastest["gamma"], marker, color=ps.INK, markersize=7)
    for marker, (name, group) in zip(ps.MARKERS, cells.by_drafter(rows).items()):
        costs = [row["draft_cost_ratio"] for row in group if row["draft_cost_ratio"] is not None]
        name = f"fastest measured: {name}" + (f", c = {np.median(costs):.3f}" if costs else "")
        axis.plot([], [], marker, color=ps.INK, linestyle="none", label=name)
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlim(0, 1)
    axis.set_ylim(-0.5, max(20.5, *(row["gamma"] + 2 for row in rows)))
    ps.legend(axis, loc="upper left")
    return figure


def memory_figure(rows: Sequence[Row]) -> Figure:
    """Target weights and KV cache read per emitted token, over plain decoding's."""
    rows = [row for row in cells.speculative(rows) if row["alpha_overlap"] is not None]
    if not rows:
        return ps.empty(NOTHING)
    figure = ps.new_figure(height=4.4)
    axis = ps.style(
        figure.subplots(), x="alpha_overlap", y="target memory reads per token\n(plain decoding = 1)"
    )
    gammas = sorted({row["gamma"] for row in rows})
    for gamma, color in zip(gammas, ps.shades(len(gammas))):
        tokens = theory.expected_tokens(ALPHAS, gamma)
        axis.plot(
            ALPHAS, theory.memory_traffic_factor(tokens), color=color, label=f"1 / E[tokens], gamma = {gamma}"
        )
        for marker, group in zip(ps.MARKERS, cells.by_drafter(rows).values()):
            for row in (row for row in group if row["gamma"] == gamma):
                interval = row["tau_ci"] and [1 / row["tau_ci"][1], 1 / row["tau_ci"][0]]
                _measured(axis, row, 1 / row["tau"], interval, color=color, marker=marker)
    _name_markers(axis, rows)
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1.03)
    ps.legend(axis, loc="lower left")
    return figure


def timeline_figure(rows: Sequence[Row]) -> Figure:
    """Draft and target calls over time, for two gammas of the fastest drafter and plain decoding (Fig. 5)."""
    best = cells.best([row for row in trees.chain_rows(rows) if row["verify_cost_ratio"] is not None])
    if best is None:
        return ps.empty("No measured costs.")
    same = ("pair", "drafter", "acceptance", "temperature")
    peers = [row for row in cells.speculative(rows) if all(row[key] == best[key] for key in same)]
    others = [row for row in peers if row["gamma"] != best["gamma"] and row["verify_cost_ratio"] is not None]
    # The neighbour that differs most in length shows most.
    shown = [best, *sorted(others, key=lambda row: -abs(row["gamma"] - best["gamma"]))[:1]]
    shown.sort(key=lambda row: -row["gamma"])
    num_tokens = 12
    figure = ps.new_figure(height=1.1 * (len(shown) + 1) + 1.1)
    axis = ps.style(
        figure.subplots(),
        title=f"{best['drafter']}, T = {best['temperature']:g}: the calls that make {num_tokens} tokens",
        x="time (one-token target steps)",
    )
    names = []
    for place, row in enumerate(shown):
        _rounds(axis, -place, row, num_tokens)
        names.append(f"gamma = {row['gamma']}")
    for step in range(num_tokens):
        _call(axis, -len(shown), step, 1.0, ps.TARGET_COLOR, "1")
    names.append("plain decoding")
    axis.set_yticks([-place for place in range(len(names))], names)
    axis.set_ylim(-len(shown) - 0.6, 0.6)
    axis.grid(False)
    axis.bar([0], [0], color=ps.DRAFT_COLOR, label="draft call")
    axis.bar([0], [0], color=ps.TARGET_COLOR, label="target call, with the tokens it yields")
    axis.set_xlim(0, num_tokens * 1.01)
    figure.legend(
        *axis.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=9, frameon=False
    )
    return figure


def _rounds(axis: Axes, y: float, row: Row, num_tokens: int) -> None:
    """Rounds of the measured costs; each emits tau tokens on average, shown in whole tokens."""
    time, emitted, number = 0.0, 0, 0
    while emitted < num_tokens:
        number += 1
        new = min(round(number * row["tau"]), num_tokens) - emitted
        draft = row["proposal_cost_ratio"] / row["gamma"]
        for _ in range(row["gamma"]):
            _call(axis, y, time, draft, ps.DRAFT_COLOR, "")
            time += draft
        _call(axis, y, time, row["verify_cost_ratio"], ps.TARGET_COLOR, str(new))
        time, emitted = time + row["verify_cost_ratio"], emitted + new


def _call(axis: Axes, y: float, start: float, length: float, color: str, text: str) -> None:
    axis.barh(y, length, left=start, height=0.62, color=color, edgecolor="white", linewidth=0.6)
    if text:
        axis.text(start + length / 2, y, text, ha="center", va="center", color="white", fontsize=9)


def _measured(
    axis: Axes, row: Row, value: float, interval: Sequence[float] | None, *, color, marker: str
) -> None:
    """A measured point over its alpha_overlap, with both intervals."""
    axis.errorbar(
        [row["alpha_overlap"]], [value],
        xerr=ps.errors(row["alpha_overlap"], row["alpha_overlap_ci"]), yerr=ps.errors(value, interval),
        fmt=marker, color=color, markersize=6, capsize=2, elinewidth=1, markeredgecolor="white",
    )  # fmt: skip


def _name_markers(axis: Axes, rows: Sequence[Row]) -> None:
    for marker, name in zip(ps.MARKERS, cells.by_drafter(rows)):
        axis.plot([], [], marker, color=ps.INK, linestyle="none", label=f"measured: {name}")
