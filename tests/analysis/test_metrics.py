"""Every metric against numbers worked out by hand."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from synthetic_runs import costs as noisy_costs
from synthetic_runs import decode

from specjax.analysis import metrics
from specjax.analysis.records import Costs, PromptRecord
from specjax.analysis.totals import by_unit, pool
from specjax.types import Statistics


def record(prompt: int = 0, **changes) -> PromptRecord:
    """Ten rounds of gamma 2: 8 accepted the first draft, 4 of them the second too."""
    fields = {
        "prompt": prompt,
        "num_tokens": 22,
        "rounds": 10,
        "buckets": (2,),
        "rounds_by_bucket": (10,),
        "rounds_by_drafted": (0, 0, 10),
        "tested": (10, 8),
        "accepted": (8, 4),
        "overlap": (7.0, 5.0),
        "seconds": 2.0,
        "baseline_seconds": 4.0,
        "baseline_tokens": 22,
    }
    return PromptRecord(**fields | changes)


COSTS = Costs(
    target_seconds={1: (0.1, 0.1, 0.2), 3: (0.12, 0.12, 0.24)},
    proposal_seconds={2: (0.04, 0.04, 0.08)},
    draft_step_seconds=(0.02, 0.02, 0.04),
)


def test_acceptance_by_hand():
    line = metrics.summarize([record()], COSTS)
    assert line["alpha_accept"] == pytest.approx(12 / 18)
    assert line["alpha_overlap"] == pytest.approx(12 / 18)
    assert line["acceptance_by_position"] == pytest.approx([0.8, 0.5])
    assert line["tau"] == pytest.approx(2.2)
    # 1 + a + a^2 = 2.2
    assert line["alpha_tau"] == pytest.approx((-1 + np.sqrt(1 + 4 * 1.2)) / 2)
    assert line["tau_expected"] == pytest.approx(1 + 2 / 3 + 4 / 9)


def test_speeds_by_hand():
    line = metrics.summarize([record()], COSTS)
    assert (line["tokens_per_second"], line["baseline_tokens_per_second"]) == (11.0, 5.5)
    assert line["speedup"] == pytest.approx(2.0)
    assert line["draft_cost_ratio"] == pytest.approx(0.2)
    assert line["proposal_cost_ratio"] == pytest.approx(0.4)
    assert line["verify_cost_ratio"] == pytest.approx(1.2)
    assert line["speedup_leviathan"] == pytest.approx((1 + 2 / 3 + 4 / 9) / 1.4)
    assert line["speedup_cost_model"] == pytest.approx(2.2 / 1.6)


def test_rates_are_ratios_of_sums_not_means_of_ratios():
    """Seven prompts with 1 of 10, one with 3,000 of 4,000: .7388, where a mean of ratios says .181."""

    def prompt(index: int, accepted: int, tested: int) -> PromptRecord:
        return record(
            index, buckets=(1,), rounds_by_drafted=(0, tested), rounds=tested, rounds_by_bucket=(tested,),
            tested=(tested,), accepted=(accepted,), overlap=(0.0,), num_tokens=tested + accepted,
        )  # fmt: skip

    records = [prompt(i, 1, 10) for i in range(7)] + [prompt(7, 3000, 4000)]
    assert metrics.alpha_accept(pool(records)) == pytest.approx(0.7388, abs=5e-5)
    line = metrics.summarize(records)
    assert line["alpha_accept"] == pytest.approx(0.7388, abs=5e-5)
    assert line["num_prompts"] == 8 and line["num_tokens"] == 7 * 11 + 7000


def test_a_run_that_drafted_nothing_has_no_acceptance_and_no_nan():
    plain = record(
        buckets=(0,), rounds=22, rounds_by_bucket=(22,), rounds_by_drafted=(22, 0, 0),
        tested=(0, 0), accepted=(0, 0), overlap=(0.0, 0.0), seconds=4.0,
    )  # fmt: skip
    line = metrics.summarize([plain] * 3, Costs(target_seconds={1: (0.1,)}))
    assert line["alpha_accept"] is line["alpha_overlap"] is line["alpha_tau"] is None
    assert line["alpha_accept_ci"] is None and line["acceptance_by_position"] == []
    assert line["tau"] == line["tau_expected"] == line["speedup"] == 1.0
    assert line["speedup_leviathan"] == line["speedup_cost_model"] == 1.0
    json.dumps(line, allow_nan=False)


def test_a_position_that_was_never_tested_is_none():
    never = record(tested=(10, 0), accepted=(0, 0), overlap=(1.0, 0.0), num_tokens=10)
    line = metrics.summarize([never])
    assert line["acceptance_by_position"] == [0.0, None]
    assert line["alpha_accept"] == 0.0 and line["alpha_tau"] == pytest.approx(0, abs=1e-9)


def test_tokens_cut_by_a_stop_count_in_tau_but_not_in_speed():
    line = metrics.summarize([record(num_tokens=20, cut=2)], COSTS)
    assert line["speedup_cost_model"] == pytest.approx(2.0 / 1.6)
    assert line["tau"] == pytest.approx(2.2)
    assert line["tokens_per_second"] == pytest.approx(10.0)
    assert line["num_tokens"] == 20


def test_a_short_last_round_counts_what_it_drafted():
    """Gamma 4, but the last round had room for one token: drafted 1, tested 1."""
    short = record(
        buckets=(4,), rounds=2, rounds_by_bucket=(2,), rounds_by_drafted=(0, 1, 0, 0, 1),
        tested=(2, 1, 1, 1), accepted=(2, 1, 1, 1), overlap=(2.0, 1.0, 1.0, 1.0), num_tokens=7,
    )  # fmt: skip
    line = metrics.summarize([short])
    assert line["alpha_accept"] == 1.0
    assert line["alpha_tau"] == pytest.approx(1.0, abs=1e-9)
    assert line["tau_expected"] == pytest.approx((5 + 2) / 2)


MIXED = record(
    buckets=(0, 2), rounds=10, rounds_by_bucket=(6, 4), rounds_by_drafted=(6, 1, 3),
    tested=(4, 3), accepted=(4, 2), overlap=(4.0, 2.0), num_tokens=16,
)  # fmt: skip


def test_cost_model_charges_each_round_its_own_bucket():
    """Six rounds without a draft pay v(1); four pay d(2) and v(3), though one drafted a single token."""
    line = metrics.summarize([MIXED], COSTS)
    assert line["speedup_cost_model"] == pytest.approx(16 / (6 * 1.0 + 4 * 1.2 + 4 * 0.4))
    assert metrics.mean_drafted(pool([MIXED])) == pytest.approx(0.7)
    assert line["speedup_leviathan"] == pytest.approx(line["tau_expected"] / (0.7 * 0.2 + 1))


def test_cost_model_charges_every_step_of_a_draft_model_that_catches_up():
    late = dataclasses.replace(MIXED, catch_up_steps=5)
    costs = dataclasses.replace(COSTS, catch_up_seconds=(0.03, 0.03, 0.06))
    line = metrics.summarize([late], costs)
    assert line["speedup_cost_model"] == pytest.approx(16 / (6 * 1.0 + 4 * 1.2 + 4 * 0.4 + 5 * 0.3))


def test_what_supposes_one_drafter_is_undefined_for_a_cascade():
    line = metrics.summarize([MIXED], COSTS, is_cascade=True)
    assert line["draft_cost_ratio"] is line["speedup_leviathan"] is line["speedup_leviathan_ci"] is None
    assert line["speedup_cost_model"] and line["alpha_overlap"]


def test_a_drafter_without_steps_has_c_from_its_proposal():
    costs = dataclasses.replace(COSTS, draft_step_seconds=())
    assert metrics.summarize([record()], costs)["draft_cost_ratio"] == pytest.approx(0.2)


def test_without_costs_predictions_are_none():
    line = metrics.summarize([record(i) for i in range(3)])
    for name in ("draft_cost_ratio", "verify_cost_ratio", "speedup_leviathan", "speedup_cost_model"):
        assert line[name] is None and line[f"{name}_ci"] is None


def test_units_are_batches_and_repeats_are_summed():
    records = [record(i, batch=i // 2, repeat=r) for i in range(4) for r in range(3)]
    assert by_unit(records).rounds.tolist() == [60, 60]
    assert metrics.summarize(records)["num_prompts"] == 4


def test_every_estimate_has_an_interval_that_holds_the_truth():
    rng = np.random.default_rng(3)
    cost = noisy_costs(rng, c=0.05, slope=0.06, gammas=(3,))
    seconds = 0.005 * (3 * 0.05 + 1 + 3 * 0.06)
    records = [
        decode(rng, conditional=[0.8] * 3, prompt=i, max_gamma=5, round_seconds=seconds) for i in range(16)
    ]
    line = metrics.summarize(records, cost)
    truth = {"alpha_accept": 0.8, "alpha_tau": 0.8, "tau": 2.952, "verify_cost_ratio": 1.18}
    truth |= {"draft_cost_ratio": 0.05, "speedup_cost_model": 2.952 / 1.33}
    for name, value in truth.items():
        low, high = line[f"{name}_ci"]
        assert low < value < high and low < line[name] < high, name
        assert high - low < 0.3 * value, name
    assert len(line["acceptance_by_position_ci"]) == 3 and len(line["tested_by_position"]) == 3
    assert json.loads(json.dumps(line, allow_nan=False)) == line
    assert metrics.summarize(records, cost) == line  # seeded


def test_records_and_costs_survive_json():
    assert PromptRecord.from_dict(json.loads(json.dumps(MIXED.to_dict()))) == MIXED
    assert Costs.from_dict(json.loads(json.dumps(COSTS.to_dict()))) == COSTS


def test_a_record_takes_the_statistics_of_a_row():
    statistics = Statistics(
        rounds=np.int32(10), rounds_by_bucket=np.array([10]), rounds_by_drafted=np.array([0, 0, 10]),
        tested=np.array([10, 8]), accepted=np.array([8, 4]), overlap=np.array([7.0, 5.0], np.float32),
        accepted_nodes=np.array([10, 8, 4]), cut=np.int32(0),
    )  # fmt: skip
    made = PromptRecord.from_statistics(
        statistics,
        buckets=(2,),
        prompt=0,
        num_tokens=22,
        seconds=2.0,
        baseline_seconds=4.0,
        baseline_tokens=22,
    )
    assert made == record(accepted_nodes=(10, 8, 4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.summarize([]), "no records"),
        (lambda: metrics.summarize([record(), MIXED]), "different programs"),
        (
            lambda: metrics.summarize([record()], Costs(target_seconds={1: (0.1,)})),
            r"d\(2\) was not measured",
        ),
        (lambda: COSTS.verify_ratio(8), r"v\(8\) was not measured; .* T = \[1, 3\]"),
        (lambda: Costs(target_seconds={3: (0.1,)}), "needs T = 1"),
        (lambda: Costs(target_seconds={1: (0.1,), 2: (0.1, 0.2)}), "same number of repeats"),
        (lambda: record(accepted=(11, 4)), "exceeds tested"),
        (lambda: record(rounds_by_bucket=(5, 5)), "1 buckets"),
    ],
)
def test_what_cannot_be_measured_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
