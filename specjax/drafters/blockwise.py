"""Blockwise Parallel Decoding (Stern, Shazeer & Uszkoreit 2018, arXiv 1811.03115)."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specjax.drafters import last_feature
from specjax.models.heads.heads import HeadParams, Heads
from specjax.types import Array, Draw, Noise, Outcome, Params, Proposal, Warp


@dataclasses.dataclass(frozen=True, kw_only=True)
class Blockwise:
    """The likeliest token of heads p_2..p_k, in the combined form: one forward pass a round (section 4).

    The pass that scores a block also holds the hidden state from which the
    next block is guessed. p_1 is the target: the token that a round adds
    after the accepted ones is its guess, already verified, so k heads draft
    k - 1 tokens. Deterministic (q is one-hot), so lossless under every
    lossless rule; at temperature 0 that is the paper's exact criterion, whose
    accepted block k-hat is the round's accepted tokens and the one after.

    Needs a target with ``taps=("final",)``; drafts nothing after a prompt of
    one token, of which no feature is known.
    """

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
        """At most min(G, k - 1) tokens from one pass of the heads; no noise is used."""
        count = min(gamma, self.heads.num_heads)
        guesses = self.heads.likeliest(params[1], state, (1,) * count)
        drafted = jnp.concatenate([*guesses, jnp.zeros((gamma - count,), jnp.int32)])
        return Proposal(tokens=drafted, probs=None, num_drafted=jnp.minimum(num_wanted, count)), state

    def commit(
        self, params: tuple[Params, Params], state: Array, tokens: Array, outcome: Outcome
    ) -> tuple[Array, Array]:
        return last_feature.after_round(state, outcome), jnp.int32(self.heads.num_heads)
