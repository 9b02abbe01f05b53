"""What model steps cost: c, d(gamma) and v(T), measured on the device.

Each is a ``fori_loop`` of the very step a round makes, at the run's batch size
and buffer length, so that no dispatch is timed. A proposal is timed together
with the target step that scores it, and that step alone is taken off: between
two proposals of a real round the target's weights push the draft's out of the
processor's caches, which a loop of proposals alone would not see. A ratio
compares times of one repeat, taken within a second of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import functools
import time
from typing import Any

import jax
import jax.numpy as jnp

from specjax import cache as kv
from specjax import sampling
from specjax.analysis.records import Costs
from specjax.decoding.program import Program
from specjax.decoding.rows import Rows, over_batch
from specjax.decoding.warping import active_in, warp_of
from specjax.drafters.model import ModelDrafter
from specjax.models.language_model import LanguageModel
from specjax.types import Array, DecodeState, Drafter, DraftState, History, Outcome, Params, Request, Rule

Loop = Callable[[int], Any]  # runs so many steps on the device

LOOP_SECONDS = 0.05  # what one repeat of a loop aims to last
MOST_STEPS = 2000


class LoopTimer:
    """Seconds per step of each loop, one value a repeat; compilation and calibration come first."""

    def __init__(self, loops: Mapping[Any, Loop]):
        self.loops = loops
        self.num_steps = {key: _calibrated(loop) for key, loop in loops.items()}
        self.seconds: dict[Any, list[float]] = {key: [] for key in loops}

    def repeat(self) -> None:
        """Times every loop once, one after another: a ratio within a repeat saw one machine."""
        for key, loop in self.loops.items():
            self.seconds[key].append(_timed(loop, self.num_steps[key]) / self.num_steps[key])


class CostMeter:
    """Seconds per step of everything a group of cells runs; every call of ``repeat`` adds one value.

    A machine's speed drifts by tens of percent within minutes, so the caller
    spreads the repeats over the decodes that the costs are to explain.
    """

    def __init__(
        self,
        program: Program,
        params: tuple[Params, Params],
        request: Request,
        state: DecodeState,
        gammas: tuple[int, ...],
    ):
        """Compiles and calibrates.

        Args:
          program: of any cell of the group; its models, rule, buffers.
          params: (target, draft).
          request: the batch's, since warping is a part of a proposal.
          state: a prefilled state of ``program``; it is not changed.
          gammas: proposals of each of these, and target steps of one token more.
        """
        self.timer = LoopTimer(_loops(program, params, request, state, gammas))

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
        target = pick("target")
        proposals = {
            gamma: tuple(
                max(both - scored, 0.0) for both, scored in zip(times, target[gamma + 1], strict=True)
            )
            for gamma, times in pick("round").items()
        }
        return Costs(
            target_seconds=target,
            proposal_seconds=proposals,
            draft_step_seconds=pick("draft step").get(1, ()),
        )


def _loops(
    program: Program,
    params: tuple[Params, Params],
    request: Request,
    state: DecodeState,
    gammas: tuple[int, ...],
) -> dict[Any, Loop]:
    target, drafter = program.target, program.drafter
    step = lambda model, size, weights, cache: functools.partial(
        _model_steps, model, weights, _first_tokens(state.tokens, size), cache
    )
    loops: dict[Any, Loop] = {}
    for size in sorted({1, *(gamma + 1 for gamma in gammas)}):
        loops["target", size] = step(target, size, params[0], state.target_cache)
    if drafter is not None:
        for gamma in gammas:
            loops["round", gamma] = functools.partial(
                _rounds, target, drafter, program.rule, gamma, params, request, state
            )
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
    """All ``repeats`` of a :class:`CostMeter` at once."""
    meter = CostMeter(program, params, request, state, gammas)
    for _ in range(repeats):
        meter.repeat()
    return meter.costs()


def _calibrated(loop: Loop) -> int:
    """Steps that fill ``LOOP_SECONDS``."""
    _timed(loop, 2)
    per_step = _timed(loop, 4) / 4
    return max(2, min(MOST_STEPS, round(LOOP_SECONDS / per_step)))


def _timed(loop: Loop, num_steps: int) -> float:
    start = time.perf_counter()
    jax.block_until_ready(loop(num_steps))
    return time.perf_counter() - start


def _first_tokens(tokens: Array, size: int) -> Array:
    return tokens[:, :size]


@functools.partial(jax.jit, static_argnums=0)
def _model_steps(model: LanguageModel, params: Params, tokens: Array, cache: Any, num_steps: Array) -> Any:
    """T-token steps at one place of the cache; each is fed the last one's argmax, so none can be skipped."""

    def step(tokens: Array, cache: Any) -> tuple[Array, Any]:
        output = model.apply(params, tokens, cache)
        return sampling.first_argmax(output.logits), kv.rewind(output.cache, cache.length)

    def loop(rows: Rows, *carry: Any) -> Any:
        return jax.lax.fori_loop(0, num_steps, lambda _, carry: rows(step)(*carry), carry)

    return over_batch(loop)(tokens, cache)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _rounds(
    target: LanguageModel,
    drafter: Drafter,
    rule: Rule,
    gamma: int,
    params: tuple[Params, Params],
    request: Request,
    state: DecodeState,
    num_steps: Array,
) -> Any:
    """A proposal and its target step, again and again from one place: each is committed as a frozen row's."""
    active = active_in(request)

    def one(
        round: Array,
        request: Request,
        history: History | None,
        length: Array,
        tokens: Array,
        cache: Any,
        draft_state: DraftState,
    ) -> tuple[Array, Any, DraftState]:
        noise, _ = rule.noise(request.key, round, length, gamma, target.vocab_size)
        warp = warp_of(request, active, history, length)
        drafted, draft_state = drafter.propose(
            params, draft_state, tokens, length, gamma, jnp.int32(gamma), noise, rule.draw, warp
        )
        block = jnp.concatenate([tokens[length - 1][None], jnp.clip(drafted.tokens, 0)])
        output = target.apply(params[0], block, cache)
        # Slots past the length are never read: this only ties each round to the one before.
        tokens = tokens.at[length].set(sampling.first_argmax(output.logits).sum(dtype=jnp.int32) + round)
        nothing = Outcome(
            old_length=length, num_emitted=jnp.int32(0), emitted=jnp.zeros((gamma + 1,), jnp.int32)
        )
        draft_state, _ = drafter.commit(params, draft_state, tokens, nothing)
        return tokens, kv.rewind(output.cache, cache.length), draft_state

    def loop(rows: Rows, request: Request, history: History | None, length: Array, *carry: Any) -> Any:
        body = lambda round, carry: rows(functools.partial(one, round))(request, history, length, *carry)
        return jax.lax.fori_loop(0, num_steps, body, carry)

    return over_batch(loop)(
        request, state.history, state.length, state.tokens, state.target_cache, state.draft_state
    )
