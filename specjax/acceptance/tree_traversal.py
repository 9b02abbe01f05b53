"""Traversal verification, leaf to root: Weng et al. 2025 (2505.12398)."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specjax import sampling
from specjax.acceptance import chain, tree_nodes
from specjax.trees.contracts import TreeProposal, TreeVerdict
from specjax.types import Array, pytree


@pytree
class _Visit:
    """Where the traversal stands, and the laws of the nodes above: row d belongs to the node of depth d."""

    node: Array  # [] int32
    child: Array  # [] int32: its next child; 0 if none is left
    p: Array  # [D+1, V]: p of a node, less what its rejected children could have given
    q: Array  # [D+1, V]: the law of its remaining children
    weight: Array  # [D+1]: w, the probability that a leaf ending there is accepted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traversal:
    """Accepts whole paths: visits the nodes in post-order and keeps the path to the first accepted.

    A node x below u is worth w_x = min(1, w_u p_u(x) / q_u(x)), w = 1 at the
    root. A leaf is accepted with probability w. Otherwise it goes, and leaves
    its parent with p_u <- norm(R), R = max(0, w_u p_u - q_u), q_u <- norm(q_u
    less x) and w_u <- S / (S + 1 - w_u), S = sum R; a node all of whose
    children went is a leaf (Weng et al. 2025, algorithm 1). Lossless for every
    q that siblings were drawn from without replacement, in index order. A
    chain gives :class:`Block`: a ratio above 1 pays for a deficit above it.

    The path depends on coins and drafts beside and beyond it, so noise keyed
    by position, used again in a later round, would be lossy.
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
        tree, laws = proposal.tree, tree_nodes.draft_laws(proposal)

        def is_accepted(visit: _Visit) -> Array:
            # Strict: a path with p = 0 is rejected even by a coin of 0.
            succeeds = noise.accept[visit.node] < visit.weight[tree.depth[visit.node]]
            return (visit.child == 0) & (succeeds | (visit.node == 0))

        def enter(visit: _Visit) -> tuple[Array, ...]:
            above, token = tree.depth[visit.node], tree.tokens[visit.child]
            ratio = visit.p[above, token] / visit.q[above, token]
            weight = jnp.minimum(1.0, visit.weight[above] * ratio)
            return visit.child, visit.child, target_probs[visit.child], laws[visit.child], weight

        def reject(visit: _Visit) -> tuple[Array, ...]:
            above = tree.depth[visit.node] - 1
            p, q, weight = _after_rejection(
                visit.p[above], visit.q[above], visit.weight[above], tree.tokens[visit.node]
            )
            return tree.parent[visit.node], visit.node, p, q, weight

        def move(visit: _Visit) -> _Visit:
            node, after, p, q, weight = jax.lax.cond(visit.child > 0, enter, reject, visit)
            depth = tree.depth[node]
            return _Visit(
                node=node,
                child=tree_nodes.next_child(tree, node, after, q),
                p=visit.p.at[depth].set(p),
                q=visit.q.at[depth].set(q),
                weight=visit.weight.at[depth].set(weight),
            )

        root, rows = jnp.int32(0), (tree.max_depth + 1, target_probs.shape[-1])
        start = _Visit(
            node=root,
            child=tree_nodes.next_child(tree, root, root, laws[0]),
            p=jnp.zeros(rows, target_probs.dtype).at[0].set(target_probs[0]),
            q=jnp.zeros(rows, laws.dtype).at[0].set(laws[0]),
            weight=jnp.ones(rows[:1], target_probs.dtype),
        )
        end = jax.lax.while_loop(lambda visit: ~is_accepted(visit), move, start)
        next_token = sampling.draw(noise.final, end.p[tree.depth[end.node]])
        return tree_nodes.verdict(tree, end.node, next_token)


def _after_rejection(p: Array, q: Array, weight: Array, token: Array) -> tuple[Array, Array, Array]:
    """(p, q, w) of a node one of whose children, ``token``, is gone with all below it."""
    residual = jnp.maximum(weight * p - q, 0.0)
    mass = residual.sum()
    rest = mass + (1 - weight)
    weight = jnp.where(rest > 0, mass / jnp.where(rest > 0, rest, 1.0), 1.0)
    # Without mass the weight is 0 and p is of no use, but for rounding.
    return tree_nodes.normalised(residual, p), tree_nodes.without(q, token), weight
