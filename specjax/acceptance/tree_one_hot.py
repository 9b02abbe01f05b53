"""The walk by the target's own draws: lossless for any tree that was fixed before the coins."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specjax import sampling
from specjax.acceptance import chain, tree_nodes
from specjax.trees.contracts import TreeProposal, TreeVerdict
from specjax.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneHotWalk:
    """From the root, draws t from p of the node and moves to its child t, until no child is t.

    Every emitted token is a draw from p given those before it, one for each
    node that is reached. So it is lossless for every tree that does not depend
    on these draws: the likeliest candidates of heads (Medusa, Cai et al. 2024,
    2401.10774), reranked ones (EAGLE-2, Li et al. 2024, 2406.16858), retrieved
    ones, sampled ones whose law was lost. Speculative sampling with one-hot q
    (Leviathan et al. 2023, 2211.17192, section 2.3), with as many drafts as a
    node has children: it accepts sum p(x) over the distinct children x.

    Siblings of one token: the first is taken. At temperature 0 it follows the
    argmax, since p is one-hot there.
    """

    @property
    def lossless(self) -> bool:
        return True

    def noise(self, key: Array, round: Array, length: Array, num_nodes: int, vocab_size: int):
        """Uniforms keyed by the row's round, one for each node's draw."""
        del length, vocab_size
        return chain.round_noise(key, round, num_nodes)

    def draw_children(self, noise: Array, probs: Array) -> tuple[Array, Array]:
        """The likeliest tokens of ``probs`` [V], one for each of the K entries of ``noise``."""
        return tree_nodes.draw_likeliest(noise, probs)

    def accept(self, noise: chain.Coins, proposal: TreeProposal, target_probs: Array) -> TreeVerdict:
        """Judges a tree against ``target_probs`` [N, V]; ``probs`` and the final coin play no part."""
        tree = proposal.tree

        def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            node, _, _ = state
            token = sampling.draw(noise.accept[node], target_probs[node])
            child = tree_nodes.first_child(tree, node, tree.tokens == token)
            return jnp.where(child > 0, child, node), token, child == 0

        start = (jnp.int32(0), jnp.int32(0), jnp.bool_(False))
        node, token, _ = jax.lax.while_loop(lambda state: ~state[2], step, start)
        return tree_nodes.verdict(tree, node, token)
