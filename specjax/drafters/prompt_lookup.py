"""Prompt lookup: what followed the last n tokens the last time they occurred.

Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding. No model and
no parameters; strong where the output repeats its input.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specjax.types import Array, Draw, Noise, Outcome, Params, Proposal, Warp, pytree


@pytree
class Match:
    """Where the copy starts and how many tokens there are to copy (0: no match)."""

    start: Array  # [] int32
    available: Array  # [] int32


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptLookup:
    """Copies the tokens after the longest, then most recent, earlier occurrence of the last tokens.

    Deterministic (q is one-hot), so lossless under every lossless rule.
    Drafts nothing where there is no match of at least ``min_ngram`` tokens;
    the buckets (0, gamma) then make such a round a plain step. The match for
    the next round is found when a round is committed, so that the loop knows
    how long a draft it can get.
    """

    max_ngram: int = 3
    min_ngram: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.min_ngram <= self.max_ngram:
            raise ValueError(
                "PromptLookup needs 1 <= min_ngram <= max_ngram, "
                f"got min_ngram={self.min_ngram!r}, max_ngram={self.max_ngram!r}"
            )

    def init(
        self,
        params: tuple[Params, Params],
        prompt: Array,
        length: Array,
        max_len: int,
        max_gamma: int,
        features: tuple[Array, ...],
    ) -> tuple[Match, Array]:
        match = find_match(prompt, length, self.max_ngram, self.min_ngram)
        return match, match.available

    def propose(
        self,
        params: tuple[Params, Params],
        state: Match,
        tokens: Array,
        length: Array,
        gamma: int,
        num_wanted: Array,
        noise: Noise,
        draw: Draw,
        warp: Warp,
    ) -> tuple[Proposal, Match]:
        """At most G tokens copied from ``tokens``; no model is run, no noise is used."""
        source = jnp.minimum(state.start + jnp.arange(gamma), tokens.shape[0] - 1)
        num_drafted = jnp.minimum(jnp.minimum(num_wanted, gamma), state.available)
        return Proposal(tokens=tokens[source], probs=None, num_drafted=num_drafted), state

    def commit(
        self, params: tuple[Params, Params], state: Match, tokens: Array, outcome: Outcome
    ) -> tuple[Match, Array]:
        """Searches prompt and output anew; a frozen row finds what it had found before."""
        length = outcome.old_length + outcome.num_emitted
        match = find_match(tokens, length, self.max_ngram, self.min_ngram)
        return match, match.available


def find_match(tokens: Array, length: Array, max_ngram: int, min_ngram: int) -> Match:
    """The longest, then most recent, earlier occurrence of the last tokens of ``tokens[:length]``.

    ``tokens`` [S]. Compares every end of a possible occurrence at once, one
    vector operation over S for each token of the n-gram. Slots at and past
    ``length`` are never read.

    >>> find_match(jnp.array([7, 8, 9, 5, 7, 8, 0, 0]), 6, max_ngram=3, min_ngram=1)
    Match(start=Array(2, dtype=int32), available=Array(4, dtype=int32))
    """
    size = tokens.shape[0]
    ends = jnp.arange(size, dtype=jnp.int32)
    length = jnp.asarray(length, jnp.int32)

    # matched[e]: how many of the tokens just before slot e equal the last ones before ``length``.
    running = (ends >= 1) & (ends < length)
    matched = jnp.zeros((size,), jnp.int32)
    for back in range(1, max_ngram + 1):
        wanted = tokens[jnp.maximum(length - back, 0)]
        running &= (jnp.roll(tokens, back) == wanted) & (ends >= back)
        matched += running
    best = jnp.max(matched)
    start = jnp.max(jnp.where(matched == best, ends, 0))
    found = (best >= min_ngram) & (start >= 1)
    return Match(start=jnp.where(found, start, 0), available=jnp.where(found, length - start, 0))
