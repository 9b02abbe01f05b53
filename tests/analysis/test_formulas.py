"""The formulas against enumeration, each other, and the tables of the papers (doctests have Table 1)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from specjax.analysis import theory


@pytest.fixture(scope="module")
def laws():
    """50 random pairs of laws over 5 tokens, some with tokens that one of them excludes."""
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(5), (2, 50))
    p[:10, 0], q[5:15, 1] = 0, 0
    return p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)


def test_divergence_is_total_variation_and_complements_acceptance(laws):
    p, q = laws
    np.testing.assert_allclose(theory.divergence(p, q), np.abs(p - q).sum(-1) / 2, atol=1e-15)
    np.testing.assert_allclose(theory.acceptance(p, q), 1 - theory.divergence(p, q), atol=1e-15)
    np.testing.assert_allclose(theory.divergence(p, q), theory.divergence(q, p), atol=1e-15)


def test_coupled_acceptance_lies_between_its_bound_and_the_optimum(laws):
    p, q = laws
    coupled = theory.coupled_acceptance(p, q)
    assert np.all(coupled >= theory.coupled_bound(p, q) - 1e-12)
    assert np.all(coupled <= theory.acceptance(p, q) + 1e-12)
    np.testing.assert_allclose(theory.coupled_acceptance(p, p), 1, atol=1e-12)


def test_coupled_acceptance_is_the_rate_at_which_shared_noise_agrees(laws):
    p, q = laws[0][20], laws[1][20]
    noise = np.random.default_rng(1).gumbel(size=(40_000, 5))
    agree = (np.log(p) + noise).argmax(-1) == (np.log(q) + noise).argmax(-1)
    # Four standard errors; the optimum 1 - TV lies more than twenty away.
    assert abs(agree.mean() - theory.coupled_acceptance(p, q)) < 4 * agree.std() / 200
    assert theory.acceptance(p, q) - theory.coupled_acceptance(p, q) > 20 * agree.std() / 200


def test_lenience_raises_acceptance_up_to_one(laws):
    p, q = laws
    rates = theory.lenience_acceptance(p[:, None], q[:, None], np.array([1.0, 0.5, 0.1, 1e-9]))
    np.testing.assert_allclose(rates[:, 0], theory.acceptance(p, q))
    assert np.all(np.diff(rates, axis=1) >= 0)


def test_expected_tokens_by_enumeration_of_coins():
    conditional = [0.9, 0.5, 0.7]
    expected = 0.0
    for coins in itertools.product([0, 1], repeat=3):
        chance = np.prod([c if coin else 1 - c for c, coin in zip(conditional, coins)])
        expected += chance * (1 + np.cumprod(coins).sum())
    assert theory.expected_tokens_by_position(conditional) == pytest.approx(expected)


def test_equation_1_is_the_sum_of_prefix_products_of_equal_acceptances():
    for alpha, gamma in itertools.product([0.0, 0.3, 0.8, 1.0], [0, 1, 5]):
        assert theory.expected_tokens(alpha, gamma) == pytest.approx(
            theory.expected_tokens_by_position([alpha] * gamma)
        )


def test_gain_by_position_is_the_derivative_and_the_first_position_is_worth_most():
    conditional = np.array([0.8, 0.75, 0.7, 0.72])
    gains = theory.gain_by_position(conditional)
    for k in range(4):
        step = 1e-6 * np.eye(4)[k]
        up, down = (theory.expected_tokens_by_position(conditional + s) for s in (step, -step))
        assert gains[k] == pytest.approx((up - down) / 2e-6, rel=1e-6)
    assert gains.argmax() == 0
    assert theory.gain_by_position([0.0, 0.5])[0] == pytest.approx(1.5)  # defined where c_1 is 0


@pytest.mark.parametrize("alpha", [0.0, 0.05, 0.6, 0.93, 1.0])
def test_alpha_is_recovered_from_tokens_of_rounds_of_mixed_length(alpha):
    rounds = np.array([7, 0, 3, 20, 5])
    tokens = (rounds * theory.expected_tokens(alpha, np.arange(5))).sum()
    assert theory.alpha_from_tokens(tokens, rounds) == pytest.approx(alpha, abs=1e-9)


def test_alpha_is_undefined_when_nothing_was_drafted():
    assert np.isnan(theory.alpha_from_tokens(5, [5, 0, 0]))


def test_corollary_3_9_holds_where_scoring_is_free():
    for alpha, c in itertools.product(np.linspace(0.05, 0.95, 10), [0.02, 0.2, 0.5]):
        gamma = theory.optimal_gamma(alpha, c=c)
        assert (gamma > 0) == (alpha > c)
        if alpha > c:
            assert theory.speedup(alpha, gamma, c) >= theory.speedup_lower_bound(alpha, c) - 1e-12


def test_corollary_3_9_fails_where_scoring_is_not_free():
    """alpha .5 exceeds c .1, yet v(T) = 1 + .6 (T - 1) leaves nothing to gain."""
    assert theory.optimal_gamma(0.5, c=0.1) > 0
    assert theory.optimal_gamma(0.5, c=0.1, v=lambda tokens: 1 + 0.6 * (tokens - 1)) == 0


def test_optimal_gamma_scans_past_a_hump_of_v():
    v = {1: 1.0, 2: 1.8, 3: 2.0, 4: 2.2, 5: 1.1}
    speeds = [theory.cost_model_speedup(theory.expected_tokens(0.7, g), 0.05 * g, v[g + 1]) for g in range(5)]
    assert speeds[0] > speeds[1] and speeds[4] > speeds[0]  # a scan that stops at the first peak says 0
    assert theory.optimal_gamma(0.7, c=0.05, v=v.__getitem__, max_gamma=4) == 4


def test_optimal_gamma_takes_one_kind_of_draft_cost():
    with pytest.raises(ValueError, match="either c"):
        theory.optimal_gamma(0.5)


def test_the_alpha_needed_gives_the_speedup_it_was_asked_for():
    speedups, gammas, d = np.array([[1.0], [1.5], [2.0]]), np.array([3, 7, 15]), np.array([0.3, 0.7, 1.5])
    alphas = theory.alpha_needed(speedups, gammas, d, 1.45)
    reached = theory.cost_model_speedup(theory.expected_tokens(alphas, gammas), d, 1.45)
    np.testing.assert_allclose(reached, np.broadcast_to(speedups, (3, 3)), rtol=1e-9)
    assert np.all(np.diff(alphas, axis=0) > 0)


def test_the_alpha_needed_at_its_ends():
    assert np.isnan(theory.alpha_needed(1, 1, 0.5, 2.0))  # 2 tokens a round do not pay for 2.5
    assert theory.alpha_needed(2, 3, 0.5, 1.5) == pytest.approx(1)  # 4 tokens pay for 2 x 2 exactly
    assert theory.alpha_needed(1, 3, 0.0, 1.0) == 0.0
    assert theory.alpha_needed(1, 0, 0.0, 1.0) == 0.0 and np.isnan(theory.alpha_needed(1.5, 0, 0.0, 1.0))
    assert np.isnan(theory.alpha_needed(1, 3, np.nan, 1.0))


@pytest.mark.parametrize(
    ("alpha", "gamma", "c", "speed"),
    # Leviathan et al. 2023, Table 4: T5-small and T5-large on EnDe, T5-small on CNN/DM, T = 0.
    [(0.75, 7, 0.02, 3.2), (0.82, 7, 0.11, 2.5), (0.65, 5, 0.02, 2.4)],
)
def test_predictions_of_the_paper(alpha, gamma, c, speed):
    assert theory.speedup(alpha, gamma, c) == pytest.approx(speed, abs=0.1)
