"""Rounds until every row is done: on the device in one loop, or streamed from Python.

    state = generate(program, params, prompts, request)
    state.tokens[b, : state.length[b]]        # prompt and output of row b

``generate`` is ``prefill`` and then ``decode``, a batch-level while_loop over
the vmapped round; ``stream`` drives the same round from Python and gives the
same tokens. Both are lossless if the program's rule is. Params placed on a mesh
(:mod:`specjax.sharding`) carry the batch with them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
import functools

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sharding
from specjax.decoding.checks import check_batch
from specjax.decoding.prefill import prefill
from specjax.decoding.program import Program
from specjax.decoding.round import decode_round
from specjax.decoding.rows import Rows, over_batch
from specjax.decoding.tree_round import decode_tree_round
from specjax.decoding.warping import active_in
from specjax.types import Array, DecodeState, Params, Request


def generate(
    program: Program, params: tuple[Params, Params], prompts: Array, request: Request
) -> DecodeState:
    """Decodes a batch to its end.

    Args:
      program: what to run; static.
      params: (target params, draft params), on one device or on one mesh.
      prompts: [B, P] int32, right-padded; row b holds ``request.prompt_length[b]`` tokens.
      request: from :func:`specjax.request.make_request`.

    Returns:
      The final state, arrays [B, ...]. Tokens past a row's length are 0.

    Raises:
      ValueError: an empty prompt, one beyond the context, or a buffer too short.
    """
    check_batch(program, prompts, request)
    batch = prompts.shape[0]
    prompts, request = sharding.place_batch(prompts, request, sharding.mesh_of(params))
    state = decode_donated(program, params, request, prefill(program, params, prompts, request))
    return sharding.drop_padding(state, batch)


def stream(
    program: Program, params: tuple[Params, Params], prompts: Array, request: Request
) -> Generator[list[np.ndarray], None, DecodeState]:
    """Yields after each round the new token ids of every row (empty once it is done).

    The generator's return value is the final state.
    """
    check_batch(program, prompts, request)
    batch = prompts.shape[0]
    prompts, request = sharding.place_batch(prompts, request, sharding.mesh_of(params))
    state = prefill(program, params, prompts, request)
    lengths = np.asarray(state.length)
    while not np.all(state.done):
        wanted = np.max(np.where(state.done, 0, state.want))
        gamma = next((gamma for gamma in program.gammas if gamma >= wanted), program.gammas[-1])
        state = _round_donated(program, gamma, params, request, state)
        tokens, old, lengths = np.asarray(state.tokens), lengths, np.asarray(state.length)
        yield [row[start:end] for row, start, end in zip(tokens, old, lengths, strict=True)][:batch]
    return sharding.drop_padding(state, batch)


def _round(
    program: Program, gamma: int, params: tuple[Params, Params], request: Request, state: DecodeState
) -> DecodeState:
    one_row = functools.partial(_round_of(program), program, params, active_in(request), gamma)
    return over_batch(lambda rows, request, state: rows(one_row)(request, state))(request, state)


def _round_of(program: Program) -> Callable[..., DecodeState]:
    return decode_tree_round if program.is_tree else decode_round


def _decode(
    program: Program, params: tuple[Params, Params], request: Request, state: DecodeState
) -> DecodeState:
    return over_batch(functools.partial(_loop, program, params))(request, state)


def _loop(
    program: Program, params: tuple[Params, Params], rows: Rows, request: Request, state: DecodeState
) -> DecodeState:
    active = active_in(request)
    gammas = jnp.asarray(program.gammas)
    live = lambda state: jnp.any(~state.done)
    wanted = lambda state: jnp.max(jnp.where(state.done, 0, state.want))
    # The last one takes all the rest. (A search would be a loop of its own in every predicate.)
    bucket = lambda state: jnp.sum(gammas[:-1] < wanted(state))

    def one_pass(state: DecodeState) -> DecodeState:
        # One loop per bucket: a switch over the state would copy every cache twice a round.
        for index, gamma in enumerate(program.gammas):
            one_row = functools.partial(_round_of(program), program, params, active, gamma)
            runs_here = lambda index, state: live(state) & (bucket(state) == index)
            state = jax.lax.while_loop(
                functools.partial(runs_here, index), functools.partial(rows(one_row), request), state
            )
        return state

    return jax.lax.while_loop(live, one_pass, state)


# Compiled once per Program and batch; temperatures, seeds, stops and prompts are arrays.
decode = functools.partial(jax.jit, static_argnums=0)(_decode)
decode.__doc__ = """``decode(program, params, request, state)``: runs every row to its end, on the device."""
# For a state nobody else holds: its caches are updated in place from the start.
decode_donated = functools.partial(jax.jit, static_argnums=0, donate_argnums=3)(_decode)
_round_donated = functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=4)(_round)
