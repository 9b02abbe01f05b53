"""The gamma that measured costs predict, where every round drafts and where only some do."""

import numpy as np
import pytest
from synthetic_runs import TARGET_STEP

from specjax.analysis import theory
from specjax.analysis.gamma_choice import choices
from specjax.analysis.metrics import summarize
from specjax.analysis.records import Costs, PromptRecord

ALPHA, D, SLOPE = 0.7, 0.02, 0.1  # d(g) = D g and v(T) = 1 + SLOPE (T - 1)
GAMMAS = (1, 3, 7)
ROUNDS = 10_000


def line(gamma, share, *, batch_size=1):
    """A cell of one decode in which ``share`` of the rounds drafted; each draft is accepted with ALPHA."""
    drafting = round(share * ROUNDS)
    reached = np.round(drafting * ALPHA ** np.arange(gamma + 1)).astype(int)  # position 1, 2, .. and the end
    tested, accepted = reached[:-1], reached[1:]
    rows_draft = 1 - (1 - share) ** batch_size
    seconds = ROUNDS * TARGET_STEP * (1 + rows_draft * (D + SLOPE) * gamma)
    tokens = ROUNDS + int(accepted.sum())
    record = PromptRecord(
        prompt=0,
        num_tokens=tokens,
        rounds=ROUNDS,
        buckets=(0, gamma),
        rounds_by_bucket=(ROUNDS - drafting, drafting),
        rounds_by_drafted=(ROUNDS - drafting, *[0] * (gamma - 1), drafting),
        tested=tested.tolist(),
        accepted=accepted.tolist(),
        overlap=(tested * ALPHA).tolist(),
        seconds=seconds,
        baseline_seconds=tokens * TARGET_STEP,
        baseline_tokens=tokens,
    )
    steps = {1: (TARGET_STEP,), gamma + 1: (TARGET_STEP * (1 + SLOPE * gamma),)}
    costs = Costs(target_seconds=steps, proposal_seconds={gamma: (TARGET_STEP * D * gamma,)})
    identity = {"pair": "target+lookup", "target": "target", "drafter": "lookup", "acceptance": "rejection"}
    identity |= {
        "lossless": True,
        "gamma": gamma,
        "temperature": 0.0,
        "batch_size": batch_size,
        "status": "ok",
    }
    return identity | summarize([record], costs)


def choice(share, **settings):
    (found,) = choices([line(gamma, share, **settings) for gamma in GAMMAS])
    return found


def paper(gamma):
    tau = theory.expected_tokens(ALPHA, gamma)
    return float(theory.cost_model_speedup(tau, D * gamma, 1 + SLOPE * gamma))


def test_where_every_round_drafts_it_is_the_cost_model():
    found = choice(1.0)
    best = theory.optimal_gamma(ALPHA, c=D, v=lambda tokens: 1 + SLOPE * (tokens - 1), max_gamma=max(GAMMAS))
    assert found.costs_gamma == best
    assert found.costs_speedup == pytest.approx(paper(best))


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_rounds_that_draft_nothing_are_plain_steps(share):
    """As measured at the measured gammas, and no gamma is better; without the share it is far too much."""

    def by_hand(gamma):
        tokens = float(theory.expected_tokens(ALPHA, gamma))
        return (share * tokens + 1 - share) / (share * (1 + (D + SLOPE) * gamma) + 1 - share)

    for gamma in GAMMAS:
        assert line(gamma, share)["speedup"] == pytest.approx(by_hand(gamma), rel=1e-3)
    found = choice(share)
    assert found.costs_speedup == pytest.approx(by_hand(found.costs_gamma))
    assert found.costs_speedup == pytest.approx(max(map(by_hand, range(8))))
    assert paper(found.costs_gamma) > 1.1 * found.costs_speedup


def test_in_a_batch_a_row_pays_for_its_neighbours_drafts():
    alone, batched = choice(0.2), choice(0.2, batch_size=8)
    assert batched.costs_speedup < alone.costs_speedup
    assert batched.costs_gamma in (0, 1)
