"""Figures of the paper (Leviathan et al. 2023) with a sweep's own points on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import itertools
from types import MappingProxyType
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
import numpy as np

from specjax.analysis import cells, theory, trees
from specjax.analysis import plot_style as ps
from specjax.analysis.cells import Row
from specjax.analysis.gamma_choice import choices
from specjax.analysis.plots import NOTHING

ALPHAS = np.linspace(0, 0.995, 200)
COSTS_SHOWN = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)


def expected_tokens_figure(rows: Sequence[Row]) -> Figure:
    """E[tokens] over alpha for each gamma, the measured tau on it (Fig. 2)."""
    rows = [row for row in cells.speculative(rows) if row["alpha_overlap"] is not None]
    if not rows:
        return ps.empty(NOTHING)
    figure = ps.new_figure(height=5.0)
    axis = ps.style(figure.subplots(), x="alpha_overlap (mean of sum min(p, q))", y="tau (tokens per round)")
    colors = _gamma_colors(rows)
    for gamma, color in colors.items():
        tokens = theory.expected_tokens(ALPHAS, gamma)
        axis.plot(ALPHAS, tokens, color=color, label=f"Equation (1), gamma = {gamma}")
    for row, marker, fill in _looks(rows):
        _measured(axis, row, row["tau"], row["tau_ci"], color=colors[row["gamma"]], marker=marker, fill=fill)
    axis.set_xlim(0, 1)
    axis.set_ylim(0.9, 1.25 * max(row["tau"] for row in rows) + 0.5)
    ps.legend_below(figure, [*axis.get_legend_handles_labels()[0], *_keys(rows)])
    return figure


def optimal_gamma_figure(rows: Sequence[Row]) -> Figure:
    """Optimal gamma over alpha for several c (Fig. 3), each drafter and temperature marked."""
    rows = [row for row in cells.speculative(rows) if row["alpha_overlap"] is not None]
    if not rows:
        return ps.empty(NOTHING)
    figure = ps.new_figure(height=5.0)
    axis = ps.style(figure.subplots(), x="alpha", y="optimal gamma (0: plain decoding)")
    alphas = ALPHAS[::2]
    for c, color in zip(COSTS_SHOWN, ps.shades(len(COSTS_SHOWN))):
        best = [theory.optimal_gamma(float(alpha), c=c) for alpha in alphas]
        axis.step(alphas, best, where="mid", color=color, linewidth=1.4, label=f"Theorem 3.8, c = {c:g}")
    fills = _fills(rows)
    for name, marker in _markers(rows).items():
        for choice in choices(_drafters(rows)[name]):
            axis.plot(
                choice.alpha, choice.measured_gamma, marker, fillstyle=fills[choice.temperature],
                color=ps.INK, markersize=7, markerfacecoloralt="white", clip_on=False,
            )  # fmt: skip
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlim(0, 1)
    axis.set_ylim(-0.5, max(20.5, *(row["gamma"] + 2 for row in rows)))
    costs = {
        name: [row["draft_cost_ratio"] for row in group if row["draft_cost_ratio"] is not None]
        for name, group in _drafters(rows).items()
    }
    told = {name: f", c = {np.median(values):.3f}" for name, values in costs.items() if values}
    keys = _keys(rows, measured="fastest", told=told)
    ps.legend_below(figure, [*axis.get_legend_handles_labels()[0], *keys], most=3)
    return figure


def memory_figure(rows: Sequence[Row]) -> Figure:
    """Target weights and KV cache read per emitted token, over plain decoding's."""
    rows = [row for row in cells.speculative(rows) if row["alpha_overlap"] is not None]
    if not rows:
        return ps.empty(NOTHING)
    figure = ps.new_figure(height=4.6)
    axis = ps.style(
        figure.subplots(), x="alpha_overlap", y="target memory reads per token\n(plain decoding = 1)"
    )
    colors = _gamma_colors(rows)
    for gamma, color in colors.items():
        reads = theory.memory_traffic_factor(theory.expected_tokens(ALPHAS, gamma))
        axis.plot(ALPHAS, reads, color=color, label=f"1 / E[tokens], gamma = {gamma}")
    for row, marker, fill in _looks(rows):
        interval = row["tau_ci"] and [1 / row["tau_ci"][1], 1 / row["tau_ci"][0]]
        _measured(axis, row, 1 / row["tau"], interval, color=colors[row["gamma"]], marker=marker, fill=fill)
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1.03)
    ps.legend_below(figure, [*axis.get_legend_handles_labels()[0], *_keys(rows)])
    return figure


def timeline_figure(rows: Sequence[Row]) -> Figure:
    """Draft and target calls over time, for two gammas of the fastest drafter and plain decoding (Fig. 5)."""
    # A cascade, which has no one c, is no row of one kind of calls.
    known = lambda row: None not in (row["draft_cost_ratio"], row["verify_cost_ratio"])
    best = cells.best([row for row in trees.chain_rows(rows) if known(row)])
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
    ends = [_rounds(axis, -place, row, num_tokens) for place, row in enumerate(shown)]
    for step in range(num_tokens):
        _call(axis, -len(shown), step, 1.0, ps.TARGET_COLOR, "1")
    names = [*(f"gamma = {row['gamma']}" for row in shown), "plain decoding"]
    axis.set_yticks([-place for place in range(len(names))], names)
    axis.set_ylim(-len(shown) - 0.6, 0.6)
    axis.grid(False)
    axis.set_xlim(0, 1.01 * max(num_tokens, *ends))
    handles = [
        Patch(color=ps.DRAFT_COLOR, label="draft steps, or a proposal without steps"),
        Patch(color=ps.TARGET_COLOR, label="target call, with the tokens it yields"),
    ]
    ps.legend_below(figure, handles)
    return figure


def _rounds(axis: Axes, y: float, row: Row, num_tokens: int) -> float:
    """Rounds of the measured costs, each of tau tokens on average, shown in whole ones. Returns their end."""
    time, emitted, number = 0.0, 0, 0
    steps = draft_steps(row)
    while emitted < num_tokens:
        number += 1
        new = min(round(number * row["tau"]), num_tokens) - emitted
        draft = row["proposal_cost_ratio"] / steps
        for _ in range(steps):
            _call(axis, y, time, draft, ps.DRAFT_COLOR, "")
            time += draft
        _call(axis, y, time, row["verify_cost_ratio"], ps.TARGET_COLOR, str(new))
        time, emitted = time + row["verify_cost_ratio"], emitted + new
    return time


def draft_steps(row: Row) -> int:
    """Draft steps in a proposal of ``row``; 1, the proposal as a whole, of a drafter that takes none."""
    return row["gamma"] if row["costs"]["draft_step_seconds"] else 1


def _call(axis: Axes, y: float, start: float, length: float, color: str, text: str) -> None:
    # An edge takes from the bar: of a short call no more than a part.
    edge = min(0.6, 8 * length)
    axis.barh(y, length, left=start, height=0.62, color=color, edgecolor="white", linewidth=edge)
    if text:
        axis.text(start + length / 2, y, text, ha="center", va="center", color="white", fontsize=9)


def _measured(
    axis: Axes, row: Row, value: float, interval: Sequence[float] | None, *, color, marker: str, fill: str
) -> None:
    """A measured point over its alpha_overlap, with both intervals."""
    axis.errorbar(
        [row["alpha_overlap"]], [value],
        xerr=ps.errors(row["alpha_overlap"], row["alpha_overlap_ci"]), yerr=ps.errors(value, interval),
        fmt=marker, color=color, markersize=6, capsize=2, elinewidth=0.8, fillstyle=fill,
        markerfacecoloralt="white", clip_on=False,
    )  # fmt: skip


def _drafters(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Lines by what a marker stands for: drafter and rule, or the drafter alone if they are too many."""
    groups = cells.by_drafter(rows)
    if len(groups) <= len(ps.MARKERS):
        return groups
    merged: dict[str, list[Row]] = {}
    for group in groups.values():
        merged.setdefault(group[0]["drafter"], []).extend(group)
    return merged


def _markers(rows: Sequence[Row]) -> dict[str, str]:
    return dict(zip(_drafters(rows), itertools.cycle(ps.MARKERS)))


def _fills(rows: Sequence[Row]) -> dict[float, str]:
    return dict(zip(cells.by_temperature(rows), itertools.cycle(ps.FILLS)))


def _gamma_colors(rows: Sequence[Row]) -> dict[int, Any]:
    gammas = sorted({row["gamma"] for row in rows})
    return dict(zip(gammas, ps.distinct(len(gammas))))


def _looks(rows: Sequence[Row]) -> Iterator[tuple[Row, str, str]]:
    """(line, marker of its drafter, fill of its temperature)."""
    markers, fills = _markers(rows), _fills(rows)
    for name, group in _drafters(rows).items():
        yield from ((row, markers[name], fills[row["temperature"]]) for row in group)


def _keys(
    rows: Sequence[Row], *, measured: str = "measured", told: Mapping[str, str] = MappingProxyType({})
) -> list[Line2D]:
    """Entries of a legend: a marker a drafter, with what is ``told`` of it, and a fill a temperature."""
    names = [
        ps.key(f"{measured}: {name}{told.get(name, '')}", marker) for name, marker in _markers(rows).items()
    ]
    look = {"markerfacecoloralt": "white"}
    return names + [ps.key(f"T = {t:g}", "o", fillstyle=fill, **look) for t, fill in _fills(rows).items()]
