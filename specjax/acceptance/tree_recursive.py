"""Recursive rejection without replacement: Jeon et al. 2024 (2402.14160), Chen et al. 2024 (2402.12374)."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specjax.acceptance import chain, tree_nodes
from specjax.trees.contracts import TreeProposal, TreeVerdict
from specjax.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecursiveRejection:
    """Tries siblings drawn without replacement, in draw order, each against what is left of p and q.

    With p and q of the node, child x is accepted with probability
    min(1, p(x) / q(x)); after a rejection p <- norm(max(0, p - q)) and
    q <- norm(q less x) (Jeon et al. 2024, algorithm 1; the tree rule of
    Sequoia, Chen et al. 2024, section 3.2, and of EAGLE, Li et al. 2024,
    2401.15077). Lossless for every q that the children were drawn from; a
    chain gives :class:`Rejection`.

    The order of siblings is part of the law. Sorted by probability, or drawn
    with replacement and deduplicated by anything but the order of first draws,
    they are lossy here.
    """

    @property
    def lossless(self) -> bool:
        return True

    def noise(self, key: Array, round: Array, length: Array, num_nodes: int, vocab_size: int):
        """Uniforms keyed by the row's round: a draw and a coin for each node."""
        del length, vocab_size
        return chain.round_noise(key, round, num_nodes)

    def draw_children(self, noise: Array, probs: Array) -> tuple[Array, Array]:
        """Siblings drawn without replacement: ``noise`` [K] uniforms, ``probs`` [V]."""
        return tree_nodes.draw_without_replacement(noise, probs)

    def accept(self, noise: chain.Coins, proposal: TreeProposal, target_probs: Array) -> TreeVerdict:
        """Judges a tree against ``target_probs`` [N, V]. ValueError without ``proposal.probs``."""
        return tree_nodes.descend(noise, proposal, target_probs, _after_rejection)


def _after_rejection(p: Array, q: Array, token: Array) -> tuple[Array, Array]:
    """What the next sibling is judged by, and what it was drawn from."""
    # No mass is left only where p = q, which is never rejected; the guard is against rounding.
    return tree_nodes.normalised(jnp.maximum(p - q, 0.0), p), tree_nodes.without(q, token)
