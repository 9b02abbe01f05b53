"""Two drafters that take turns: long copies where the text repeats itself, a model elsewhere."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specjax.types import Array, Drafter, DraftState, Draw, Noise, Outcome, Params, Proposal, Warp


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cascade:
    """Rounds for which ``copier`` has more than ``model_gamma`` tokens are its own, others the ``model``'s.

    The idea of a horizontal cascade (Chen et al. 2023, 2312.11462, section 3),
    with the choice made by the context instead of the position; suffix decoding
    beside a draft model does the like (Oliaro et al. 2024, 2411.04975). Run it
    in the buckets (model_gamma, gamma): which drafter a bucket belongs to is
    static, so a copied round pays for no draft step and a drafted one for
    model_gamma + 1 scored tokens. Lossless if both are, since who drafts
    depends on committed tokens alone.

    The model falls behind while the copier drafts: it must catch up by itself
    (``ModelDrafter.catch_up``). In a larger batch the row that wants most
    decides the bucket, and rows the copier has nothing for draft nothing in it.
    """

    copier: Drafter  # without params, as prompt lookup
    model: Drafter
    model_gamma: int

    def __post_init__(self) -> None:
        if self.model_gamma < 1:
            raise ValueError(f"Cascade.model_gamma must be at least 1, got {self.model_gamma}")

    def init(
        self,
        params: tuple[Params, Params],
        prompt: Array,
        length: Array,
        max_len: int,
        max_gamma: int,
        features: tuple[Array, ...],
    ) -> tuple[tuple[DraftState, DraftState], Array]:
        copying, copied = self.copier.init((params[0], ()), prompt, length, max_len, max_gamma, features)
        drafting, drafted = self.model.init(params, prompt, length, max_len, max_gamma, features)
        return (copying, drafting), self._available(copied, drafted)

    def propose(
        self,
        params: tuple[Params, Params],
        state: tuple[DraftState, DraftState],
        tokens: Array,
        length: Array,
        gamma: int,
        num_wanted: Array,
        noise: Noise,
        draw: Draw,
        warp: Warp,
    ) -> tuple[Proposal, tuple[DraftState, DraftState]]:
        """G tokens of one of the two; q is one-hot in the copier's buckets."""
        copying, drafting = state
        rest = (tokens, length, gamma, num_wanted, noise, draw, warp)
        if gamma > self.model_gamma:
            proposal, copying = self.copier.propose((params[0], ()), copying, *rest)
        else:
            proposal, drafting = self.model.propose(params, drafting, *rest)
        return proposal, (copying, drafting)

    def commit(
        self,
        params: tuple[Params, Params],
        state: tuple[DraftState, DraftState],
        tokens: Array,
        outcome: Outcome,
    ) -> tuple[tuple[DraftState, DraftState], Array]:
        copying, copied = self.copier.commit((params[0], ()), state[0], tokens, outcome)
        drafting, drafted = self.model.commit(params, state[1], tokens, outcome)
        return (copying, drafting), self._available(copied, drafted)

    def _available(self, copied: Array, drafted: Array) -> Array:
        return jnp.where(copied > self.model_gamma, copied, jnp.minimum(drafted, self.model_gamma))
