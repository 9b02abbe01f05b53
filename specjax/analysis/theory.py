"""The formulas of the papers, in float64 numpy; every argument broadcasts.

Numbers of definitions, theorems and equations are those of Leviathan, Kalman
and Matias 2023, "Fast Inference from Transformers via Speculative Decoding"
(arXiv 2211.17192), unless another source is named. Symbols: alpha is the
expected single-position acceptance, gamma the draft tokens a round, tau the
tokens a round emits, c the time of a draft step over that of a target step,
d the time of a whole proposal and v(T) that of a T-token target step, both in
one-token target steps.

The paper's wall-time results (Theorem 3.8, Corollary 3.9) suppose that
scoring gamma + 1 tokens takes as long as scoring one, v = 1. Where a measured
v is larger, ``cost_model_speedup`` and ``break_even_tau`` hold instead: a
round pays off if and only if tau > d(gamma) + v(gamma + 1).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float = NDArray[np.float64]

MAX_GAMMA_SCANNED = 64


# --- acceptance of one position ---------------------------------------------------


def acceptance(p: ArrayLike, q: ArrayLike) -> Float:
    """beta = sum_v min(p, q): chance that a token drawn from q is accepted (Theorem 3.5).

    alpha is its mean over contexts (Corollary 3.6). p, q: [..., V] -> [...].

    >>> float(acceptance([0.5, 0.5, 0.0], [0.25, 0.25, 0.5]))
    0.5
    """
    return np.minimum(np.asarray(p, np.float64), np.asarray(q, np.float64)).sum(-1)


def divergence(p: ArrayLike, q: ArrayLike) -> Float:
    """D_LK = sum_v |p - (p+q)/2| = 1 - sum_v min(p, q) (Definition 3.2, Lemma 3.3).

    The total variation distance: symmetric, 0 for p = q, 1 for disjoint
    supports (Corollary 3.4). p, q: [..., V] -> [...].

    >>> float(divergence([1, 0], [0, 1])), float(divergence([0.7, 0.3], [0.5, 0.5])).__round__(12)
    (1.0, 0.2)
    """
    p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
    return np.abs(p - (p + q) / 2).sum(-1)


def lenience_acceptance(p: ArrayLike, q: ArrayLike, lenience: ArrayLike) -> Float:
    """sum_v min(p / l, q): acceptance with lenience l in (0, 1] (Appendix A.5). Lossy for l < 1.

    >>> float(lenience_acceptance([0.7, 0.3], [0.5, 0.5], [1.0, 0.5])[0]).__round__(12)
    0.8
    """
    scale = np.asarray(lenience, np.float64)[..., None]
    return np.minimum(np.asarray(p, np.float64) / scale, np.asarray(q, np.float64)).sum(-1)


def coupled_acceptance(p: ArrayLike, q: ArrayLike) -> Float:
    """Chance that p and q draw the same token when they share their Gumbel noise.

    sum_v 1 / sum_u max(p_u / p_v, q_u / q_v), by a race of exponential clocks
    (Daliri, Musco and Suresh 2024, arXiv 2408.07978). Between
    ``coupled_bound(p, q)`` and ``acceptance(p, q)``, which no coupling exceeds.
    p, q: [..., V] -> [...]; O(V^2) memory.

    >>> p, q = [0.6, 0.3, 0.1], [0.2, 0.3, 0.5]
    >>> [float(f(p, q)).__round__(3) for f in (coupled_bound, coupled_acceptance, acceptance)]
    [0.429, 0.514, 0.6]
    """
    p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
    # A token that either law excludes never matches.
    both = (p > 0) & (q > 0)
    ratio_p = p[..., None, :] / np.where(both, p, 1.0)[..., :, None]
    ratio_q = q[..., None, :] / np.where(both, q, 1.0)[..., :, None]
    rivals = np.maximum(ratio_p, ratio_q).sum(-1)
    return np.where(both, 1 / np.where(both, rivals, 1.0), 0.0).sum(-1)


def coupled_bound(p: ArrayLike, q: ArrayLike) -> Float:
    """(1 - TV) / (1 + TV): the least ``coupled_acceptance`` at that distance (arXiv 2408.07978).

    >>> float(coupled_bound([0.7, 0.3], [0.5, 0.5])).__round__(6)
    0.666667
    """
    distance = divergence(p, q)
    return (1 - distance) / (1 + distance)


# --- tokens of a round -------------------------------------------------------------


def expected_tokens(alpha: ArrayLike, gamma: ArrayLike) -> Float:
    """E[tokens of a round] = (1 - alpha^(gamma+1)) / (1 - alpha), Equation (1).

    Supposes that positions are accepted independently with the same chance.
    alpha in [0, 1] (1 gives gamma + 1); between 1 and gamma + 1.

    >>> [float(expected_tokens(a, g)).__round__(2) for a, g in [(0.6, 2), (0.8, 5), (0.9, 10)]]
    [1.96, 3.69, 6.86]
    """
    alpha, gamma = np.asarray(alpha, np.float64), np.asarray(gamma, np.float64)
    certain = alpha >= 1
    return np.where(certain, gamma + 1, (1 - alpha ** (gamma + 1)) / np.where(certain, 1.0, 1 - alpha))


def prefix_products(conditional: ArrayLike) -> Float:
    """P(at least k drafts accepted) = c_1 ... c_k, of the conditional acceptances c_k.

    Needs no independence: c_k is the chance of position k given that the
    positions before it were accepted. [..., G] -> [..., G].

    >>> prefix_products([0.5, 0.5, 1.0]).tolist()
    [0.5, 0.25, 0.25]
    """
    products: Float = np.cumprod(np.asarray(conditional, np.float64), axis=-1, dtype=np.float64)
    return products


def expected_tokens_by_position(conditional: ArrayLike) -> Float:
    """E[tokens of a round] = 1 + sum_k c_1 ... c_k; Equation (1) when every c_k is alpha.

    [..., G] -> [...].

    >>> float(expected_tokens_by_position([0.8] * 5)).__round__(2)
    3.69
    """
    return 1 + prefix_products(conditional).sum(-1)


def gain_by_position(conditional: ArrayLike) -> Float:
    """Tokens a round gains per unit of c_k: dE/dc_k = sum over m >= k of (c_1 ... c_m) / c_k.

    A point (0.01) of c_1 is worth most as long as later positions are not
    much worse: every prefix product contains c_1, only the last contains c_G.
    [..., G] -> [..., G].

    >>> gain_by_position([0.5, 0.5]).tolist()  # E = 1 + c_1 + c_1 c_2
    [1.5, 0.5]
    """
    c = np.asarray(conditional, np.float64)
    gains = np.empty_like(c)
    for k in range(c.shape[-1]):
        without = c.copy()
        without[..., k] = 1.0  # the derivative of a product in one of its factors
        gains[..., k] = np.cumprod(without, axis=-1)[..., k:].sum(-1)
    return gains


def alpha_from_tokens(tokens: ArrayLike, rounds_by_drafted: ArrayLike) -> Float:
    """The alpha for which rounds of these lengths emit that many tokens: Equation (1) inverted.

    Solves sum_g n_g (1 - a^(g+1)) / (1 - a) = tokens for a in [0, 1] by
    bisection, n_g = ``rounds_by_drafted[..., g]`` being the rounds that drafted
    g tokens. NaN if no round drafted anything. tokens [...], rounds [..., M+1]
    -> [...].

    >>> float(alpha_from_tokens(36.9, [0, 0, 0, 0, 0, 10])).__round__(3)  # ten rounds of 3.69 at gamma 5
    0.8
    >>> float(alpha_from_tokens(25, [10, 10])).__round__(3)  # ten of the twenty drafted nothing
    0.5
    """
    tokens = np.asarray(tokens, np.float64)
    rounds = np.asarray(rounds_by_drafted, np.float64)
    # The sum is a polynomial in a: power i is there for every round with g >= i.
    at_least = np.flip(np.cumsum(np.flip(rounds, -1), -1), -1)
    low = np.zeros(np.broadcast_shapes(tokens.shape, rounds.shape[:-1]))
    high = np.ones_like(low)
    for _ in range(53):
        middle = (low + high) / 2
        value = np.zeros_like(middle)
        for power in reversed(range(rounds.shape[-1])):
            value = value * middle + at_least[..., power]
        low, high = np.where(value < tokens, middle, low), np.where(value < tokens, high, middle)
    return np.where(rounds[..., 1:].sum(-1) > 0, (low + high) / 2, np.nan)


# --- wall time ------------------------------------------------------------------------


def speedup(alpha: ArrayLike, gamma: ArrayLike, c: ArrayLike) -> Float:
    """eta = (1 - alpha^(gamma+1)) / ((1 - alpha) (gamma c + 1)), Theorem 3.8. Supposes v = 1.

    The speeds of Table 1 (c = 0):

    >>> table = [(0.6, 2), (0.7, 3), (0.8, 2), (0.8, 5), (0.9, 2), (0.9, 10)]
    >>> [float(speedup(alpha, gamma, 0)).__round__(2) for alpha, gamma in table]
    [1.96, 2.53, 2.44, 3.69, 2.71, 6.86]
    """
    return expected_tokens(alpha, gamma) / (np.asarray(gamma, np.float64) * np.asarray(c, np.float64) + 1)


def speedup_lower_bound(alpha: ArrayLike, c: ArrayLike) -> Float:
    """(1 + alpha) / (1 + c): if alpha > c, some gamma gives at least this (Corollary 3.9).

    It is ``speedup`` at gamma = 1. Both the condition alpha > c and the bound
    hold for v = 1 only: with a measured v(2) a first draft pays off if and only
    if 1 + alpha > d(1) + v(2), and gives (1 + alpha) / (d(1) + v(2)).

    >>> float(speedup_lower_bound(0.8, 0.2)).__round__(12)
    1.5
    """
    return (1 + np.asarray(alpha, np.float64)) / (1 + np.asarray(c, np.float64))


def cost_model_speedup(tau: ArrayLike, d: ArrayLike, v: ArrayLike) -> Float:
    """tau / (d + v): tokens of a round over its time in one-token target steps.

    Theorem 3.8 with measured costs: there d = gamma c and v = 1.

    >>> float(cost_model_speedup(3.0, 0.3, 1.7))
    1.5
    """
    return np.asarray(tau, np.float64) / break_even_tau(d, v)


def break_even_tau(d: ArrayLike, v: ArrayLike) -> Float:
    """d(gamma) + v(gamma + 1): drafting pays off if and only if tau exceeds it."""
    return np.asarray(d, np.float64) + np.asarray(v, np.float64)


def alpha_needed(speedup: ArrayLike, gamma: ArrayLike, d: ArrayLike, v: ArrayLike) -> Float:
    """The alpha that makes gamma drafts a round ``speedup`` times as fast: Equation (1) = speedup (d + v).

    At speedup 1 drafting pays. 0 where any alpha will do, NaN where even alpha = 1 will not.

    >>> [alpha_needed([1, 1.5, 2.3], 3, 0.3, v).round(2).tolist() for v in (1.71, 1.36)]
    [[0.55, 0.81, nan], [0.42, 0.69, 0.97]]
    """
    needed = np.asarray(speedup, np.float64) * break_even_tau(d, v)
    tokens, drafted = np.broadcast_arrays(needed, np.asarray(gamma))
    alpha = alpha_from_tokens(tokens, np.eye(int(drafted.max()) + 1)[drafted])
    return np.where(tokens <= 1, 0.0, np.where(tokens <= drafted + 1, alpha, np.nan))


def optimal_gamma(
    alpha: float,
    c: float | None = None,
    *,
    d: Callable[[int], float] | None = None,
    v: Callable[[int], float] | None = None,
    max_gamma: int = MAX_GAMMA_SCANNED,
) -> int:
    """The gamma in 0..max_gamma with the largest speedup; the smallest of equals (section 3.5).

    Every gamma is tried: the paper's eta has one peak, a measured v is not
    even monotone. Costs default to the paper's, d(g) = g c and v = 1.

    >>> optimal_gamma(0.8, c=0.05), optimal_gamma(0.05, c=0.1)
    (8, 0)
    >>> optimal_gamma(0.8, c=0.05, v=lambda tokens: 1 + 0.1 * (tokens - 1))
    5
    """
    if (c is None) == (d is None):
        raise ValueError("give either c, the cost of one draft step, or d, the cost of a proposal")
    gammas = np.arange(max_gamma + 1)
    step = 0.0 if c is None else c
    drafting = np.array([d(g) if d else g * step for g in range(max_gamma + 1)], np.float64)
    scoring = np.array([v(g + 1) if v else 1.0 for g in range(max_gamma + 1)], np.float64)
    return int(np.argmax(cost_model_speedup(expected_tokens(alpha, gammas), drafting, scoring)))


# --- arithmetic and memory --------------------------------------------------------------


def operations_factor(alpha: ArrayLike, gamma: ArrayLike, c_ops: ArrayLike = 0.0) -> Float:
    """(1 - alpha)(gamma c_ops + gamma + 1) / (1 - alpha^(gamma+1)): growth of operations (Theorem 3.11).

    c_ops is the draft's arithmetic operations a token over the target's
    (Definition 3.10). The operations of Table 1 (c_ops = 0):

    >>> table = [(0.6, 2), (0.7, 3), (0.8, 2), (0.8, 5), (0.9, 2), (0.9, 10)]
    >>> [float(operations_factor(alpha, gamma)).__round__(2) for alpha, gamma in table]
    [1.53, 1.58, 1.23, 1.63, 1.11, 1.6]
    """
    gamma = np.asarray(gamma, np.float64)
    return (gamma * np.asarray(c_ops, np.float64) + gamma + 1) / expected_tokens(alpha, gamma)


def memory_traffic_factor(tau: ArrayLike, gamma: ArrayLike = 0, draft_bytes: ArrayLike = 0.0) -> Float:
    """(1 + gamma draft_bytes) / tau: memory read per token over plain decoding's (section 3.4).

    A round reads the target's weights and KV cache once, whatever it emits,
    and the draft's once a draft token; ``draft_bytes`` is what one draft step
    reads over what one target step reads. With tau from Equation (1) and
    draft_bytes 0 the target's reads shrink by (1 - alpha^(gamma+1)) / (1 - alpha).

    >>> float(memory_traffic_factor(4.0)), float(memory_traffic_factor(4.0, 5, 0.2))
    (0.25, 0.5)
    """
    return (1 + np.asarray(gamma, np.float64) * np.asarray(draft_bytes, np.float64)) / np.asarray(
        tau, np.float64
    )
