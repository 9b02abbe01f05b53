"""The end of a round: cut at a stop, write, roll back what was rejected, count."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specjax import cache as kv
from specjax import processors
from specjax.decoding.program import Program
from specjax.types import (
    ACCEPTED,
    BONUS,
    PADDING,
    RESIDUAL,
    Array,
    DecodeState,
    DraftState,
    Logprobs,
    ModelOutput,
    Outcome,
    Params,
    Request,
    Statistics,
    Trace,
    pytree,
)


@pytree
class Judged:
    """What a round drafted after the verdict, as one path: the chain itself, or the path through a tree.

    G is the path's greatest length: gamma of a chain, the depth of a tree.
    """

    tokens: Array  # [G] int32: the path; valid up to num_accepted
    num_accepted: Array  # [] int32
    next_token: Array  # [] int32
    num_drafted: Array  # [] int32: candidates that were scored
    num_tested: Array  # [] int32: positions at which a candidate was judged, num_accepted or one more
    rejected: Array  # [] int32: the (first) candidate rejected at the next token's place, else PADDING
    on_path: Array  # [gamma + 1] bool: the accepted nodes, the pending token first
    overlap: Array  # [G] float32: see chain.overlap and tree_nodes.covered
    target_probs: Array  # [G+1, V]: p before each emitted token
    output: ModelOutput  # of the path: logits [G+1, V], features [G+1, D], the cache it ends


def commit(
    program: Program,
    params: tuple[Params, Params],
    bucket: int,
    request: Request,
    state: DecodeState,
    draft_state: DraftState,
    judged: Judged,
) -> DecodeState:
    """The state after a round. A finished row comes back unchanged but for dead cache slots."""
    emitted = jnp.append(judged.tokens, 0).at[judged.num_accepted].set(judged.next_token)
    num_emitted, stopped = _cut(program, request, state, emitted, judged.num_accepted)
    length = state.length + num_emitted
    tokens = _write(state.tokens, emitted, state.length, num_emitted)

    draft_state, available = _commit_draft(
        program,
        params,
        draft_state,
        tokens,
        Outcome(
            old_length=state.length,
            num_emitted=num_emitted,
            emitted=emitted,
            features=judged.output.features,
        ),
    )
    return DecodeState(
        tokens=tokens,
        length=length,
        done=state.done | stopped,
        target_cache=kv.rewind(judged.output.cache, length - 1),
        draft_state=draft_state,
        want=jnp.minimum(request.gamma, available),
        statistics=_count(state.statistics, ~state.done, bucket, num_emitted, judged),
        trace=_trace(state, emitted, num_emitted, judged),
        history=None
        if state.history is None
        else processors.extend_history(state.history, emitted, num_emitted),
    )


def _cut(
    program: Program, request: Request, state: DecodeState, emitted: Array, num_accepted: Array
) -> tuple[Array, Array]:
    """(num_emitted, stopped): ends at the first stop token or the limit; nothing is drawn anew."""
    index = jnp.arange(emitted.shape[0])
    is_stop = (emitted[:, None] == request.stop_tokens[None, :]).any(axis=1)
    is_stop &= index <= num_accepted
    upto_stop = jnp.where(is_stop.any(), jnp.argmax(is_stop) + 1, num_accepted + 1)
    # Differences alone: prompt_length + max_new_tokens may exceed int32.
    new = state.length - request.prompt_length
    room = jnp.minimum(request.max_new_tokens - new, program.capacity - state.length)
    num_emitted = jnp.where(state.done, 0, jnp.minimum(upto_stop, room)).astype(jnp.int32)
    stopped = (num_emitted >= room) | (is_stop.any() & (num_emitted == upto_stop))
    return num_emitted, stopped


def _write(buffer: Array, new: Array, start: Array, count: Array) -> Array:
    """The first ``count`` of ``new`` into ``buffer`` [S] at ``start``; other slots keep what they hold."""
    old = jax.lax.dynamic_slice(buffer, (start,), new.shape)
    new = jnp.where(jnp.arange(new.shape[0]) < count, new.astype(buffer.dtype), old)
    return jax.lax.dynamic_update_slice(buffer, new, (start,))


def _commit_draft(program, params, draft_state, tokens, outcome) -> tuple[DraftState, Array]:
    if program.drafter is None:
        return draft_state, jnp.int32(0)
    return program.drafter.commit(params, draft_state, tokens, outcome)


def _count(old: Statistics, live: Array, bucket: int, num_emitted: Array, judged: Judged) -> Statistics:
    """Counts a live row's round; the verdict is counted whole even when a stop cut its tokens."""
    length, num_nodes = judged.tokens.shape[0], judged.on_path.shape[0]
    one = live.astype(jnp.int32)
    tested = jnp.arange(length) < judged.num_tested
    accepted = jnp.arange(length) < judged.num_accepted
    return dataclasses.replace(
        old,
        rounds=old.rounds + one,
        rounds_by_bucket=old.rounds_by_bucket.at[bucket].add(one),
        rounds_by_drafted=old.rounds_by_drafted.at[judged.num_drafted].add(one),
        tested=old.tested.at[:length].add(tested * one),
        accepted=old.accepted.at[:length].add(accepted * one),
        accepted_nodes=old.accepted_nodes.at[:num_nodes].add(judged.on_path * one),
        overlap=old.overlap.at[:length].add(jnp.where(tested & live, judged.overlap, 0.0)),
        cut=old.cut + one * (judged.num_accepted + 1 - num_emitted),
    )


def _trace(state: DecodeState, emitted: Array, num_emitted: Array, judged: Judged) -> Trace:
    index, n = jnp.arange(emitted.shape[0]), judged.num_accepted
    origin = jnp.where(index < n, ACCEPTED, jnp.where(judged.num_tested > n, RESIDUAL, BONUS))
    rejected = jnp.where(index == n, judged.rejected, PADDING)
    rounds = jnp.broadcast_to(state.statistics.rounds, index.shape)
    write = lambda buffer, new: _write(buffer, new, state.length, num_emitted)
    return Trace(
        origin=write(state.trace.origin, origin),
        rejected=write(state.trace.rejected, rejected),
        round=write(state.trace.round, rounds),
        logprobs=None
        if state.trace.logprobs is None
        else jax.tree.map(
            write, state.trace.logprobs, _logprobs(emitted, judged.output.logits, judged.target_probs)
        ),
    )


def _logprobs(emitted: Array, logits: Array, target_probs: Array) -> Logprobs:
    """[G+1] each: row i of p is the law of the i-th emitted token, whether draft, residual or bonus."""
    of_emitted = lambda rows: jnp.take_along_axis(rows, emitted[:, None], axis=1, mode="clip")[:, 0]
    raw = of_emitted(logits) - jax.nn.logsumexp(logits, axis=1)
    return Logprobs(warped=jnp.log(of_emitted(target_probs)), raw=raw)
