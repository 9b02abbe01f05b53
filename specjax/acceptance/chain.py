"""What every rule over a chain of drafts needs: noise by round, and rows of p and q."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax.types import Array, Proposal, pytree


@pytree
class Coins:
    """The accept noise of independent sampling: uniforms in [0, 1)."""

    accept: Array  # [G], one per draft token
    final: Array  # [] for the residual or bonus token


def round_noise(key: Array, round: Array, gamma: int) -> tuple[Array, Coins]:
    """Three independent streams of a row's round: draft draws [G], accept coins [G], final draw [].

    Keyed by the row's own round counter: noise keyed by absolute position
    would be used again after a rejection, which is lossy for block
    verification. Threefry is partitionable, so entry i does not depend on G.
    """
    key = jax.random.fold_in(key, round)
    draft, accept, final = (jax.random.fold_in(key, purpose) for purpose in range(3))
    coins = Coins(accept=jax.random.uniform(accept, (gamma,)), final=jax.random.uniform(final))
    return jax.random.uniform(draft, (gamma,)), coins


def is_live(proposal: Proposal) -> Array:
    """[G] bool: positions that were drafted."""
    return jnp.arange(proposal.tokens.shape[0]) < proposal.num_drafted


def prob_of_drafts(proposal: Proposal, probs: Array | None) -> Array:
    """[G]: the probability ``probs`` [>=G, V] gives to each draft; None is the one-hot law.

    An id outside of the vocabulary has none, so it is never accepted.
    """
    tokens = proposal.tokens
    if probs is None:
        return jnp.ones(tokens.shape, jnp.float32)
    known = (tokens >= 0) & (tokens < probs.shape[-1])
    return jnp.where(known, jnp.take_along_axis(probs, tokens[:, None], axis=1, mode="clip")[:, 0], 0.0)


def draft_law(proposal: Proposal, position: Array, vocab_size: int) -> Array:
    """q [V] at ``position`` [] in 0..G; all zero past ``num_drafted``.

    With q zero there, norm(relu(p - q)) is p itself: the bonus token needs no
    expression of its own.
    """
    gamma = proposal.tokens.shape[0]
    if gamma == 0:
        return jnp.zeros((vocab_size,), jnp.float32)
    if proposal.probs is None:
        row = jax.nn.one_hot(proposal.tokens[jnp.minimum(position, gamma - 1)], vocab_size)
    else:
        row = proposal.probs[jnp.minimum(position, gamma - 1)]
    return jnp.where(position < proposal.num_drafted, row, 0.0)


def overlap(proposal: Proposal, target_probs: Array) -> Array:
    """[G]: beta = sum min(p, q) at each draft position (Leviathan et al., definition 3.1)."""
    gamma = proposal.tokens.shape[0]
    if proposal.probs is None:
        return prob_of_drafts(proposal, target_probs[:gamma])
    return jnp.minimum(target_probs[:gamma], proposal.probs).sum(axis=1)
