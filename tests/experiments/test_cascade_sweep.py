"""A cascade in a sweep: its model's catching up is counted and measured, and nothing supposes one drafter."""

import json

from test_sweep import launch, rows_of

from experiments.settings import SweepSettings


def test_what_a_cascade_catches_up_on_is_in_its_costs(pair, prompts_file, tmp_path):
    target, draft = pair
    settings = SweepSettings(
        targets=(target,),
        drafters=("none", f"prompt_lookup+{draft}"),
        gammas=(5,),
        temperatures=(0.0,),
        prompts=prompts_file,
        num_prompts=3,
        max_new_tokens=48,
        cost_repeats=2,
    )
    status, _ = launch(settings, tmp_path / "run", report=False)
    assert status == 0
    (row,) = [row for row in rows_of(tmp_path / "run") if row["drafter"] != "none"]
    assert row["identical_to_baseline"] == row["num_decodes"] == 3
    assert row["draft_cost_ratio"] is row["speedup_leviathan"] is None and row["speedup_cost_model"] > 0
    assert sorted(row["costs"]["proposal_seconds"]) == ["3", "5"]
    assert len(row["costs"]["catch_up_seconds"]) == 2
    lines = (tmp_path / "run" / "cells" / f"{row['cell_id']}.records.jsonl").read_text().splitlines()
    records = [json.loads(line)["record"] for line in lines if '"record"' in line]
    copied = sum(record["rounds_by_bucket"][1] for record in records)
    assert 0 < sum(record["catch_up_steps"] for record in records) <= copied
