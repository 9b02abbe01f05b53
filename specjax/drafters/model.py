"""An independent draft model: Leviathan et al. 2023 (2211.17192), M_q of Algorithm 1."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from specjax import cache as kv
from specjax import sampling
from specjax.drafters import draft_laws
from specjax.models.language_model import LanguageModel
from specjax.types import (
    PADDING,
    Array,
    Draw,
    Noise,
    Outcome,
    Params,
    Proposal,
    Warp,
    pytree,
)


@pytree
class ModelDraftState:
    """The draft model's own cache, and the length to go back to.

    Between rounds the tokens it has not ingested, length - cache.length, are
    1 or 2: after full acceptance neither the last draft nor the bonus token
    was ever fed. Rounds that another drafter drafted leave more.
    """

    cache: kv.KVCache  # or any cache with a ``length`` that rewinds by it
    before: Array  # [] int32: cache.length when the round began
    catch_up_steps: Array  # [] int32: taken so far; a frozen row takes them as well


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelDrafter:
    """Drafts with a smaller language model, one step a token.

    Lossless under every lossless rule: each token is drawn from the very
    array that is reported. ``params`` is (target params, draft params); with
    the target as ``model`` and its params twice this is the oracle, of which
    every draft is accepted.
    """

    model: LanguageModel
    # The target's vocabulary, where it differs from the draft model's: q has zeros for what only
    # the target knows, and an id the target does not know is never drafted.
    vocab_size: int | None = None
    # Ids at and past this one are padding of the draft model's output and never drafted.
    num_ids: int | None = None
    # None: the request's own warp. A number replaces its sampling parameters (not its processors);
    # 0.0 drafts the argmax, a deterministic proposal that reports no probabilities.
    temperature: float | None = None
    # Tokens fed at once while more than two are pending, as when another drafter drafted the rounds
    # before; 0: that never happens.
    catch_up: int = 0

    def __post_init__(self) -> None:
        if self.catch_up < 0:
            raise ValueError(f"ModelDrafter.catch_up must be at least 0, got {self.catch_up}")
        sizes = {"vocab_size": self.vocab_size, "num_ids": self.num_ids}
        draft_laws.check_settings("ModelDrafter", sizes, self.temperature)

    @property
    def _greedy(self) -> bool:
        return self.temperature is not None and self.temperature < sampling.GREEDY_BELOW

    def init(
        self,
        params: tuple[Params, Params],
        prompt: Array,
        length: Array,
        max_len: int,
        max_gamma: int,
        features: tuple[Array, ...],
    ) -> tuple[ModelDraftState, Array]:
        """Feeds ``prompt`` [P]; the last of its ``length`` tokens is left for the first round."""
        if self.catch_up > max_gamma + 4:
            raise ValueError(
                f"ModelDrafter.catch_up {self.catch_up} exceeds the slack of the buffers, {max_gamma + 4}"
            )
        output = self.model.apply(params[1], prompt, self.model.init_cache(max_len))
        cache = kv.rewind(output.cache, length - 1)
        state = ModelDraftState(cache=cache, before=length - 1, catch_up_steps=jnp.int32(0))
        return state, self._room(length)

    def propose(
        self,
        params: tuple[Params, Params],
        state: ModelDraftState,
        tokens: Array,
        length: Array,
        gamma: int,
        num_wanted: Array,
        noise: Noise,
        draw: Draw,
        warp: Warp,
    ) -> tuple[Proposal, ModelDraftState]:
        """G tokens after ``tokens[:length]``; one two-token step and G - 1 single ones.

        gamma 0 ingests the pending tokens all the same, so that the cache
        never falls more than two behind.
        """
        cache, steps = self._caught_up(params[1], state.cache, tokens, length)
        pending = jax.lax.dynamic_slice(tokens, (cache.length,), (2,))
        output = self.model.apply(params[1], pending, cache)
        logits = output.logits[length - cache.length - 1]
        # With one token pending the second row was fed a leftover: forget it.
        cache = kv.rewind(output.cache, length)

        def pick(logits: Array, drafted: Array, noise: Noise) -> tuple[Array, Array | None]:
            """(token [], q [V]) after the tokens ``drafted`` [G], from logits of the draft model."""
            logits = draft_laws.over_target_vocabulary(logits, self._vocab_size, self.num_ids)
            q = draft_laws.draft_law(logits[None], drafted[None], warp, self.temperature)[0]
            return (sampling.first_argmax(q), None) if self._greedy else (draw(noise, q), q)

        def step(carry: tuple[kv.KVCache, Array], position: tuple[Array, Noise]):
            (cache, drafted), (index, noise) = carry, position
            output = self.model.apply(params[1], drafted[index - 1][None], cache)
            token, q = pick(output.logits[0], drafted, noise)
            return (output.cache, drafted.at[index].set(token)), q

        drafts = jnp.full((gamma,), PADDING, jnp.int32)
        probs = None if self._greedy else jnp.zeros((0, self._vocab_size), jnp.float32)
        if gamma > 0:
            token, q = pick(logits, drafts, jax.tree.map(lambda x: x[0], noise))
            later = jnp.arange(1, gamma), jax.tree.map(lambda x: x[1:], noise)
            (cache, drafts), qs = jax.lax.scan(step, (cache, drafts.at[0].set(token)), later)
            probs = jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs]), q, qs)
        num_drafted = jnp.minimum(jnp.minimum(num_wanted, gamma), self._room(length))
        if probs is not None:
            # Where all that the draft model knows is banned it has no law (q is NaN), and nothing was drawn.
            # Asked of the law, not of the token: a length that hangs on what was drawn is not lossless.
            has_law = probs.sum(axis=1) > 0
            num_drafted = jnp.minimum(num_drafted, jnp.cumprod(has_law).sum(dtype=jnp.int32))
        proposal = Proposal(tokens=drafts, probs=probs, num_drafted=num_drafted)
        return proposal, ModelDraftState(
            cache=cache, before=state.cache.length, catch_up_steps=state.catch_up_steps + steps
        )

    def commit(
        self, params: tuple[Params, Params], state: ModelDraftState, tokens: Array, outcome: Outcome
    ) -> tuple[ModelDraftState, Array]:
        """Forgets the rejected tail by its length alone; a frozen row forgets the whole round."""
        length = outcome.old_length + outcome.num_emitted
        kept = jnp.minimum(state.cache.length, length - 1)
        ingested = jnp.where(outcome.num_emitted > 0, kept, state.before)
        state = dataclasses.replace(state, cache=kv.rewind(state.cache, ingested), before=ingested)
        return state, self._room(length)

    def as_if_fed(self, state: ModelDraftState, length: Array) -> ModelDraftState:
        """``state`` with ``length`` tokens in its cache, whatever the slots hold: for measuring steps."""
        return dataclasses.replace(state, cache=kv.rewind(state.cache, length), before=length)

    def _caught_up(self, params: Params, cache: Any, tokens: Array, length: Array) -> tuple[Any, Array]:
        """(``cache`` with all but the last one or two of ``tokens[:length]`` fed, steps [] that took)."""
        if not self.catch_up:
            return cache, jnp.int32(0)

        def feed(carry: tuple[Any, Array]) -> tuple[Any, Array]:
            cache, steps = carry
            chunk = jax.lax.dynamic_slice(tokens, (cache.length,), (self.catch_up,))
            fed = self.model.apply(params, chunk, cache).cache
            return kv.rewind(fed, jnp.minimum(cache.length + self.catch_up, length - 1)), steps + 1

        behind = lambda carry: length - carry[0].length > 2
        return jax.lax.while_loop(behind, feed, (cache, jnp.int32(0)))

    @property
    def _vocab_size(self) -> int:
        return self.vocab_size or self.model.vocab_size

    def _room(self, length: Array) -> Array:
        """[] int32: drafts that still fit into the draft model's context."""
        return jnp.maximum(self.model.context - length, 0).astype(jnp.int32)
