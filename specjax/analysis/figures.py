"""The figures of a report: what draws each, and what to see in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses

from matplotlib.figure import Figure

from specjax.analysis import break_even_plots, group_plots, heads_plots, plots, theory_plots, tree_plots
from specjax.analysis.cells import Row
from specjax.analysis.groups import group_tables
from specjax.analysis.heads import head_lines
from specjax.analysis.trees import tree_rows


@dataclasses.dataclass(frozen=True)
class FigureSpec:
    """A figure of the report and what to see in it."""

    name: str  # file name under figures/, without .png
    title: str
    draw: Callable[[Sequence[Row]], Figure]
    caption: str
    section: str = "Figures"
    applies: Callable[[Sequence[Row]], bool] = lambda rows: True


FIGURES = (
    FigureSpec(
        "speedup_by_gamma",
        "Speedup over gamma",
        plots.speedup_figure,
        "Measured speedup with 95 % intervals, and two predictions. Dashed: tau / (d + v) with measured "
        "costs should run through the points. Dotted: the paper's Theorem 3.8, too high wherever scoring "
        "gamma + 1 tokens costs more than scoring one. Of a single gamma, diamond and cross.",
    ),
    FigureSpec(
        "speedup_heatmap",
        "Speedup by gamma and temperature",
        plots.heatmap_figure,
        "Blue is faster than plain decoding, red slower. Higher temperatures flatten both laws, which "
        "usually lowers their overlap and moves the best gamma to the left.",
    ),
    FigureSpec(
        "expected_tokens",
        "Tokens per round over alpha (Fig. 2 of the paper)",
        theory_plots.expected_tokens_figure,
        "Curves: Equation (1), which supposes that positions are accepted independently. A point above its "
        "curve has acceptances that come in runs, one below it has later positions that are harder.",
    ),
    FigureSpec(
        "optimal_gamma",
        "Optimal gamma over alpha (Fig. 3 of the paper)",
        theory_plots.optimal_gamma_figure,
        "Steps: the best gamma for v = 1 at several draft costs c. Points: the fastest gamma that was "
        "measured, one for each temperature, and 0 where none was faster than plain decoding. Points below "
        "the step of their own c show that scoring is not free.",
    ),
    FigureSpec(
        "acceptance_by_position",
        "Acceptance by position",
        plots.acceptance_figure,
        "Solid, with its 95 % band: c_k, acceptance of position k (of a tree: of any node of depth k) once "
        "everything before it was accepted, at each drafter's largest gamma. "
        "Dashed: chance that k drafts or more survive. A flat c_k is what Equation (1) supposes. Positions "
        f"tested fewer than {plots.MIN_TESTS} times are left out.",
    ),
    FigureSpec(
        "gain_by_position",
        "What one more point of acceptance is worth",
        plots.gain_figure,
        "Tokens a round gains if c_k rises by .01 and nothing else changes. c_1 stands in every prefix "
        "product, so a better first token is worth most.",
    ),
    FigureSpec(
        "timeline",
        "Where the time goes (Fig. 5 of the paper)",
        theory_plots.timeline_figure,
        "Draft and target calls at their measured costs; numbers are the tokens each target call yields, in "
        "the measured mean. A longer target call is v(gamma + 1) > 1. A draft model's proposal is divided "
        "into its steps, another is one block. Every round is drawn at the cost of gamma, though a drafter "
        "that at times has nothing to copy takes cheaper ones as well.",
    ),
    FigureSpec(
        "costs",
        "What a round costs",
        plots.costs_figure,
        "Left: a target step over T tokens. The closer to the dotted line, the more a round may draft for "
        "nothing. Right: a whole proposal; its slope for a draft model is c.",
    ),
    FigureSpec(
        "memory_traffic",
        "Memory traffic of the target",
        theory_plots.memory_figure,
        "A round reads the target's weights and cache once, whatever it emits, so reads per token fall to "
        "1 / tau. Where decoding is bound by memory this is the most that drafting can save.",
    ),
    FigureSpec(
        "groups",
        "Acceptance and speedup by group of prompts",
        group_plots.group_figure,
        "Each drafter at the gamma that is fastest over all prompts. Intervals are of 95 % over the prompts "
        "of the group, and rough where these are few: of two prompts, their range. The vertical line is "
        "plain decoding.",
        section="By group",
        applies=lambda rows: bool(group_tables(rows)),
    ),
    FigureSpec(
        "tree_budgets",
        "Chains and trees of as many scored tokens",
        tree_plots.budget_figure,
        "tau with 95 % intervals over the tokens that the target scores in a round. Dotted, in the same "
        "colour: what a round costs in one-token target steps. A drafter pays where its tau is above its "
        "dotted line; how far a tree is above the chain of as many tokens is what branching is worth.",
        section="Trees",
        applies=lambda rows: bool(tree_rows(rows)),
    ),
    FigureSpec(
        "trees",
        "What each tree accepted where",
        tree_plots.tree_figure,
        "Circles are nodes, by their rank among the children of a node. The number on an edge, and its "
        "width, is the share of rounds that accepted its lower end, of those that accepted its upper one; "
        "grey edges were never taken. Numbers deep down are of few rounds.",
        section="Trees",
        applies=lambda rows: bool(tree_rows(rows)),
    ),
    FigureSpec(
        "tree_groups",
        "Chains and trees by group of prompts",
        tree_plots.group_figure,
        "tau with 95 % intervals at one number of scored tokens, the largest that has both. A lossy rule is "
        "named in the legend: its tau is that of another law.",
        section="Trees",
        applies=lambda rows: any(row.get("by_group") for row in tree_rows(rows)),
    ),
    FigureSpec(
        "heads",
        "How often heads are right",
        heads_plots.accuracy_figure,
        "Top-k: the label is among a head's k likeliest, on responses held out from training. Hollow: top-1 "
        "as published for Medusa on larger targets (Cai et al. 2024).",
        section="Heads",
        applies=lambda rows: bool(head_lines(rows)),
    ),
    FigureSpec(
        "alpha_needed",
        "Alpha needed and measured",
        break_even_plots.alpha_needed_figure,
        "Curves: the alpha at which Equation (1) makes up for d + v, at the drafter's median costs, linear "
        "between the gammas that were measured; in the red area drafting slows down, and a curve ends where "
        "alpha = 1 is not enough. Filled: alpha_overlap. Hollow: the alpha at which Equation (1) gives the "
        "measured tau; lower where rounds drafted fewer than gamma tokens or later positions are harder, "
        "higher where acceptances come in runs.",
        section="What alpha pays",
    ),
)
