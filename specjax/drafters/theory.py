"""Drafters at the corners of the theory: for tests, and for studies of capacity.

All are lossless under every lossless rule, whatever they propose; what they
fix is how much of it is accepted. ``Scripted`` and ``Simulated`` know the
true continuation of each prompt, from an earlier decode. The oracle is a
``ModelDrafter`` over the target itself; with :class:`Opposite` it becomes the
adversary, whose every draft is the target's least likely token.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specjax.models.language_model import LanguageModel
from specjax.types import Array, Draw, ModelOutput, Noise, Outcome, Params, Proposal, Warp, pytree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Uniform:
    """Draws every draft uniformly from the vocabulary, whatever the request's sampling parameters."""

    vocab_size: int

    def init(
        self,
        params: tuple[Params, Params],
        prompt: Array,
        length: Array,
        max_len: int,
        max_gamma: int,
        features: tuple[Array, ...],
    ) -> tuple[Array, Array]:
        return jnp.int32(max_gamma), jnp.int32(max_gamma)

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
        probs = jnp.full((gamma, self.vocab_size), 1 / self.vocab_size, jnp.float32)
        drafts = _draw_each(draw, noise, probs)
        return Proposal(tokens=drafts, probs=probs, num_drafted=jnp.minimum(num_wanted, gamma)), state

    def commit(
        self, params: tuple[Params, Params], state: Array, tokens: Array, outcome: Outcome
    ) -> tuple[Array, Array]:
        return state, state


@dataclasses.dataclass(frozen=True, kw_only=True)
class Opposite:
    """A language model with the logits of another, negated: its argmax is that one's least likely token.

    The adversary is ``ModelDrafter(model=Opposite(model=target), temperature=0.0)``
    with the target's params as draft params.
    """

    model: LanguageModel

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def context(self) -> int:
        return self.model.context

    def init_cache(self, max_len: int):
        return self.model.init_cache(max_len)

    def apply(
        self, params: Params, tokens: Array, cache, positions: Array | None = None, mask: Array | None = None
    ) -> ModelOutput:
        output = self.model.apply(params, tokens, cache, positions, mask)
        return dataclasses.replace(output, logits=-output.logits)


@pytree
class Truth:
    """What the target would say: whole sequences, each known by the prompt it begins with.

    ``tokens`` and ``length`` are those of a finished ``DecodeState``. Prompts
    must differ from one another.

    A sampled one needs seeds other than the decode's, but under the coupled
    rule: plain decoding has used the very numbers that a round of the same
    seed draws its residual from, and drafts that know them are not lossless.
    """

    tokens: Array  # [N, S] int32
    length: Array  # [N] int32

    def row_of(self, prompt: Array, length: Array) -> Array:
        """[] int32: the row that begins with ``prompt[:length]``; ``prompt`` [P], P <= S."""
        given = jnp.arange(prompt.shape[0]) < length
        return jnp.argmax(jnp.all((self.tokens[:, : prompt.shape[0]] == prompt) | ~given, axis=1))

    def following(self, row: Array, length: Array, gamma: int) -> Array:
        """[G] int32: the tokens after the first ``length`` of a row; arbitrary past its end."""
        slots = jnp.minimum(length + jnp.arange(gamma), self.tokens.shape[1] - 1)
        return self.tokens[row, slots]

    def remaining(self, row: Array, length: Array) -> Array:
        """[] int32: how many tokens of a row lie past the first ``length``."""
        return jnp.maximum(self.length[row] - length, 0)


@pytree
class ScriptedParams:
    """Draft params of :class:`Scripted`."""

    truth: Truth
    script: Array  # [R] int32: how many drafts are right in round 0, 1, ..., and again from 0


@pytree
class ScriptedState:
    row: Array  # [] int32: this prompt's row of the truth
    round: Array  # [] int32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scripted:
    """Is right for a scripted number of tokens each round, then wrong.

    At temperature 0 with the greedy continuation as truth, exactly
    min(script, num_drafted) drafts are accepted.
    """

    vocab_size: int

    def init(
        self,
        params: tuple[Params, ScriptedParams],
        prompt: Array,
        length: Array,
        max_len: int,
        max_gamma: int,
        features: tuple[Array, ...],
    ) -> tuple[ScriptedState, Array]:
        truth = params[1].truth
        row = truth.row_of(prompt, length)
        return ScriptedState(row=row, round=jnp.int32(0)), truth.remaining(row, length)

    def propose(
        self,
        params: tuple[Params, ScriptedParams],
        state: ScriptedState,
        tokens: Array,
        length: Array,
        gamma: int,
        num_wanted: Array,
        noise: Noise,
        draw: Draw,
        warp: Warp,
    ) -> tuple[Proposal, ScriptedState]:
        truth, script = params[1].truth, params[1].script
        right = truth.following(state.row, length, gamma)
        num_right = script[state.round % script.shape[0]]
        drafts = jnp.where(jnp.arange(gamma) < num_right, right, (right + 1) % self.vocab_size)
        available = truth.remaining(state.row, length)
        num_drafted = jnp.minimum(jnp.minimum(num_wanted, gamma), available)
        return Proposal(tokens=drafts, probs=None, num_drafted=num_drafted), state

    def commit(
        self, params: tuple[Params, ScriptedParams], state: ScriptedState, tokens: Array, outcome: Outcome
    ) -> tuple[ScriptedState, Array]:
        live = outcome.num_emitted > 0
        length = outcome.old_length + outcome.num_emitted
        state = dataclasses.replace(state, round=state.round + live.astype(jnp.int32))
        return state, params[1].truth.remaining(state.row, length)


@pytree
class SimulatedParams:
    """Draft params of :class:`Simulated`."""

    truth: Truth
    alpha: Array  # [] float32 in [0, 1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Simulated:
    """Drafts the true token with probability alpha, else a wrong one: acceptance made to measure.

    q has two entries, alpha at the true token and 1 - alpha at its successor
    id, and is reported, so the output law stays the target's. At temperature 0
    with the greedy continuation as truth, each draft is accepted with
    probability alpha, independently: Leviathan et al.'s i.i.d. assumption
    holds exactly. Against a sampled target beta is
    min(p(true), alpha) + min(p(wrong), 1 - alpha).
    """

    vocab_size: int

    def init(
        self,
        params: tuple[Params, SimulatedParams],
        prompt: Array,
        length: Array,
        max_len: int,
        max_gamma: int,
        features: tuple[Array, ...],
    ) -> tuple[Array, Array]:
        """The state is this prompt's row of the truth."""
        truth = params[1].truth
        row = truth.row_of(prompt, length)
        return row, truth.remaining(row, length)

    def propose(
        self,
        params: tuple[Params, SimulatedParams],
        state: Array,
        tokens: Array,
        length: Array,
        gamma: int,
        num_wanted: Array,
        noise: Noise,
        draw: Draw,
        warp: Warp,
    ) -> tuple[Proposal, Array]:
        truth, alpha = params[1].truth, params[1].alpha
        right = truth.following(state, length, gamma)
        one_hot = lambda ids: jax.nn.one_hot(ids % self.vocab_size, self.vocab_size, dtype=jnp.float32)
        probs = alpha * one_hot(right) + (1 - alpha) * one_hot(right + 1)
        drafts = _draw_each(draw, noise, probs)
        available = truth.remaining(state, length)
        num_drafted = jnp.minimum(jnp.minimum(num_wanted, gamma), available)
        return Proposal(tokens=drafts, probs=probs, num_drafted=num_drafted), state

    def commit(
        self, params: tuple[Params, SimulatedParams], state: Array, tokens: Array, outcome: Outcome
    ) -> tuple[Array, Array]:
        return state, params[1].truth.remaining(state, outcome.old_length + outcome.num_emitted)


def _draw_each(draw: Draw, noise: Noise, probs: Array) -> Array:
    """[G] int32: one token from each row of ``probs`` [G, V]."""
    return jax.vmap(draw)(noise, probs) if probs.shape[0] else jnp.zeros((0,), jnp.int32)
