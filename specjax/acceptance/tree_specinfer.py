"""Multi-step speculative sampling: SpecInfer, Miao et al. 2023 (2305.09781)."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specjax.acceptance import chain, tree_nodes
from specjax.trees.contracts import TreeProposal, TreeVerdict
from specjax.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpecInfer:
    """Tries independent siblings, each against what is left of p and the same q.

    Child x is accepted with probability min(1, p(x) / q(x)); after a rejection
    p <- norm(max(0, p - q)) and q stays (Miao et al. 2023, algorithm 2,
    theorem 4.2). Lossless for every q, if siblings are independent and all of
    them are kept: a duplicate of a rejected sibling is rejected for sure,
    which the law counts on. A chain gives :class:`Rejection`.
    """

    @property
    def lossless(self) -> bool:
        return True

    def noise(self, key: Array, round: Array, length: Array, num_nodes: int, vocab_size: int):
        """Uniforms keyed by the row's round: a draw and a coin for each node."""
        del length, vocab_size
        return chain.round_noise(key, round, num_nodes)

    def draw_children(self, noise: Array, probs: Array) -> tuple[Array, Array]:
        """Independent siblings: ``noise`` [K] uniforms, ``probs`` [V]."""
        return tree_nodes.draw_with_replacement(noise, probs)

    def accept(self, noise: chain.Coins, proposal: TreeProposal, target_probs: Array) -> TreeVerdict:
        """Judges a tree against ``target_probs`` [N, V]. ValueError without ``proposal.probs``."""
        return tree_nodes.descend(noise, proposal, target_probs, _after_rejection)


def _after_rejection(p: Array, q: Array, token: Array) -> tuple[Array, Array]:
    """What the next sibling is judged by, and what it was drawn from."""
    del token
    # No mass is left only where p = q, which is never rejected; the guard is against rounding.
    return tree_nodes.normalised(jnp.maximum(p - q, 0.0), p), q
