"""The breakdown by group: the pooled definitions on fewer records, and what the report takes from it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from synthetic_runs import GROUPS, decode, results

from specjax.analysis.group_plots import POOLED, group_figure
from specjax.analysis.groups import ESTIMATES, by_group, group_tables
from specjax.analysis.metrics import summarize

EASY, HARD = "code", "chat"


@pytest.fixture(scope="module")
def records():
    """Six prompts of each of two groups, mixed, twice decoded; alpha .9 and .5."""
    rng = np.random.default_rng(5)
    return [
        decode(
            rng, conditional=[0.9 if i % 2 else 0.5] * 3, prompt=i, category=(HARD, EASY)[i % 2], max_gamma=4
        )
        for _ in range(2)
        for i in range(12)
    ]


def test_a_group_is_summarized_as_if_it_were_the_whole_run(records):
    groups = by_group(records)
    assert list(groups) == [HARD, EASY]
    for name, group in groups.items():
        alone = summarize([record for record in records if record.category == name])
        for key in ("num_prompts", "num_tokens", *ESTIMATES, *(f"{name}_ci" for name in ESTIMATES)):
            assert group[key] == alone[key], key
    assert groups[HARD]["alpha_accept_ci"][1] < groups[EASY]["alpha_accept_ci"][0]
    assert json.loads(json.dumps(groups, allow_nan=False)) == groups


def test_groups_add_up_to_the_pool(records):
    pooled, groups = summarize(records), by_group(records)
    assert sum(group["num_prompts"] for group in groups.values()) == pooled["num_prompts"] == 12
    assert sum(group["num_tokens"] for group in groups.values()) == pooled["num_tokens"]
    for name in ESTIMATES:
        assert groups[HARD][name] < pooled[name] < groups[EASY][name]


def test_one_group_is_no_breakdown(records):
    assert by_group([record for record in records if record.category == EASY]) == {}


def test_the_time_of_a_mixed_batch_belongs_to_no_group(records):
    def batches(size):
        return by_group([_with(record, batch=record.prompt // size) for record in records])

    alone, mixed = batches(1), batches(4)
    for name in (EASY, HARD):
        assert alone[name]["speedup"] > 0
        assert mixed[name]["speedup"] is None and mixed[name]["speedup_ci"] is None
        assert mixed[name]["tau"] == alone[name]["tau"]


def test_a_group_of_one_prompt_has_no_interval(records):
    single = by_group([r for r in records if r.category == EASY or r.prompt == 0])[HARD]
    assert single["num_prompts"] == 1 and single["speedup"] > 0
    assert all(single[f"{name}_ci"] is None for name in ESTIMATES)


def _with(record, **changes):
    return type(record)(**record.to_dict() | changes)


@pytest.fixture(scope="module")
def rows():
    return results(gammas=(1, 3, 7), groups=tuple(GROUPS))


def test_a_table_takes_each_drafter_at_its_best_gamma(rows):
    tables = group_tables(rows)
    assert [table.temperature for table in tables] == [0.0, 0.6, 1.0]
    for table in tables:
        assert table.groups == dict.fromkeys(GROUPS, 4)
        for name, chosen in table.lines.items():
            peers = [r for r in rows if r["drafter"] == name and r["temperature"] == table.temperature]
            assert chosen["speedup"] == max(row["speedup"] for row in peers if row["status"] == "ok")
    assert {row["gamma"] for table in tables for row in table.lines.values()} == {1, 3}


def test_the_figure_has_a_dot_for_every_group_and_the_pool(rows):
    axes = group_figure(rows).axes
    assert len(axes) == 6
    shown = [text.get_text() for text in axes[0].get_yticklabels()]
    assert shown == [POOLED, *GROUPS]
    draft = group_tables(rows)[0].lines["draft"]
    expected = [draft["speedup"], *(draft["by_group"][name]["speedup"] for name in GROUPS)]
    assert len(axes[1].containers) == 3
    assert axes[1].containers[0].lines[0].get_xdata().tolist() == expected


def test_without_groups_nothing_is_shown(rows):
    assert group_tables([row | {"by_group": {}} for row in rows]) == []
