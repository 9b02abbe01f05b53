"""Figures of heads: their accuracies by rank, and over training the tau they predict and reach."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import itertools
from typing import Any

from matplotlib.figure import Figure

from specjax.analysis import heads
from specjax.analysis import plot_style as ps
from specjax.analysis.cells import Row
from specjax.analysis.trees import RANKS_SHOWN


def accuracy_figure(rows: Sequence[Row]) -> Figure:
    """Top-1 .. top-5 of each head, one panel a drafter, and published top-1 values."""
    lines = heads.head_lines(rows)
    names = list(dict.fromkeys(name for line in lines for name in line.top))
    if not names:
        return ps.empty("No heads.")
    figure, axes = ps.panels(len(names), columns=2, height=3.6, sharey=True)
    shades = ps.shades(RANKS_SHOWN)
    for axis, name in zip(axes, names):
        ps.style(axis, title=name, x="head (tokens after the pending one)", y="accuracy on held-out text")
        own = [line for line in lines if name in line.top]
        for rank in reversed(range(RANKS_SHOWN)):
            axis.plot(
                [line.head for line in own], [line.top[name][rank] for line in own],
                "o-", color=shades[rank], markersize=4.5, label=f"top-{rank + 1}",
            )  # fmt: skip
        for marker, (published, values) in zip("^vD", heads.PUBLISHED_TOP1.items()):
            axis.plot(
                range(1, len(values) + 1), values, marker, color=ps.MUTED, markerfacecolor="white",
                markersize=6, label=f"top-1, {published}",
            )  # fmt: skip
        axis.set_xticks(range(1, max(len(own), 5) + 1))
        axis.set_ylim(0, 1.03)
    ps.legend_below(figure, axes[0].get_legend_handles_labels()[0])
    return figure


def training_figure(metrics: Iterable[Mapping[str, Any]]) -> Figure:
    """Left the top-1 accuracy of each head over training, right the tau it predicts and the tau decoded."""
    lines = list(metrics)
    accuracies, curves = heads.top1_curves(lines), heads.tau_curves(lines)
    if not curves:
        return ps.empty("No evaluation yet.")
    figure, (left, right) = ps.panels(2, columns=2, height=4.0)
    ps.style(left, title="each head", x="step", y="top-1 accuracy on held-out text")
    for (head, points), color in zip(accuracies.items(), ps.shades(len(accuracies))):
        left.plot(*zip(*points), "o-", color=color, markersize=3.5, label=f"head {head}")
    left.set_ylim(0, None)
    ps.legend(left)
    ps.style(right, title="proxy and decoding", x="step", y="tau (tokens per round)")
    for curve, hue in zip(curves, itertools.cycle(ps.CATEGORICAL)):
        shape = curve.shape.replace("tree", "tree of ")
        right.plot(
            curve.steps, curve.predicted, "x--", color=hue, markersize=4.5, label=f"{shape}: predicted"
        )
        known = [
            point
            for point in zip(curve.steps, curve.real, curve.real_ci, strict=True)
            if point[1] is not None
        ]
        if known:
            steps, real, limits = zip(*known)
            right.errorbar(
                steps, real, yerr=ps.all_errors(real, limits), fmt="o-", color=hue, markersize=4.5,
                capsize=2.5, label=f"{shape}: decoded",
            )  # fmt: skip
    right.set_ylim(0.95, None)
    for axis in (left, right):
        axis.set_xlim(0, None)
    ps.legend(right, fontsize=8)
    return figure
