"""The state before the first round: prompts fed, nothing emitted."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from specjax import cache as kv
from specjax import processors, sharding
from specjax.decoding.checks import check_batch
from specjax.decoding.program import Program
from specjax.decoding.rows import over_batch
from specjax.models.language_model import LanguageModel
from specjax.types import (
    PADDING,
    PROMPT,
    Array,
    DecodeState,
    Drafter,
    Logprobs,
    Params,
    Request,
    Statistics,
    Trace,
)


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
    def row(prompt: Array, request: Request) -> DecodeState:
        length = request.prompt_length
        prompt = jnp.where(jnp.arange(prompt.shape[0]) < length, prompt, 0)
        output = target.apply(params[0], prompt, target.init_cache(max_len))
        draft_state, available = (), jnp.int32(0)
        if drafter is not None:
            draft_state, available = drafter.init(params, prompt, length, max_len, max_gamma, output.features)
        return DecodeState(
            tokens=jnp.zeros((max_len,), jnp.int32).at[: prompt.shape[0]].set(prompt),
            length=length,
            done=(request.max_new_tokens < 1) | (length >= target.context),
            target_cache=kv.rewind(output.cache, length - 1),
            draft_state=draft_state,
            want=jnp.minimum(request.gamma, available),
            statistics=_no_statistics(num_buckets, max_gamma),
            trace=_no_trace(max_len, logprobs),
            history=None
            if request.processors is None
            else processors.start_history(prompt, length, target.vocab_size),
        )

    return over_batch(lambda rows, prompts, request: rows(row)(prompts, request))(prompts, request)


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
