"""Device loops of the parts of a round over a chain. Each step hangs on the one before: none is skipped."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, cast

import jax
import jax.numpy as jnp

from specjax import cache as kv
from specjax import sampling
from specjax.decoding.program import Program
from specjax.decoding.round import decode_round
from specjax.decoding.rows import Rows, over_batch
from specjax.decoding.warping import active_in, warp_of
from specjax.processors import prefixes
from specjax.types import Array, DecodeState, Drafter, Noise, Outcome, Params, Proposal, Request, Rule, Warp

Pair = tuple[Params, Params]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def rounds_upto(
    program: Program,
    gamma: int,
    judged: bool,
    params: Pair,
    request: Request,
    noise: Noise,
    state: DecodeState,
    num_steps: Array,
) -> Any:
    """Draft and score from one place, again and again; where ``judged``, noise is made and drafts are judged.

    Otherwise ``noise`` [B, ...] of the drafts is the same in every step. The
    draft's cache is rolled back as after a round that emitted nothing.
    """
    rule, drafter, active = cast(Rule, program.rule), cast(Drafter, program.drafter), active_in(request)

    def one(round: Array, request: Request, noise: Noise, at: DecodeState) -> DecodeState:
        warp = warp_of(request, active, at.history, at.length)
        accept_noise = None
        if judged:
            noise, accept_noise = _noise(program, gamma, request, round, at.length)
        proposal, draft_state = _propose(program, gamma, params, noise, warp, at)
        output = program.target.apply(params[0], _block(at, proposal), at.target_cache)
        if judged:
            verdict = rule.accept(accept_noise, proposal, warp(output.logits, prefixes(proposal.tokens)))
            mark = verdict.num_accepted + verdict.next_token
        else:
            mark = sampling.first_argmax(output.logits).sum(dtype=jnp.int32)
        # Slots past the length are never read.
        tokens = at.tokens.at[at.length].set(mark + round)
        nothing = Outcome(
            old_length=at.length,
            num_emitted=jnp.int32(0),
            emitted=_block(at, proposal),
            features=output.features,
        )
        draft_state, _ = drafter.commit(params, draft_state, tokens, nothing)
        cache = kv.rewind(output.cache, at.length - 1)
        return dataclasses.replace(at, tokens=tokens, target_cache=cache, draft_state=draft_state)

    def loop(rows: Rows, request: Request, noise: Noise, state: DecodeState) -> DecodeState:
        body = lambda round, state: rows(functools.partial(one, round))(request, noise, state)
        return jax.lax.fori_loop(0, num_steps, body, state)

    return over_batch(loop)(request, noise, state)


@functools.partial(jax.jit, static_argnums=(0, 1))
def whole_rounds(
    program: Program, gamma: int, params: Pair, request: Request, state: DecodeState, num_steps: Array
) -> DecodeState:
    """Rounds of a row that is done: all the work of a round, and the row as it was."""
    one = functools.partial(decode_round, program, params, active_in(request), gamma)

    def loop(rows: Rows, request: Request, state: DecodeState) -> DecodeState:
        return jax.lax.fori_loop(0, num_steps, lambda _, state: rows(one)(request, state), state)

    done = dataclasses.replace(state, done=jnp.ones_like(state.done))
    return over_batch(loop)(request, done)


@functools.partial(jax.jit, static_argnums=(0, 1))
def judgements(
    program: Program,
    gamma: int,
    request: Request,
    proposal: Proposal,
    state: DecodeState,
    num_steps: Array,
) -> Array:
    """Noise, warp and verdict on logits of no model, [B, G+1, V]."""
    rule, active = cast(Rule, program.rule), active_in(request)

    def one(
        round: Array, request: Request, proposal: Proposal, length: Array, history: Any, logits: Array
    ) -> Array:
        _, noise = _noise(program, gamma, request, round, length)
        probs = warp_of(request, active, history, length)(logits, prefixes(proposal.tokens))
        verdict = rule.accept(noise, proposal, probs)
        return logits.at[0, 0].add((verdict.num_accepted + verdict.next_token).astype(jnp.float32))

    def loop(rows: Rows, request: Request, *row: Any) -> Array:
        *fixed, logits = row
        body = lambda round, logits: rows(functools.partial(one, round))(request, *fixed, logits)
        return jax.lax.fori_loop(0, num_steps, body, logits)

    shape = (state.length.shape[0], gamma + 1, program.target.vocab_size)
    logits = jax.random.normal(jax.random.key(0), shape)
    return over_batch(loop)(request, proposal, state.length, state.history, logits)


@functools.partial(jax.jit, static_argnums=(0, 1))
def noises(program: Program, gamma: int, request: Request, state: DecodeState, num_steps: Array) -> Array:
    """The noise of a round alone; every value is read once."""

    def one(round: Array, request: Request, length: Array, total: Array) -> Array:
        _, noise = _noise(program, gamma, request, round, length)
        return total + sum(jnp.sum(leaf) for leaf in jax.tree.leaves(noise))

    def loop(rows: Rows, request: Request, length: Array, total: Array) -> Array:
        body = lambda round, total: rows(functools.partial(one, round))(request, length, total)
        return jax.lax.fori_loop(0, num_steps, body, total)

    return over_batch(loop)(request, state.length, jnp.zeros(state.length.shape, jnp.float32))


@functools.partial(jax.jit, static_argnums=(0, 1))
def first_proposal(
    program: Program, gamma: int, params: Pair, request: Request, state: DecodeState
) -> tuple[Noise, Proposal]:
    """The draft noise of the first round and what is drafted with it, [B, ...]."""
    active = active_in(request)

    def one(request: Request, at: DecodeState) -> tuple[Noise, Proposal]:
        noise, _ = _noise(program, gamma, request, at.statistics.rounds, at.length)
        warp = warp_of(request, active, at.history, at.length)
        return noise, _propose(program, gamma, params, noise, warp, at)[0]

    return over_batch(lambda rows, request, state: rows(one)(request, state))(request, state)


def _noise(
    program: Program, gamma: int, request: Request, round: Array, length: Array
) -> tuple[Noise, Noise]:
    # One position further each round: the row stays where it is, and no noise is the last one's.
    return program.rule.noise(request.key, round, length + round, gamma, program.target.vocab_size)


def _propose(
    program: Program, gamma: int, params: Pair, noise: Noise, warp: Warp, at: DecodeState
) -> tuple[Proposal, Any]:
    rule, drafter = cast(Rule, program.rule), cast(Drafter, program.drafter)
    proposal, draft_state = drafter.propose(
        params, at.draft_state, at.tokens, at.length, gamma, jnp.int32(gamma), noise, rule.draw, warp
    )
    return dataclasses.replace(proposal, tokens=jnp.clip(proposal.tokens, 0)), draft_state


def _block(at: DecodeState, proposal: Proposal) -> Array:
    return jnp.concatenate([at.tokens[at.length - 1][None], proposal.tokens])
