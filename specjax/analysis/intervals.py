"""95 % bootstrap intervals for many estimates at once.

An estimate is a function of indices into its observations, so that ratios of
sums, inverted formulas and whole vectors are resampled alike, and all the
estimates of a cell see the same resamples (paired).

Method and its stated fallbacks, in this order:

- fewer than 2 observations: no interval (None);
- undefined in more than 5 % of the resamples: None;
- the same value in every resample (constant data): [value, value];
- fewer than 12 observations, or BCa undefined (every resample on one side of
  the estimate): percentile interval;
- else bias-corrected and accelerated (BCa; Efron 1987) as in ``scipy.stats.bootstrap``.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import warnings

import numpy as np
from numpy.typing import NDArray
import scipy.stats

CONFIDENCE = 0.95
MIN_OBSERVATIONS = 12  # below it BCa's acceleration is not worth its name
RESAMPLES = 2000
MAX_UNDEFINED = 0.05


@dataclasses.dataclass(frozen=True)
class Interval:
    """A 95 % confidence interval and how it was made: "BCa", "percentile" or "constant"."""

    low: float
    high: float
    method: str


def bootstrap(
    estimate: Callable[..., NDArray[np.float64]], sizes: tuple[int, ...], *, seed: int = 0
) -> list[Interval | None]:
    """One interval for each of the K numbers that ``estimate`` returns.

    Args:
      estimate: takes one index array [..., n_i] per sample, whose leading
        dimensions broadcast, and returns [K, ...]; NaN where undefined.
      sizes: observations in each sample. The first decides the method; the
        samples are resampled independently of each other, and one of a
        single observation (a cost measured once) is held fixed.
      seed: of the resampling; equal seeds give equal intervals.

    >>> times = np.array([1.0, 2.0, 3.0, 4.0] * 5)
    >>> mean, constant = bootstrap(lambda i: np.stack([times[i].mean(-1), 0 * times[i].mean(-1)]), (20,))
    >>> 1.9 < mean.low < 2.1 and 2.9 < mean.high < 3.1, mean.method, constant.method
    (True, 'BCa', 'constant')
    """
    point = estimate(*(np.arange(n) for n in sizes))
    if sizes[0] < 2:
        return [None] * len(point)
    varying = [i for i, n in enumerate(sizes) if n > 1]

    def statistic(*samples: NDArray, axis: int) -> NDArray[np.float64]:
        indices: list[NDArray] = [np.zeros(1, np.int64)] * len(sizes)
        for i, sample in zip(varying, samples):
            indices[i] = sample.astype(np.int64)
        return estimate(*indices)

    with warnings.catch_warnings():
        # Constant and undefined estimates are expected; they get their fallbacks below.
        warnings.simplefilter("ignore", scipy.stats.DegenerateDataWarning)
        warnings.simplefilter("ignore", RuntimeWarning)
        result = scipy.stats.bootstrap(
            tuple(np.arange(sizes[i]) for i in varying),
            statistic,
            n_resamples=RESAMPLES,
            confidence_level=CONFIDENCE,
            vectorized=True,
            method="BCa" if sizes[0] >= MIN_OBSERVATIONS else "percentile",
            rng=np.random.default_rng(seed),
        )
    method = "BCa" if sizes[0] >= MIN_OBSERVATIONS else "percentile"
    limits = result.confidence_interval
    return [
        _interval(value, resamples, float(low), float(high), method)
        for value, resamples, low, high in zip(point, result.bootstrap_distribution, limits.low, limits.high)
    ]


def _interval(
    point: float, resamples: NDArray[np.float64], low: float, high: float, method: str
) -> Interval | None:
    """The first of the module's fallbacks that applies to one estimate."""
    defined = resamples[np.isfinite(resamples)]
    if not np.isfinite(point) or len(defined) < (1 - MAX_UNDEFINED) * len(resamples):
        return None
    if np.ptp(defined) <= 1e-12 * max(1.0, abs(point)):
        return Interval(float(point), float(point), "constant")
    if not (np.isfinite(low) and np.isfinite(high)):
        tail = 50 * (1 - CONFIDENCE)
        low, high = np.percentile(defined, [tail, 100 - tail])
        method = "percentile"
    return Interval(float(low), float(high), method)
