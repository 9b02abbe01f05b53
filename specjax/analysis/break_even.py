"""What alpha a speedup takes at the measured costs, beside the alpha that was measured."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

import numpy as np

from specjax.analysis import cells, theory, trees
from specjax.analysis.cells import Row

SPEEDUPS = (1.0, 1.5, 2.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlphaNeeded:
    """One cell on the scale of alpha in Equation (1), which supposes gamma drafts in every round.

    ``row`` holds the measured alpha_overlap, which Equation (1) takes for its
    alpha. ``alpha_of_tau`` instead is the alpha at which it gives the
    measured tau: lower where rounds drafted fewer than gamma tokens, other
    than alpha_overlap where positions depend on each other, and the right
    measure for rules other than the token-level one. Measured costs say that
    the cell is S times as fast if and only if ``alpha_of_tau`` exceeds the
    alpha needed for S (up to tokens that a stop cut).
    """

    label: str
    row: Row
    needed: list[float | None]  # for each of SPEEDUPS; None where alpha = 1 would not do
    alpha_of_tau: float
    alpha_of_tau_ci: list[float] | None
    predicted: float | None  # Equation (1) at alpha_overlap, over d + v; None if nothing was tested


def alphas_needed(rows: Sequence[Row]) -> list[AlphaNeeded]:
    """One line for each finished cell with one drafter of chains whose costs were measured."""
    return [
        _line(name, row)
        for name, group in cells.by_drafter(trees.chain_rows(rows)).items()
        for lines in cells.by_temperature(group).values()
        for row in lines
        if None
        not in (row["draft_cost_ratio"], row["proposal_cost_ratio"], row["verify_cost_ratio"], row["tau"])
    ]


def _line(label: str, row: Row) -> AlphaNeeded:
    gamma, d, v = row["gamma"], row["proposal_cost_ratio"], row["verify_cost_ratio"]
    needed = theory.alpha_needed(SPEEDUPS, gamma, d, v)
    of_tau = lambda tau: float(theory.alpha_from_tokens(tau, np.eye(gamma + 1)[gamma]))
    alpha = row["alpha_overlap"]
    tau = None if alpha is None else theory.expected_tokens(alpha, gamma)
    return AlphaNeeded(
        label=label,
        row=row,
        needed=[None if np.isnan(value) else float(value) for value in needed],
        alpha_of_tau=of_tau(row["tau"]),
        alpha_of_tau_ci=row["tau_ci"] and [of_tau(limit) for limit in row["tau_ci"]],
        predicted=None if tau is None else float(theory.cost_model_speedup(tau, d, v)),
    )
