"""The best gamma of a drafter at a temperature: by the paper, by measured costs, by measured speed."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

from specjax.analysis import cells, theory
from specjax.analysis.cells import Row


@dataclasses.dataclass(frozen=True, kw_only=True)
class GammaChoice:
    """Three answers to one question, and the conditions behind them.

    None where a cost is missing, or a cascade's drafters have two.
    """

    label: str
    temperature: float
    alpha: float
    c: float | None
    paper_gamma: int | None  # Theorem 3.8 (v = 1), over gamma 0..64
    paper_speedup: float | None
    lower_bound: float | None  # (1 + alpha) / (1 + c) if alpha > c: Corollary 3.9, for v = 1 only
    costs_gamma: int | None  # the best tau / (d + v), over every gamma up to the largest measured
    costs_speedup: float | None
    measured_gamma: int  # over the cells and plain decoding (0)
    measured_speedup: float
    measured_ci: list[float] | None
    tau: float | None  # of the fastest cell
    break_even_tau: float | None  # d + v there: drafting pays if tau exceeds it


def choices(rows: Sequence[Row]) -> list[GammaChoice]:
    """One choice for each drafter (pair and rule) and temperature in the results lines."""
    return [
        _choice(name, temperature, lines)
        for name, group in cells.by_drafter(rows).items()
        for temperature, lines in cells.by_temperature(group).items()
        if any(line["speedup"] is not None and line["alpha_overlap"] is not None for line in lines)
    ]


def _choice(name: str, temperature: float, lines: Sequence[Row]) -> GammaChoice:
    source = cells.most_tested([line for line in lines if line["alpha_overlap"] is not None])
    alpha, c = source["alpha_overlap"], source["draft_cost_ratio"]
    fastest = max((line for line in lines if line["speedup"] is not None), key=lambda line: line["speedup"])
    plain_wins = fastest["speedup"] < 1
    paper_gamma = None if c is None else theory.optimal_gamma(alpha, c=c)
    costs_gamma, costs_speedup = (None, None) if c is None else _by_costs(alpha, lines)
    d, v = fastest["proposal_cost_ratio"], fastest["verify_cost_ratio"]
    return GammaChoice(
        label=name,
        temperature=temperature,
        alpha=alpha,
        c=c,
        paper_gamma=paper_gamma,
        paper_speedup=None
        if c is None or paper_gamma is None
        else float(theory.speedup(alpha, paper_gamma, c)),
        lower_bound=None if c is None or alpha <= c else float(theory.speedup_lower_bound(alpha, c)),
        costs_gamma=costs_gamma,
        costs_speedup=costs_speedup,
        measured_gamma=0 if plain_wins else fastest["gamma"],
        measured_speedup=1.0 if plain_wins else fastest["speedup"],
        measured_ci=None if plain_wins else fastest["speedup_ci"],
        tau=fastest["tau"],
        break_even_tau=None if None in (c, d, v) else float(theory.break_even_tau(d, v)),
    )


def _by_costs(alpha: float, lines: Sequence[Row]) -> tuple[int | None, float | None]:
    """(gamma, speedup) of the best tau / (d + v); what was measured is linear between its gammas.

    Only the measured share of rounds drafts (prompt lookup needs a match). The
    rest are plain steps: a token each, at the cost of one unless another row of
    the batch drafts, rows being taken for independent.
    """
    d, v = cells.cost_curves(lines)
    if len(d) == 1:
        return None, None
    drafting, scoring, share = cells.linear(d), cells.linear(v), cells.linear(_drafting_share(lines))
    batch_size = lines[0]["batch_size"]

    def speedup(gamma: int) -> float:
        drafts = share(gamma)
        some_row_drafts = 1 - (1 - drafts) ** batch_size
        tau = 1 + drafts * (float(theory.expected_tokens(alpha, gamma)) - 1)
        return tau / (1 + some_row_drafts * (drafting(gamma) + scoring(gamma + 1) - 1))

    gamma = max(range(max(d) + 1), key=speedup)
    return gamma, speedup(gamma)


def _drafting_share(lines: Sequence[Row]) -> dict[int, float]:
    """{gamma: share of its rounds that drafted}: such a round, and no other, tests its first position."""
    return {line["gamma"]: line["tested_by_position"][0] / line["num_rounds"] for line in lines}
