"""Drafts nothing and keeps what the target's taps show of every emitted token: plain decoding, recorded."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from specjax.types import Array, Draw, Noise, Outcome, Params, Proposal, Warp


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recorder:
    """For a program with ``gammas=(0,)`` and a target with one tap; lossless, since it drafts nothing.

    Its state is [S, D] in ``dtype``: row i is the feature from which the law
    of token i was computed, defined for emitted tokens.
    """

    width: int  # D of the tap
    dtype: str = "bfloat16"

    def init(
        self,
        params: tuple[Params, Params],
        prompt: Array,
        length: Array,
        max_len: int,
        max_gamma: int,
        features: tuple[Array, ...],
    ) -> tuple[Array, Array]:
        return jnp.zeros((max_len, self.width), self.dtype), jnp.int32(0)

    def propose(
        self,
        params: tuple[Params, Params],
        state: Array,
        tokens: Array,
        length: Array,
        gamma: int,
        num_wanted: Array,
        noise: Noise,
        draw: Draw,
        warp: Warp,
    ) -> tuple[Proposal, Array]:
        nothing = Proposal(tokens=jnp.zeros((gamma,), jnp.int32), probs=None, num_drafted=jnp.int32(0))
        return nothing, state

    def commit(
        self, params: tuple[Params, Params], state: Array, tokens: Array, outcome: Outcome
    ) -> tuple[Any, Array]:
        # A frozen row writes into its first free slot, which nobody reads.
        (rows,) = outcome.features
        start = (outcome.old_length, jnp.int32(0))
        return jax.lax.dynamic_update_slice(state, rows.astype(self.dtype), start), jnp.int32(0)
