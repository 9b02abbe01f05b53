"""Figures of trees: their nodes drawn, and tau beside that of chains of as many scored tokens."""

from __future__ import annotations

from collections.abc import Sequence
import itertools

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
import numpy as np

from specjax.analysis import cells, trees
from specjax.analysis import plot_style as ps
from specjax.analysis.cells import Row
from specjax.analysis.trees import Node

NO_TREES = "No finished cell with trees."
MOST_DRAWN = 6  # trees of one figure
LIKELY, UNLIKELY = 6.0, 0.6  # points of an edge's width at acceptance 1 and 0
STEP = 0.008  # between two drafters of one budget, of the largest budget
Choice = tuple[int, ...]


def tree_figure(rows: Sequence[Row]) -> Figure:
    """Each shape at its largest budget and the coolest temperature, with what was accepted where."""
    shown = _to_draw(rows)
    if not shown:
        return ps.empty(NO_TREES)
    depths = [max(map(len, row["shape"])) for row in shown.values()]
    heights = [1.2 + 0.62 * depth for depth in depths]
    figure, axes = ps.panels(len(shown), columns=1, height=sum(heights) / len(heights), height_ratios=heights)
    figure.set_figwidth(ps.WIDTH)
    for axis, (name, row) in zip(axes, shown.items()):
        title = f"{name}, {row['gamma'] + 1} nodes, T = {row['temperature']:g}: tau {row['tau']:.2f}"
        ps.style(axis, title=title, x="children of a node by rank, likeliest left", y="depth")
        draw_tree(axis, trees.nodes(row))
    return figure


def _to_draw(rows: Sequence[Row]) -> dict[str, Row]:
    """One line of each shape: a lossy rule's only where there is no other, the first of several rules."""
    drawn: dict[tuple[str, str], tuple[str, Row]] = {}
    for name, group in cells.by_drafter(trees.tree_rows(rows)).items():
        row = min(group, key=lambda row: (row["temperature"], -row["gamma"]))
        of_shape = (row["pair"], row["drafter"])
        if of_shape not in drawn or row["lossless"] > drawn[of_shape][1]["lossless"]:
            drawn[of_shape] = (name, row)
    return dict(itertools.islice(drawn.values(), MOST_DRAWN))


def draw_tree(axis: Axes, below_root: Sequence[Node]) -> None:
    """Nodes by rank, an edge as wide as its chance, given that its upper end was accepted."""
    place = _places([node.choice for node in below_root])
    leaves = 1 + max(x for x, _ in place.values())
    size = 8.5 if leaves <= 14 else 7.0
    for node in below_root:
        (x0, y0), (x1, y1) = place[node.choice[:-1]], place[node.choice]
        chance = node.acceptance
        width = UNLIKELY + (LIKELY - UNLIKELY) * (chance or 0.0)
        color = ps.GRID if not node.accepted else ps.TARGET_COLOR
        axis.plot([x0, x1], [y0, y1], color=color, linewidth=width, solid_capstyle="round", zorder=1)
        text = "" if chance is None else f"{chance:.2f}".removeprefix("0")
        at = 0.62  # nearer to the child: edges of one parent part there
        axis.text(
            x0 + at * (x1 - x0), y0 + at * (y1 - y0), text, fontsize=size - 0.5, color=ps.INK,
            ha="center", va="center", zorder=2,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
        )  # fmt: skip
    for choice, (x, y) in place.items():
        text = str(choice[-1]) if choice else "root"
        face = ps.TARGET_COLOR if not choice else "white"
        axis.text(
            x, y, text, fontsize=size, color="white" if not choice else ps.INK, ha="center", va="center",
            zorder=3, bbox={"boxstyle": "circle,pad=0.25", "facecolor": face, "edgecolor": ps.TARGET_COLOR},
        )  # fmt: skip
    depth = max(y for _, y in place.values())
    axis.set_xlim(-0.7, leaves - 0.3)
    axis.set_ylim(depth + 0.35, -0.35)
    axis.set_xticks([])
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(False)


def _places(choices: Sequence[Choice]) -> dict[Choice, tuple[float, float]]:
    """(x, depth) of every node: leaves side by side in order of their ranks, a parent over its children."""
    children: dict[Choice, list[Choice]] = {(): []}
    for choice in sorted(choices):
        children[choice] = []
        children[choice[:-1]].append(choice)
    place: dict[Choice, tuple[float, float]] = {}
    next_leaf = itertools.count()

    def put(choice: Choice) -> float:
        below = [put(child) for child in children[choice]]
        x = (below[0] + below[-1]) / 2 if below else float(next(next_leaf))
        place[choice] = (x, float(len(choice)))
        return x

    put(())
    return place


def budget_figure(rows: Sequence[Row]) -> Figure:
    """tau of chains and trees over the tokens that a round has scored, and what a round costs there."""
    families = {name: group for name, group in cells.by_drafter(rows).items() if _in_comparison(group, rows)}
    if not families:
        return ps.empty(NO_TREES)
    temperatures = sorted({row["temperature"] for group in families.values() for row in group})
    figure, axes = ps.panels(len(temperatures), height=3.9, sharey=True)
    figure.set_figwidth(ps.WIDTH)
    looks = dict(zip(families, zip(itertools.cycle(ps.CATEGORICAL), itertools.cycle(ps.MARKERS))))
    budgets = sorted({row["gamma"] + 1 for group in families.values() for row in group})
    for axis, temperature in zip(axes, temperatures):
        ps.style(axis, title=f"T = {temperature:g}", x="tokens scored in a round", y="tau (tokens per round)")
        for i, (name, group) in enumerate(families.items()):
            lines = cells.by_temperature(group).get(temperature, [])
            aside = (i - (len(families) - 1) / 2) * STEP * budgets[-1]
            _over_budgets(axis, lines, *looks[name], aside)
        axis.set_xticks(
            [n for n, after in zip(budgets, [*budgets[1:], np.inf]) if after - n > 0.06 * budgets[-1]]
        )
        axis.set_ylim(0.95, None)
    handles = [ps.key(name, m, color=c, linestyle="-") for name, (c, m) in looks.items()]
    handles += [ps.key("its costs, d + v: pays where tau is above", color=ps.MUTED, linestyle=":")]
    ps.legend_below(figure, handles, most=2)
    return figure


def _in_comparison(group: Sequence[Row], rows: Sequence[Row]) -> bool:
    """Trees, and the chains of drafters that draft trees as well."""
    drafts_trees = {trees.base(row) for row in trees.tree_rows(rows)}
    return any(row.get("is_tree") or row["drafter"] in drafts_trees for row in group)


def _over_budgets(axis: Axes, lines: Sequence[Row], color: str, marker: str, aside: float) -> None:
    """tau, moved ``aside`` so that intervals stand beside each other, and dotted d + v where it is."""
    places, taus = [row["gamma"] + 1 + aside for row in lines], [row["tau"] for row in lines]
    if lines:
        axis.errorbar(
            places, taus, yerr=ps.all_errors(taus, [row["tau_ci"] for row in lines]),
            fmt=marker, linestyle="-" if len(lines) > 1 else "none", color=color, markersize=5, capsize=2.5,
            linewidth=1.4, elinewidth=1,
        )  # fmt: skip
    costs = [
        (row["gamma"] + 1, row["proposal_cost_ratio"] + row["verify_cost_ratio"])
        for row in lines
        if None not in (row["proposal_cost_ratio"], row["verify_cost_ratio"])
    ]
    if costs:
        axis.plot(*zip(*costs), linestyle=":", marker=".", color=color, linewidth=1.2)


def group_figure(rows: Sequence[Row]) -> Figure:
    """tau by group of prompts at the largest budget of both trees and chains, one panel a temperature."""
    by_temperature = _largest_budgets(rows)
    if not by_temperature:
        return ps.empty("No trees over several groups of prompts.")
    names = list(dict.fromkeys(name for lines in by_temperature.values() for name in lines))
    looks = dict(zip(names, zip(itertools.cycle(ps.CATEGORICAL), itertools.cycle(ps.MARKERS))))
    places = max(len(row["by_group"]) for lines in by_temperature.values() for row in lines.values())
    height = max(2.4, 0.1 * (places + 1) * (len(names) + 1.5))
    figure, axes = ps.panels(len(by_temperature), columns=3, height=height, sharey=True)
    figure.set_figwidth(ps.WIDTH)
    for axis, (temperature, lines) in zip(axes, by_temperature.items()):
        budget = next(iter(lines.values()))["gamma"] + 1
        title = f"T = {temperature:g}, {budget} tokens scored"
        ps.style(axis, title=title, x="tau (tokens per round)", y="group of prompts")
        _dots(axis, lines, looks)
    ps.legend_below(figure, [ps.key(name, m, color=c) for name, (c, m) in looks.items()], most=5)
    return figure


def _largest_budgets(rows: Sequence[Row]) -> dict[float, dict[str, Row]]:
    """{temperature: {label: line}}, all lines of one gamma, where a tree was measured over several groups."""
    lines = [line for line in trees.budget_lines(rows) if line.row.get("by_group")]
    found: dict[float, dict[str, Row]] = {}
    for temperature in sorted({line.row["temperature"] for line in lines}):
        here = [line for line in lines if line.row["temperature"] == temperature]
        shared = {line.row["gamma"] for line in here if not line.row.get("is_tree")}
        budgets = [g for line in here if line.row.get("is_tree") and (g := line.row["gamma"]) in shared]
        budget = max(budgets or [line.row["gamma"] for line in here])
        found[temperature] = {line.label: line.row for line in here if line.row["gamma"] == budget}
    return found


def _dots(axis: Axes, lines: dict[str, Row], looks: dict[str, tuple[str, str]]) -> None:
    groups = sorted({name for row in lines.values() for name in row["by_group"]})
    for i, (name, row) in enumerate(lines.items()):
        offset = (i - (len(lines) - 1) / 2) * 0.8 / len(lines)
        color, marker = looks[name]
        cuts = [row, *(row["by_group"].get(group, {}) for group in groups)]
        known = [(place, cut) for place, cut in enumerate(cuts) if cut.get("tau") is not None]
        values = [cut["tau"] for _, cut in known]
        axis.errorbar(
            values, [place + offset for place, _ in known],
            xerr=ps.all_errors(values, [cut["tau_ci"] for _, cut in known]),
            fmt=marker, color=color, markersize=4.5, capsize=2, elinewidth=1,
        )  # fmt: skip
    axis.axhspan(-0.5, 0.5, color=ps.GRID, alpha=0.5, linewidth=0)
    axis.grid(False, axis="y")
    axis.set_yticks(range(len(groups) + 1), ["all prompts", *(group or "(none)" for group in groups)])
    axis.set_ylim(len(groups) + 0.5, -0.5)
