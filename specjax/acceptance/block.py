"""Block verification: Sun et al. 2024 (2403.10444), algorithm 2."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specjax import sampling
from specjax.acceptance import chain
from specjax.types import Array, Proposal, Verdict


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """Judges the drafts of a round jointly; accepts at least as many as :class:`Rejection`.

    Keeps the longest prefix whose own coin succeeds, where P(accept >= i) =
    b_i = min(1, b_{i-1} p_i / q_i): a ratio above 1 pays for an earlier
    deficit. Lossless for every q. Equal in law to the token rule at gamma 1
    and for one-hot q, so its alpha_accept is not Leviathan's alpha.
    """

    @property
    def lossless(self) -> bool:
        return True

    def noise(self, key: Array, round: Array, length: Array, gamma: int, vocab_size: int):
        """Uniforms keyed by the row's round; keying by position would be lossy here."""
        del length, vocab_size
        return chain.round_noise(key, round, gamma)

    def draw(self, noise: Array, probs: Array) -> Array:
        """Inverse CDF: ``noise`` [] uniform, ``probs`` [V]."""
        return sampling.draw(noise, probs)

    def accept(self, noise: chain.Coins, proposal: Proposal, target_probs: Array) -> Verdict:
        """Judges G drafts against ``target_probs`` [G+1, V]."""
        gamma, vocab_size = proposal.tokens.shape[0], target_probs.shape[-1]
        p = chain.prob_of_drafts(proposal, target_probs[:gamma])
        b = _prefix_weights(p, chain.prob_of_drafts(proposal, proposal.probs), chain.is_live(proposal))

        # h_i: the coin of length i, given that no longer prefix was kept; h_g = b_g.
        mass = _residual_mass(b, proposal, target_probs)
        rest = mass + (1 - b)
        h = jnp.where(rest <= 0, 1.0, mass / jnp.where(rest <= 0, 1.0, rest))  # p = q = 0: NaN, refused
        lengths = jnp.arange(gamma + 1)
        h = jnp.where(lengths == proposal.num_drafted, b, h)
        kept = (noise.accept < h[1:]) & chain.is_live(proposal)
        n = jnp.max(jnp.where(kept, lengths[1:], 0), initial=0).astype(jnp.int32)

        residual = jnp.maximum(b[n] * target_probs[n] - chain.draft_law(proposal, n, vocab_size), 0.0)
        residual = jnp.where(residual.sum() > 0, residual, target_probs[n])
        return Verdict(num_accepted=n, next_token=sampling.draw(noise.final, residual))


def _prefix_weights(p: Array, q: Array, live: Array) -> Array:
    """b [G+1]: the running product of p/q, clipped at 1 as it goes.

    In logarithms it is the cumulative sum less its running maximum.
    """
    log_ratio = jnp.where(live, jnp.log(p) - jnp.log(q), 0.0)
    total = jnp.concatenate([jnp.zeros(1), jnp.cumsum(log_ratio)])
    return jnp.exp(total - jax.lax.cummax(total))


def _residual_mass(b: Array, proposal: Proposal, target_probs: Array) -> Array:
    """[G+1]: sum over v of max(0, b_i p_{i+1}(v) - q_{i+1}(v)), q zero past the drafts."""
    gamma = proposal.tokens.shape[0]
    if proposal.probs is None:
        # One-hot q removes the drafted token alone, since b p <= 1.
        p = chain.prob_of_drafts(proposal, target_probs[:gamma])
        drafted = jnp.where(chain.is_live(proposal), p, 0.0)
        return b * (target_probs.sum(axis=1) - jnp.append(drafted, 0.0))
    q = jnp.where(chain.is_live(proposal)[:, None], proposal.probs, 0.0)
    mass = jnp.maximum(b[:gamma, None] * target_probs[:gamma] - q, 0.0).sum(axis=1)
    return jnp.append(mass, b[gamma] * target_probs[gamma].sum())
