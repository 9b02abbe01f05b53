"""Typical acceptance, for comparison: NOT lossless. Medusa, Cai et al. 2024 (2401.10774), section 2.3.1."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specjax import sampling
from specjax.acceptance import chain, tree_nodes
from specjax.trees.contracts import TreeProposal, TreeVerdict
from specjax.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Typical:
    """Accepts whatever the target finds plausible, without a coin. The output is not the target's law.

    Node x below u is accepted if p_u(x) > min(epsilon, delta exp(-H(p_u))), H
    the entropy of p_u, and so are all nodes above it. The longest accepted
    path wins, of several the likeliest. The token after it is drawn from p
    without what the same threshold refuses, as in Medusa's code (the paper
    takes it greedily), and is accepted without a test. p is the law after
    warping, of which delta < 1 leaves at least the likeliest token.

    At temperature 0 it follows the argmax, as every lossless rule does.
    """

    epsilon: float = 0.3
    delta: float = 0.09

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ValueError(f"Typical.{name} must be in [0, 1), got {value!r}")

    @property
    def lossless(self) -> bool:
        return False

    def noise(self, key: Array, round: Array, length: Array, num_nodes: int, vocab_size: int):
        """Uniforms keyed by the row's round, of which the final one alone decides anything."""
        del length, vocab_size
        return chain.round_noise(key, round, num_nodes)

    def draw_children(self, noise: Array, probs: Array) -> tuple[Array, Array]:
        """The likeliest tokens of ``probs`` [V], one for each of the K entries of ``noise``."""
        return tree_nodes.draw_likeliest(noise, probs)

    def accept(self, noise: chain.Coins, proposal: TreeProposal, target_probs: Array) -> TreeVerdict:
        """Judges a tree against ``target_probs`` [N, V]; only the last coin plays a part."""
        tree = proposal.tree
        above = target_probs[tree.parent]
        known = (tree.tokens >= 0) & (tree.tokens < target_probs.shape[-1])
        likelihood = jnp.take_along_axis(above, tree.tokens[:, None], axis=1, mode="clip")[:, 0]
        is_root = jnp.arange(tree.tokens.shape[0]) == 0
        plausible = is_root | (tree.valid & known & (likelihood > self._threshold(above)))
        accepted = jnp.all(plausible | ~tree.ancestors, axis=1)

        longest = jnp.max(jnp.where(accepted, tree.depth, 0))
        log_likelihood = jnp.where(tree.ancestors & ~is_root, jnp.log(likelihood), 0.0).sum(axis=1)
        node = jnp.argmax(jnp.where(accepted & (tree.depth == longest), log_likelihood, -jnp.inf))
        p = target_probs[node]
        next_token = sampling.draw(noise.final, jnp.where(p > self._threshold(p), p, 0.0))
        return tree_nodes.verdict(tree, node.astype(jnp.int32), next_token)

    def _threshold(self, probs: Array) -> Array:
        """[...] of ``probs`` [..., V]: the probability a token must exceed."""
        entropy = jax.scipy.special.entr(probs).sum(axis=-1)
        return jnp.minimum(self.epsilon, self.delta * jnp.exp(-entropy))
