"""Bootstrap intervals: coverage, the stated fallbacks, independence of samples."""

from __future__ import annotations

import numpy as np
import pytest

from specjax.analysis.intervals import bootstrap


def ratio_of_sums(pairs):
    return lambda index: (pairs[index, 0].sum(-1) / pairs[index, 1].sum(-1))[None]


def test_coverage_of_a_ratio_of_sums():
    """80 seeded runs of 20 prompts: 95 % nominal. Intervals half as wide would cover about 67 %."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(80):
        tested = rng.integers(20, 200, 20)
        pairs = np.stack([rng.binomial(tested, 0.7), tested], axis=1).astype(float)
        (interval,) = bootstrap(ratio_of_sums(pairs), (20,))
        covered += interval.low <= 0.7 <= interval.high
    assert 0.85 * 80 <= covered <= 80


@pytest.mark.parametrize(
    ("count", "method"), [(2, "percentile"), (11, "percentile"), (12, "BCa"), (30, "BCa")]
)
def test_method_by_number_of_observations(count, method):
    values = np.random.default_rng(0).normal(size=count)
    (interval,) = bootstrap(lambda index: values[index].mean(-1)[None], (count,))
    assert interval.method == method
    assert interval.low < interval.high


def test_one_observation_has_no_interval():
    assert bootstrap(lambda index: np.ones((2, *index.shape[:-1])), (1,)) == [None, None]


def test_constant_data_give_a_degenerate_interval():
    (interval,) = bootstrap(lambda index: np.full((1, *index.shape[:-1]), 0.25), (20,))
    assert (interval.low, interval.high, interval.method) == (0.25, 0.25, "constant")


def test_an_extreme_estimate_falls_back_to_percentiles():
    """The maximum: no resample exceeds it, so BCa's bias correction is infinite or its limits undefined."""
    values = np.arange(20.0)
    (interval,) = bootstrap(lambda index: values[index].max(-1)[None], (20,))
    assert np.isfinite([interval.low, interval.high]).all() and interval.high <= 19


def test_an_estimate_that_is_often_undefined_has_no_interval():
    """Only one of 20 prompts tested the position: a third of the resamples miss it."""
    tested = np.eye(20)[0]

    def estimate(index):
        total = tested[index].sum(-1)
        return (0.5 * total / np.where(total > 0, total, np.nan))[None]

    assert bootstrap(estimate, (20,)) == [None]


def test_two_samples_are_resampled_independently():
    """The variance of a sum of two means is the sum of theirs; shared indices would double one of them."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=40), rng.normal(size=40)
    both = lambda i, j: (a[i].mean(-1) - b[j].mean(-1))[None]
    (joint,) = bootstrap(both, (40, 40))
    (single,) = bootstrap(lambda i: a[i].mean(-1)[None], (40,))
    widths = (joint.high - joint.low) / (single.high - single.low)
    assert widths == pytest.approx(np.sqrt(1 + b.var() / a.var()), rel=0.1)


def test_a_cost_measured_once_is_held_fixed():
    values = np.random.default_rng(0).normal(size=20)
    fixed = bootstrap(lambda i, j: (values[i].mean(-1) + 0 * j[..., 0])[None], (20, 1))
    alone = bootstrap(lambda i: values[i].mean(-1)[None], (20,))
    assert fixed == alone
