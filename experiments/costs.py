"""What model steps cost: c, d(gamma) and v(T), measured on the device.

Each is a ``fori_loop`` of the very step a round makes, at the run's batch size
and buffer length, so that no dispatch is timed, and at one place of the buffer: a
step costs by what it attends to, so a sweep measures amid an average decode.

A proposal is timed together with the target step that scores it, and that step
alone is taken off: between two proposals of a real round the target's weights
push the draft's out of the processor's caches, which a loop of proposals alone
would not see. A ratio compares times of one repeat, taken within a second of
each other.

The model of a cascade also proposes from one catch-up step behind: what that
takes more is charged once for every such step of the decodes.

Of trees the whole round is timed as well. What it takes beyond proposal, target
step and warping is the bookkeeping: mask, walk, gather of the accepted path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import dataclasses
import functools
import time
from typing import Any

import jax
import jax.numpy as jnp

from experiments import cost_loops, memory
from specjax.analysis.records import Costs
from specjax.decoding.program import Program
from specjax.drafters.cascade import Cascade
from specjax.drafters.model import ModelDrafter
from specjax.types import (
    Array,
    DecodeState,
    Params,
    Request,
)

Loop = Callable[[int], Any]  # runs so many steps on the device

LOOP_SECONDS = 0.1  # what one repeat of a loop aims to last
MOST_STEPS = 2000


class LoopTimer:
    """Seconds per step of each loop, one value a repeat; compilation and calibration come first.

    A call of no steps is taken off: it copies what the loop carries, caches
    of megabytes too, which the loop of a real decode is given to keep.
    """

    def __init__(self, loops: Mapping[Any, Loop]):
        self.loops = loops
        self.num_steps = {key: _calibrated(loop) for key, loop in loops.items()}
        self.seconds: dict[Any, list[float]] = {key: [] for key in loops}
        self.entry = {key: _timed(loop, 0) for key, loop in loops.items()}

    def repeat(self) -> None:
        """Times every loop once, one after another: a ratio within a repeat saw one machine."""
        for key, loop in self.loops.items():
            # The least so far: a pause of the process in one such call would be taken off as well.
            self.entry[key] = min(self.entry[key], _timed(loop, 0))
            taken = _timed(loop, self.num_steps[key]) - self.entry[key]
            self.seconds[key].append(taken / self.num_steps[key])


class CostMeter:
    """Seconds per step of everything a group of cells runs; every call of ``repeat`` adds one value.

    A machine's speed drifts by tens of percent within minutes, so the caller
    spreads the repeats over the decodes that the costs are to explain.
    """

    def __init__(
        self,
        programs: Mapping[int, Program],
        params: tuple[Params, Params],
        request: Request,
        state: DecodeState,
    ):
        """Compiles and calibrates.

        Args:
          programs: by gamma, of the cells of a group: proposals of so many
            tokens, and target steps of one token more.
          params: (target, draft).
          request: the batch's, since warping is a part of a proposal.
          state: of any of them, all of the same shape: after prefill or amid a decode; it is not changed.
        """
        self.timer = LoopTimer(_loops(programs, params, request, state))

    @property
    def num_repeats(self) -> int:
        return len(self.timer.seconds["target", 1])

    def repeat(self) -> None:
        self.timer.repeat()

    def costs(self) -> Costs:
        """What was measured so far."""
        pick = lambda kind: {
            size: tuple(times) for (name, size), times in self.timer.seconds.items() if name == kind
        }
        target, rounds, behind = pick("target"), pick("round"), pick("behind")
        proposals = {
            gamma: tuple(
                max(both - scored, 0.0) for both, scored in zip(times, target[gamma + 1], strict=True)
            )
            for gamma, times in rounds.items()
        }
        return Costs(
            target_seconds=target,
            proposal_seconds=proposals,
            draft_step_seconds=pick("draft step").get(1, ()),
            catch_up_seconds=tuple(
                max(late - timely, 0.0)
                for gamma, times in behind.items()
                for late, timely in zip(times, rounds[gamma], strict=True)
            ),
            whole_round_seconds=pick("whole round"),
            bookkeeping_seconds={
                gamma: tuple(
                    whole - both - warped
                    for whole, both, warped in zip(times, rounds[gamma], pick("warp")[gamma], strict=True)
                )
                for gamma, times in pick("whole round").items()
            },
        )


def _loops(
    programs: Mapping[int, Program], params: tuple[Params, Params], request: Request, state: DecodeState
) -> dict[Any, Loop]:
    program = next(iter(programs.values()))
    target, drafter = program.target, program.drafter
    step = lambda model, size, weights, cache: functools.partial(
        cost_loops.model_steps, model, weights, _first_tokens(state.tokens, size), cache
    )
    loops: dict[Any, Loop] = {}
    if isinstance(drafter, Cascade):
        gamma, model, (copying, drafting) = drafter.model_gamma, drafter.model, state.draft_state
        assert isinstance(model, ModelDrafter)
        upto = lambda length, state=state: dataclasses.replace(
            state, draft_state=(copying, model.as_if_fed(drafting, jnp.maximum(length, 0)))
        )
        loops["behind", gamma] = functools.partial(
            cost_loops.rounds,
            programs[gamma],
            gamma,
            params,
            request,
            upto(state.length - 1 - model.catch_up),
        )
        state = upto(state.length - 1)  # amid a decode the model may be behind
    for size in sorted({1, *(gamma + 1 for gamma in programs)}):
        loops["target", size] = step(target, size, params[0], state.target_cache)
    for gamma, program in programs.items():
        if program.drafter is not None:
            loops["round", gamma] = functools.partial(
                cost_loops.rounds, program, gamma, params, request, state
            )
        if program.is_tree:
            of_program = (program, gamma, params, request)
            done = dataclasses.replace(state, done=jnp.ones_like(state.done))
            loops["whole round", gamma] = functools.partial(cost_loops.whole_rounds, *of_program, done)
            loops["warp", gamma] = functools.partial(cost_loops.warps, target, gamma, request, state)
    if isinstance(drafter, ModelDrafter):
        loops["draft step", 1] = step(drafter.model, 1, params[1], state.draft_state.cache)
    return loops


def measure(
    program: Program,
    params: tuple[Params, Params],
    request: Request,
    state: DecodeState,
    gammas: tuple[int, ...],
    repeats: int,
) -> Costs:
    """All ``repeats`` of a :class:`CostMeter` at once, for a ``program`` of chains of each of ``gammas``."""
    meter = CostMeter(dict.fromkeys(gammas, program), params, request, state)
    for _ in range(repeats):
        meter.repeat()
    return meter.costs()


def _calibrated(loop: Loop) -> int:
    """Steps that fill ``LOOP_SECONDS``."""
    _timed(loop, 2)
    per_step = _timed(loop, 4) / 4
    memory.trim()
    return max(2, min(MOST_STEPS, round(LOOP_SECONDS / per_step)))


def _timed(loop: Loop, num_steps: int) -> float:
    start = time.perf_counter()
    jax.block_until_ready(loop(num_steps))
    return time.perf_counter() - start


def _first_tokens(tokens: Array, size: int) -> Array:
    return tokens[:, :size]
