"""A chain of the likeliest token of each head: what Medusa and Blockwise have in common."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specjax.drafters import last_feature
from specjax.models.heads.heads import HeadParams, Heads
from specjax.types import Array, Draw, Noise, Outcome, Params, Proposal, Warp


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadChain:
    """Drafts from one hidden state, the newest; its state is that [D] vector."""

    heads: Heads

    def init(
        self,
        params: tuple[Params, Params],
        prompt: Array,
        length: Array,
        max_len: int,
        max_gamma: int,
        features: tuple[Array, ...],
    ) -> tuple[Array, Array]:
        feature, known = last_feature.of_prompt(features, length)
        return feature, known * jnp.int32(self.heads.num_heads)

    def propose(
        self,
        params: tuple[Params, HeadParams],
        state: Array,
        tokens: Array,
        length: Array,
        gamma: int,
        num_wanted: Array,
        noise: Noise,
        draw: Draw,
        warp: Warp,
    ) -> tuple[Proposal, Array]:
        """At most min(G, H) tokens from one pass of the heads; no noise is used."""
        count = min(gamma, self.heads.num_heads)
        guesses = self.heads.likeliest(params[1], state, (1,) * count)
        drafted = jnp.concatenate([*guesses, jnp.zeros((gamma - count,), jnp.int32)])
        return Proposal(tokens=drafted, probs=None, num_drafted=jnp.minimum(num_wanted, count)), state

    def commit(
        self, params: tuple[Params, Params], state: Array, tokens: Array, outcome: Outcome
    ) -> tuple[Array, Array]:
        return last_feature.after_round(state, outcome), jnp.int32(self.heads.num_heads)
