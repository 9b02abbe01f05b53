"""Speculative sampling: Leviathan et al. 2023 (2211.17192), Chen et al. 2023 (2302.01318)."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specjax import sampling
from specjax.acceptance import chain
from specjax.types import Array, Proposal, Verdict


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rejection:
    """Accepts draft x with probability min(1, p(x) / q(x)), in order, until the first rejection.

    Then a residual token from norm(max(0, p - q)), or, after full acceptance,
    a bonus token from p. Lossless for every q; accepts sum min(p, q) of the
    drafts on average, which is optimal for a single position.

    ``lenience`` l below 1 compares with l * q (Leviathan et al., appendix
    A.5): more is accepted, and the output law is no longer p. At temperature
    0 it changes nothing, since p of a draft is 0 or 1 there.
    """

    lenience: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.lenience <= 1:
            raise ValueError(f"lenience must lie in (0, 1] (1 is lossless), got {self.lenience!r}")

    @property
    def lossless(self) -> bool:
        return self.lenience == 1

    def noise(self, key: Array, round: Array, length: Array, gamma: int, vocab_size: int):
        """Uniforms keyed by the row's round; ``length`` and ``vocab_size`` play no part."""
        del length, vocab_size
        return chain.round_noise(key, round, gamma)

    def draw(self, noise: Array, probs: Array) -> Array:
        """Inverse CDF: ``noise`` [] uniform, ``probs`` [V]."""
        return sampling.draw(noise, probs)

    def accept(self, noise: chain.Coins, proposal: Proposal, target_probs: Array) -> Verdict:
        """Judges G drafts against ``target_probs`` [G+1, V]."""
        gamma, vocab_size = proposal.tokens.shape[0], target_probs.shape[-1]
        p = chain.prob_of_drafts(proposal, target_probs[:gamma])
        q = chain.prob_of_drafts(proposal, proposal.probs)
        # Strict: a draft with p = 0 is rejected even by a coin of 0.
        accepted = (noise.accept * self.lenience * q < p) & chain.is_live(proposal)
        n = jnp.sum(jnp.cumprod(accepted), dtype=jnp.int32)

        p_n = target_probs[n]
        residual = jnp.maximum(p_n - self.lenience * chain.draft_law(proposal, n, vocab_size), 0.0)
        # No mass is left only where p = q, which is never rejected; the guard is against rounding.
        residual = jnp.where(residual.sum() > 0, residual, p_n)
        return Verdict(num_accepted=n, next_token=sampling.draw(noise.final, residual))
