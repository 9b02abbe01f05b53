"""Each metric, defined once, from per-prompt records. Every rate is a ratio of sums.

Functions take ``Totals`` (sums over records, any leading dimensions, so that a
bootstrap is one call) and return float64 arrays with NaN where a metric is
undefined (no draft was tested, say). ``summarize`` turns them into the fields
of a results line, where undefined is None.

alpha has three estimators. For the block and coupled rules ``alpha_accept``
and ``alpha_tau`` are rates of those rules, not Leviathan's alpha (the chance
of the token-level rule); ``alpha_overlap`` is that alpha for every rule,
weighted by the positions that were tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specjax.analysis import theory
from specjax.analysis.intervals import Interval, bootstrap
from specjax.analysis.records import Costs, PromptRecord
from specjax.analysis.totals import CostRatios, Totals, by_unit, cost_ratios, pool, resample

Float = NDArray[np.float64]


def _ratio(numerator: Float, denominator: Float) -> Float:
    """numerator / denominator; NaN, silently, where nothing was counted."""
    denominator = np.asarray(denominator, np.float64)
    return numerator / np.where(denominator > 0, denominator, np.nan)


# --- acceptance ---------------------------------------------------------------------


def alpha_accept(totals: Totals) -> Float:
    """Accepted over tested draft tokens. A draft behind a rejection was never tested."""
    return _ratio(totals.accepted.sum(-1), totals.tested.sum(-1))


def alpha_overlap(totals: Totals) -> Float:
    """Mean of beta = sum min(p, q) over tested positions (Leviathan et al. 2023, Corollary 3.6)."""
    return _ratio(totals.overlap.sum(-1), totals.tested.sum(-1))


def alpha_tau(totals: Totals) -> Float:
    """The alpha with which rounds of these draft lengths emit the measured tokens (Equation 1 inverted)."""
    return theory.alpha_from_tokens(totals.num_tokens + totals.cut, totals.rounds_by_drafted)


def acceptance_by_position(totals: Totals) -> Float:
    """c_k [..., M]: acceptance of draft position k among the rounds that tested it."""
    return _ratio(totals.accepted, totals.tested)


# --- tokens of a round ----------------------------------------------------------------


def tau(totals: Totals) -> Float:
    """Tokens a round emits, bonus or residual included.

    Tokens of a last block that a stop cut are counted: leaving them out biases tau low.
    """
    return _ratio(totals.num_tokens + totals.cut, totals.rounds)


def mean_drafted(totals: Totals) -> Float:
    """Draft tokens submitted a round."""
    return _ratio(totals.rounds_by_drafted @ np.arange(totals.rounds_by_drafted.shape[-1]), totals.rounds)


def tau_expected(totals: Totals) -> Float:
    """Mean over rounds of (1 - a^(g+1)) / (1 - a), g = tokens drafted, a = alpha_overlap (Equation 1)."""
    drafted = np.arange(totals.rounds_by_drafted.shape[-1])
    alpha = np.nan_to_num(alpha_overlap(totals))  # nothing drafted: any alpha gives 1
    tokens = theory.expected_tokens(alpha[..., None], drafted)
    return _ratio((totals.rounds_by_drafted * tokens).sum(-1), totals.rounds)


# --- speed ------------------------------------------------------------------------------


def tokens_per_second(totals: Totals) -> Float:
    """Emitted tokens per second of decoding; prefill and compilation excluded."""
    return _ratio(totals.num_tokens, totals.seconds)


def baseline_tokens_per_second(totals: Totals) -> Float:
    """The same for plain decoding of the same prompts in the same process."""
    return _ratio(totals.baseline_tokens, totals.baseline_seconds)


def speedup(totals: Totals) -> Float:
    """Measured: tokens per second over plain decoding's."""
    return _ratio(tokens_per_second(totals), baseline_tokens_per_second(totals))


def speedup_leviathan(totals: Totals, ratios: CostRatios) -> Float:
    """Predicted by Theorem 3.8: tau_expected / (g c + 1), g = mean draft tokens a round. Supposes v = 1."""
    drafted = mean_drafted(totals)
    return tau_expected(totals) / (np.where(drafted == 0, 0.0, drafted * ratios.c) + 1)


def speedup_cost_model(totals: Totals, ratios: CostRatios) -> Float:
    """Predicted by measured costs: tokens kept a round over its mean d(bucket) + v(bucket + 1).

    A round that drafts 2 tokens, or none, in bucket 7 pays d(7) and v(8):
    shapes are static, and a search that finds nothing has searched all the
    same.

    The tokens a stop cut from a last block are left out, unlike in tau: no
    measured speed has them. What no per-round model sees: in a batch, rows
    that finished early while the longest goes on.
    """
    return _ratio(totals.num_tokens, totals.rounds) / round_cost(totals, ratios)


def round_cost(totals: Totals, ratios: CostRatios) -> Float:
    """Mean time of a round in one-token target steps; tau must exceed it (``theory.break_even_tau``)."""
    models = (totals.rounds_by_bucket * (ratios.d + ratios.v)).sum(-1)
    return _ratio(models + totals.catch_up_steps * ratios.catch_up, totals.rounds)


# --- a results line -----------------------------------------------------------------------

# Equation (1) and what inverts it, and the cost of one draft step in a row of them.
CHAIN_ONLY = ("alpha_overlap", "alpha_tau", "tau_expected", "speedup_leviathan", "draft_cost_ratio")
# Two drafters that take turns have no one c.
ONE_DRAFTER_ONLY = ("speedup_leviathan", "draft_cost_ratio")

MEASURED = {
    "alpha_accept": alpha_accept,
    "alpha_overlap": alpha_overlap,
    "alpha_tau": alpha_tau,
    "tau": tau,
    "tau_expected": tau_expected,
    "tokens_per_second": tokens_per_second,
    "baseline_tokens_per_second": baseline_tokens_per_second,
    "speedup": speedup,
}


def summarize(
    records: Sequence[PromptRecord],
    costs: Costs | None = None,
    *,
    seed: int = 0,
    is_tree: bool = False,
    is_cascade: bool = False,
) -> dict[str, Any]:
    """The measured and predicted fields of one results line.

    Every estimate has a twin ``NAME_ci`` = [low, high], 95 %: bootstrap over
    prompts (over batches at batch size above 1) and, where costs enter, over
    their repeats (``intervals``). None where undefined or, for costs and
    predictions, where no costs were measured.

    Args:
      records: all decodes of the cell, repeats included.
      costs: of the cell's own models, batch size and buffer length.
      seed: of the bootstrap.
      is_tree: the rounds drafted trees. Positions are then depths, and what
        supposes a chain (``CHAIN_ONLY``) is undefined.
      is_cascade: two drafters took turns; what supposes one cost of a draft
        step (``ONE_DRAFTER_ONLY``) is undefined.

    Raises:
      ValueError: no records, records of different programs, or a cost that the rounds need is missing.
    """
    units, totals = by_unit(records), pool(records)
    gamma = records[0].buckets[-1]
    line: dict[str, Any] = {
        "num_prompts": len({record.prompt for record in records}),
        "num_tokens": int(totals.num_tokens),
        "num_rounds": int(totals.rounds),
        "tested_by_position": totals.tested[:gamma].astype(int).tolist(),
        "accepted_by_position": totals.accepted[:gamma].astype(int).tolist(),
        "accepted_by_node": totals.accepted_nodes[: gamma + 1].astype(int).tolist(),
        "prefill_seconds": float(totals.prefill_seconds),
        # Of each sampling unit, so that cells that decoded the same prompts are compared pair by pair
        "emitted_by_unit": (units.num_tokens + units.cut).astype(int).tolist(),
        "rounds_by_unit": units.rounds.astype(int).tolist(),
    }
    line |= _measured(units, costs, records[0].buckets, seed)
    line |= _costs(costs, gamma, seed)
    undefined = (*CHAIN_ONLY * is_tree, *ONE_DRAFTER_ONLY * is_cascade)
    line |= {name + suffix: None for name in undefined for suffix in ("", "_ci")}
    return line


def _measured(units: Totals, costs: Costs | None, buckets: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Everything that varies over prompts, all from the same resamples."""
    names = [*MEASURED, "speedup_leviathan", "speedup_cost_model"]

    def estimate(index: NDArray, repeats: NDArray) -> Float:
        sums = resample(units, index)
        rows = [metric(sums) for metric in MEASURED.values()]
        if costs is None:
            rows += [np.array(np.nan)] * 2
        else:
            ratios = cost_ratios(costs, repeats, buckets)
            rows += [speedup_leviathan(sums, ratios), speedup_cost_model(sums, ratios)]
        rows += list(np.moveaxis(acceptance_by_position(sums), -1, 0))
        return np.stack(np.broadcast_arrays(*rows))

    sizes = (len(units.rounds), costs.num_repeats if costs else 1)
    points = estimate(*(np.arange(n) for n in sizes))
    intervals = bootstrap(estimate, sizes, seed=seed)
    line = fields(names, points, intervals)
    by_position = slice(len(names), len(names) + buckets[-1])
    line["acceptance_by_position"] = [_number(value) for value in points[by_position]]
    line["acceptance_by_position_ci"] = [_limits(interval) for interval in intervals[by_position]]
    return line


def _costs(costs: Costs | None, gamma: int, seed: int) -> dict[str, Any]:
    """c, d(gamma), v(gamma + 1) and, of trees, the share of a round that bookkeeping takes, over repeats."""
    names = ["draft_cost_ratio", "proposal_cost_ratio", "verify_cost_ratio", "bookkeeping_share"]
    if costs is None:
        return fields(names, [np.nan] * len(names), [None] * len(names))
    of_gamma = (costs.draft_ratio, costs.proposal_ratio, costs.bookkeeping_share)
    draft, proposal, bookkeeping = (ratio(gamma) for ratio in of_gamma)
    repeats = np.stack([draft, proposal, costs.verify_ratio(gamma + 1), bookkeeping])
    estimate = lambda index: np.median(repeats[:, index], axis=-1)
    sizes = (costs.num_repeats,)
    return fields(names, estimate(np.arange(costs.num_repeats)), bootstrap(estimate, sizes, seed=seed))


def fields(
    names: Sequence[str], values: Sequence[float] | Float, intervals: Sequence[Interval | None]
) -> dict[str, Any]:
    """NAME and NAME_ci of each estimate, as JSON holds them."""
    line: dict[str, Any] = {}
    for name, value, interval in zip(names, values, intervals):
        line[name], line[f"{name}_ci"] = _number(value), _limits(interval)
    return line


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _limits(interval: Interval | None) -> list[float] | None:
    return [interval.low, interval.high] if interval else None
