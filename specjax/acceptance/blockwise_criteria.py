"""The approximate criteria of Blockwise Parallel Decoding (Stern et al. 2018, arXiv 1811.03115, section 5).

None is lossless: they are here for comparison. The paper decodes greedily, so
the token after the accepted ones is the likeliest. At temperature 0 p is
one-hot and has no ranks: ask for temperature 1 to see the target's. What is
called a block there is the accepted drafts and that token.
"""

from __future__ import annotations

import abc
import dataclasses

import jax.numpy as jnp

from specjax import sampling
from specjax.acceptance import chain
from specjax.types import Array, Proposal, Verdict


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Criterion(abc.ABC):
    """A rule that accepts drafts in order while :meth:`passes` holds; lossy."""

    @property
    def lossless(self) -> bool:
        return False

    def noise(self, key: Array, round: Array, length: Array, gamma: int, vocab_size: int):
        """Uniforms for a drafter that samples; the criteria toss no coins."""
        del length, vocab_size
        return chain.round_noise(key, round, gamma)

    def draw(self, noise: Array, probs: Array) -> Array:
        """Inverse CDF: ``noise`` [] uniform, ``probs`` [V]."""
        return sampling.draw(noise, probs)

    def accept(self, noise: chain.Coins, proposal: Proposal, target_probs: Array) -> Verdict:
        """Judges G drafts against ``target_probs`` [G+1, V]."""
        passed = self.passes(proposal.tokens, target_probs[: proposal.tokens.shape[0]])
        n = jnp.sum(jnp.cumprod(passed & chain.is_live(proposal)), dtype=jnp.int32)
        return Verdict(num_accepted=n, next_token=sampling.first_argmax(target_probs[n]))

    @abc.abstractmethod
    def passes(self, tokens: Array, probs: Array) -> Array:
        """[G] bool for ``tokens`` [G] under ``probs`` [G, V]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopMembership(_Criterion):
    """Accepts a draft that is among the target's ``size`` likeliest (section 5.1); ties to the lower id."""

    size: int = 2

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be at least 1 (the exact criterion), got {self.size}")

    def passes(self, tokens: Array, probs: Array) -> Array:
        own = jnp.take_along_axis(probs, tokens[:, None], axis=1)
        earlier = (probs > own) | ((probs == own) & (jnp.arange(probs.shape[1]) < tokens[:, None]))
        return (earlier.sum(axis=1) < self.size) & (own[:, 0] > 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distance(_Criterion):
    """Accepts a draft at most ``epsilon`` from the likeliest id (section 5.2): ids are quantities."""

    epsilon: int = 2

    def __post_init__(self) -> None:
        if self.epsilon < 0:
            raise ValueError(f"epsilon must be at least 0 (the exact criterion), got {self.epsilon}")

    def passes(self, tokens: Array, probs: Array) -> Array:
        return jnp.abs(tokens - sampling.first_argmax(probs)) <= self.epsilon


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinimumBlock(_Criterion):
    """The exact criterion, but a block has at least ``size`` tokens, if as many can be had (section 5.3)."""

    size: int = 2

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be at least 1 (the exact criterion), got {self.size}")

    def passes(self, tokens: Array, probs: Array) -> Array:
        forced = jnp.arange(tokens.shape[0]) < self.size - 1
        return forced | (tokens == sampling.first_argmax(probs))
