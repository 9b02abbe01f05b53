"""What a loop takes a step, from calls of known length."""

import pytest

from experiments import costs

ENTRY, STEP = 0.5, 0.02  # seconds


def test_what_a_call_takes_before_its_first_step_is_no_part_of_a_step(monkeypatch):
    monkeypatch.setattr(costs, "_timed", lambda loop, num_steps: loop(num_steps))
    timer = costs.LoopTimer({"step": lambda num_steps: ENTRY + STEP * num_steps})
    for _ in range(3):
        timer.repeat()
    assert timer.seconds["step"] == pytest.approx([STEP] * 3)
    whole_call = timer.loops["step"](timer.num_steps["step"]) / timer.num_steps["step"]
    assert whole_call > 2 * STEP  # control: what it looked like with the entry left in
