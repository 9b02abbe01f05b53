"""The state before the first round: prompts fed, nothing emitted."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from specjax import cache as kv
from specjax import processors, sharding
from specjax.decoding.checks import check_batch
from specjax.decoding.program import Program
from specjax.decoding.rows import Rows, over_batch
from specjax.models.language_model import LanguageModel
from specjax.types import (
    PADDING,
    PROMPT,
    Array,
    DecodeState,
    Drafter,
    Logprobs,
    ModelOutput,
    Params,
    Request,
    Statistics,
    Trace,
)

CHUNK = 128  # tokens of a prompt that one pass of the target reads


def prefill(program: Program, params: tuple[Params, Params], prompts: Array, request: Request) -> DecodeState:
    """Feeds ``prompts`` [B, P]; returns the batch's state, arrays [B, ...].

    The last prompt token stays pending, as after any round, so the first round
    is like all others and the first token is judged like all others. Compiled
    once per P and batch for all gammas and rules of a pair. On a mesh the batch
    must divide over "data": :func:`specjax.sharding.place_batch` pads it.
    """
    check_batch(program, prompts, request)
    mesh = sharding.mesh_of(params)
    sharding.check_divides(prompts.shape[0], mesh)
    prompts, request = sharding.place_batch(prompts, request, mesh)
    state = _prefill(
        program.target,
        program.drafter,
        program.max_len,
        program.max_gamma,
        len(program.gammas),
        program.logprobs,
        params,
        jnp.asarray(prompts, jnp.int32),
        request,
    )
    return sharding.split_rows(state, mesh)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4, 5))
def _prefill(
    target: LanguageModel,
    drafter: Drafter | None,
    max_len: int,
    max_gamma: int,
    num_buckets: int,
    logprobs: bool,
    params: tuple[Params, Params],
    prompts: Array,
    request: Request,
) -> DecodeState:
    def row(num_chunks: Array, prompt: Array, request: Request) -> DecodeState:
        length = request.prompt_length
        prompt = jnp.where(jnp.arange(prompt.shape[0]) < length, prompt, 0)
        features, cache = _feed(target, params[0], prompt, max_len, num_chunks)
        draft_state, available = (), jnp.int32(0)
        if drafter is not None:
            draft_state, available = drafter.init(params, prompt, length, max_len, max_gamma, features)
        return DecodeState(
            tokens=jnp.zeros((max_len,), jnp.int32).at[: prompt.shape[0]].set(prompt),
            length=length,
            done=(request.max_new_tokens < 1) | (length >= target.context),
            target_cache=kv.rewind(cache, length - 1),
            draft_state=draft_state,
            want=jnp.minimum(request.gamma, available),
            statistics=_no_statistics(num_buckets, max_gamma),
            trace=_no_trace(max_len, logprobs),
            history=None
            if request.processors is None
            else processors.start_history(prompt, length, target.vocab_size),
        )

    def batch(rows: Rows, prompts: Array, request: Request) -> DecodeState:
        num_chunks = -(-jnp.max(request.prompt_length) // CHUNK)
        return rows(functools.partial(row, num_chunks))(prompts, request)

    return over_batch(batch)(prompts, request)


def _feed(
    target: LanguageModel, params: Params, prompt: Array, max_len: int, num_chunks: Array
) -> tuple[tuple[Array, ...], Any]:
    """The features [P, D] of each tap and a cache of the first ``num_chunks`` chunks of ``prompt`` [P].

    Of the padding of a batch's longest prompt less than a chunk is computed.
    """
    width, cache = prompt.shape[0], target.init_cache(max_len)
    if width <= CHUNK:
        output = target.apply(params, prompt, cache)
        return output.features, output.cache

    def read(chunk: Array, cache: Any) -> tuple[Array, ModelOutput]:
        # The last one begins earlier where the width is no multiple: what was written is written again.
        start = jnp.minimum(chunk * CHUNK, width - CHUNK)
        tokens = jax.lax.dynamic_slice_in_dim(prompt, start, CHUNK)
        return start, target.apply(params, tokens, kv.rewind(cache, start))

    def step(chunk: Array, carry: tuple[tuple[Array, ...], Any]) -> tuple[tuple[Array, ...], Any]:
        features, cache = carry
        start, output = read(chunk, cache)
        put = lambda rows, new: jax.lax.dynamic_update_slice_in_dim(rows, new, start, 0)
        return tuple(map(put, features, output.features)), output.cache

    shapes = jax.eval_shape(lambda cache: read(jnp.int32(0), cache)[1].features, cache)
    features = tuple(jnp.zeros((width, *each.shape[1:]), each.dtype) for each in shapes)
    return jax.lax.fori_loop(0, num_chunks, step, (features, cache))


def _no_statistics(num_buckets: int, max_gamma: int) -> Statistics:
    zeros = lambda *shape: jnp.zeros(shape, jnp.int32)
    return Statistics(
        rounds=zeros(),
        rounds_by_bucket=zeros(num_buckets),
        rounds_by_drafted=zeros(max_gamma + 1),
        tested=zeros(max_gamma),
        accepted=zeros(max_gamma),
        accepted_nodes=zeros(max_gamma + 1),
        overlap=jnp.zeros((max_gamma,), jnp.float32),
        cut=zeros(),
    )


def _no_trace(max_len: int, logprobs: bool) -> Trace:
    unknown = jnp.full((max_len,), jnp.nan, jnp.float32)
    return Trace(
        origin=jnp.full((max_len,), PROMPT, jnp.int8),
        rejected=jnp.full((max_len,), PADDING, jnp.int32),
        round=jnp.full((max_len,), PADDING, jnp.int32),
        logprobs=Logprobs(warped=unknown, raw=unknown) if logprobs else None,
    )
