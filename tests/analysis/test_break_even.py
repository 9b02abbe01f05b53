"""The alpha that pays, as table and figure, on runs whose alpha and costs are known."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic_runs import DRAFTERS, GROUPS, SLOPE, results

from specjax.analysis import cells, theory
from specjax.analysis.break_even import SPEEDUPS, alphas_needed
from specjax.analysis.break_even_plots import alpha_needed_figure


@pytest.fixture(scope="module")
def rows():
    return results(gammas=(1, 3, 7), groups=tuple(GROUPS))


def test_a_line_for_every_cell_with_the_alpha_its_costs_ask_for(rows):
    lines = alphas_needed(rows)
    assert len(lines) == len(cells.speculative(rows)) == 27
    for line in lines:
        gamma, c = line.row["gamma"], DRAFTERS[line.label][1]
        needed = theory.alpha_needed(SPEEDUPS, gamma, c * gamma, 1 + SLOPE * gamma)
        for ours, true in zip(line.needed, needed):
            assert (ours is None) == np.isnan(true)
            assert ours is None or ours == pytest.approx(true, abs=0.03)
    twice = {line.row["gamma"]: line.needed[2] for line in lines if line.label == "draft"}
    assert twice[1] is None and twice[7] < 0.8  # two tokens a round are never twice as fast


def test_the_alpha_of_tau_pays_exactly_where_tau_exceeds_d_plus_v(rows):
    """On both sides of break-even, and with the two alphas on different sides of it."""
    row = next(row for row in cells.speculative(rows) if row["gamma"] == 7)
    cost = theory.break_even_tau(row["proposal_cost_ratio"], row["verify_cost_ratio"])
    for factor in (0.99, 1.01):
        (line,) = alphas_needed([row | {"tau": cost * factor, "tau_ci": None}])
        assert (line.alpha_of_tau > line.needed[0]) == (factor > 1)
        assert line.row["alpha_overlap"] > line.needed[0]


def test_predictions_suppose_gamma_drafts_a_round(rows):
    for line in alphas_needed(rows):
        tau = theory.expected_tokens(line.row["alpha_overlap"], line.row["gamma"])
        # Every round of these runs drafts gamma tokens: the metric says the same.
        assert line.row["tau_expected"] == pytest.approx(tau)
        low, high = line.alpha_of_tau_ci
        assert low < line.alpha_of_tau < high
        assert line.alpha_of_tau == pytest.approx(line.row["alpha_tau"], abs=1e-6)


def test_a_drafter_that_drafted_nothing_still_has_its_line(rows):
    row = cells.speculative(rows)[0] | {"alpha_overlap": None, "alpha_overlap_ci": None, "tau": 1.0}
    (line,) = alphas_needed([row])
    assert line.predicted is None and line.alpha_of_tau == pytest.approx(0, abs=1e-9)
    assert alpha_needed_figure([row]).axes


def test_the_figure_draws_the_curves_at_the_measured_costs(rows):
    axis = alpha_needed_figure(rows).axes[0]
    curves = {line.get_label(): line.get_ydata() for line in axis.lines}
    assert axis.get_title(loc="left") == "draft"
    gammas, c = np.arange(1, 8), DRAFTERS["draft"][1]
    for label, speedup in (("needed: break even", 1), ("needed: 2x", 2)):
        true = theory.alpha_needed(speedup, gammas, c * gammas, 1 + SLOPE * gammas)
        np.testing.assert_allclose(curves[label], true, atol=0.04)
