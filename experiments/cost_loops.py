"""Device loops of what a round is made of, each of them the very step that decoding takes.

Every one takes ``num_steps`` last and hands on to each step what the one before
gave, so that none can be skipped.
"""

from __future__ import annotations

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp

from specjax import cache as kv
from specjax import sampling
from specjax.decoding.program import Program
from specjax.decoding.rows import Rows, over_batch
from specjax.decoding.tree_round import decode_tree_round
from specjax.decoding.warping import active_in, warp_of
from specjax.models.language_model import LanguageModel
from specjax.processors import prefixes
from specjax.trees.contracts import TreeDrafter, TreeRule
from specjax.types import (
    Array,
    DecodeState,
    Drafter,
    DraftState,
    History,
    Outcome,
    Params,
    Request,
    Rule,
    Warp,
)


@functools.partial(jax.jit, static_argnums=0)
def model_steps(model: LanguageModel, params: Params, tokens: Array, cache: Any, num_steps: Array) -> Any:
    """T-token steps at one place of the cache; each is fed the last one's argmax, so none can be skipped."""

    def step(tokens: Array, cache: Any) -> tuple[Array, Any]:
        output = model.apply(params, tokens, cache)
        return sampling.first_argmax(output.logits), kv.rewind(output.cache, cache.length)

    def loop(rows: Rows, *carry: Any) -> Any:
        return jax.lax.fori_loop(0, num_steps, lambda _, carry: rows(step)(*carry), carry)

    return over_batch(loop)(tokens, cache)


@functools.partial(jax.jit, static_argnums=(0, 1))
def rounds(
    program: Program,
    gamma: int,
    params: tuple[Params, Params],
    request: Request,
    state: DecodeState,
    num_steps: Array,
) -> Any:
    """A proposal and its target step, again and again from one place: each is committed as a frozen row's."""
    target, active = program.target, active_in(request)

    def one(
        round: Array,
        request: Request,
        history: History | None,
        length: Array,
        tokens: Array,
        cache: Any,
        draft_state: DraftState,
    ) -> tuple[Array, Any, DraftState]:
        warp = warp_of(request, active, history, length)
        drafted, draft_state = _propose(
            program, params, gamma, request, warp, round, tokens, length, draft_state
        )
        block = jnp.concatenate([tokens[length - 1][None], jnp.clip(drafted, 0)])
        output = target.apply(params[0], block, cache)
        # Slots past the length are never read: this only ties each round to the one before.
        tokens = tokens.at[length].set(sampling.first_argmax(output.logits).sum(dtype=jnp.int32) + round)
        nothing = Outcome(
            old_length=length,
            num_emitted=jnp.int32(0),
            emitted=block,
            features=output.features,
        )
        if program.drafter is not None:
            draft_state, _ = program.drafter.commit(params, draft_state, tokens, nothing)
        return tokens, kv.rewind(output.cache, cache.length), draft_state

    def loop(rows: Rows, request: Request, history: History | None, length: Array, *carry: Any) -> Any:
        body = lambda round, carry: rows(functools.partial(one, round))(request, history, length, *carry)
        return jax.lax.fori_loop(0, num_steps, body, carry)

    return over_batch(loop)(
        request, state.history, state.length, state.tokens, state.target_cache, state.draft_state
    )


def _propose(
    program: Program,
    params: tuple[Params, Params],
    gamma: int,
    request: Request,
    warp: Warp,
    round: Array,
    tokens: Array,
    length: Array,
    draft_state: DraftState,
) -> tuple[Array, DraftState]:
    """(draft tokens [gamma], draft state) of one row, whether they are a chain or a tree."""
    rule, drafter, wanted = program.rule, program.drafter, jnp.int32(gamma)
    size = gamma + program.is_tree  # a tree has noise for its root as well
    # Of another place each time: noise by position would else be made once, ahead of the loop.
    noise, _ = rule.noise(request.key, round, length + round, size, program.target.vocab_size)
    if isinstance(drafter, TreeDrafter) and isinstance(rule, TreeRule):
        drafted, draft_state = drafter.propose_tree(
            params, draft_state, tokens, length, wanted, noise, rule.draw_children, warp
        )
        return drafted.tree.tokens[1:], draft_state
    draw = cast(Rule, rule).draw
    chain, draft_state = cast(Drafter, drafter).propose(
        params, draft_state, tokens, length, gamma, wanted, noise, draw, warp
    )
    return chain.tokens, draft_state


@functools.partial(jax.jit, static_argnums=(0, 1))
def whole_rounds(
    program: Program,
    gamma: int,
    params: tuple[Params, Params],
    request: Request,
    state: DecodeState,
    num_steps: Array,
) -> DecodeState:
    """Rounds over trees of rows that are done: all the work of a round, and the row as it was."""
    one = functools.partial(decode_tree_round, program, params, active_in(request), gamma)

    def loop(rows: Rows, request: Request, state: DecodeState) -> DecodeState:
        return jax.lax.fori_loop(0, num_steps, lambda _, state: rows(one)(request, state), state)

    return over_batch(loop)(request, state)


@functools.partial(jax.jit, static_argnums=(0, 1))
def warps(target: LanguageModel, gamma: int, request: Request, state: DecodeState, num_steps: Array) -> Array:
    """Logits of gamma + 1 tokens to the laws that are judged by, each tied to the one before."""
    active = active_in(request)

    def one(request: Request, history: History | None, length: Array, logits: Array) -> Array:
        warp = warp_of(request, active, history, length)
        probs = warp(logits, prefixes(jnp.arange(gamma, dtype=jnp.int32)))
        return logits.at[:, 0].add(probs[:, 0])

    def loop(rows: Rows, request: Request, history: History | None, length: Array, logits: Array) -> Array:
        body = lambda _, logits: rows(one)(request, history, length, logits)
        return jax.lax.fori_loop(0, num_steps, body, logits)

    shape = (state.length.shape[0], gamma + 1, target.vocab_size)
    logits = jax.random.normal(jax.random.key(0), shape)
    return over_batch(loop)(request, state.history, state.length, logits)
