"""Tree rules and tree drafters that are wrong on purpose: every proof of losslessness has to fail on them."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling
from specjax.acceptance.chain import Coins
from specjax.acceptance.tree_nodes import descend, normalised, verdict
from specjax.acceptance.tree_one_hot import OneHotWalk
from specjax.acceptance.tree_recursive import RecursiveRejection
from specjax.testing.controls import Lossy
from specjax.testing.tree_drafts import with_replacement, without_replacement
from specjax.trees.contracts import TreeProposal, TreeVerdict
from specjax.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoinPerPath(Lossy, OneHotWalk):
    """Each path is walked with draws of its own, and the longest wins.

    Paths that share a node then get several attempts at it: ``noise.accept``
    is [N, N], entry [i, j] the draw at node j for the path to node i.
    """

    def accept(self, noise: Coins, proposal: TreeProposal, target_probs: Array) -> TreeVerdict:
        tree = proposal.tree
        nodes = jnp.arange(tree.parent.shape[0])

        def walk(path: Array, coins: Array) -> tuple[Array, Array]:
            drawn = jax.vmap(sampling.draw)(coins, target_probs)
            entered = path & (drawn[tree.parent] == tree.tokens) & (nodes > 0)
            reached = jnp.all(~tree.ancestors | entered | (nodes == 0), axis=1) & path & tree.valid
            end = jnp.argmax(jnp.where(reached, tree.depth, -1))
            return end, drawn[end]

        ends, tokens = jax.vmap(walk)(tree.ancestors, noise.accept)
        is_leaf = tree.valid & ~jnp.any((tree.parent == nodes[:, None]) & (nodes > 0), axis=1)
        best = jnp.argmax(jnp.where(is_leaf, tree.depth[ends], -1))
        return verdict(tree, ends[best], tokens[best])


@dataclasses.dataclass(frozen=True, kw_only=True)
class StaleScale(Lossy, RecursiveRejection):
    """Takes a rejected sibling out of q and does not divide by what is left."""

    def accept(self, noise: Coins, proposal: TreeProposal, target_probs: Array) -> TreeVerdict:
        after_rejection = lambda p, q, token: (normalised(jnp.maximum(p - q, 0.0), p), q.at[token].set(0.0))
        return descend(noise, proposal, target_probs, after_rejection)


def sorted_siblings(q: np.ndarray, width: int) -> dict[tuple[int, ...], float]:
    """Drawn without replacement, then sorted by probability."""
    return _rearranged(without_replacement(q, width), lambda s: sorted(s, key=lambda token: -q[token]))


def deduplicated(q: np.ndarray, width: int) -> dict[tuple[int, ...], float]:
    """Drawn independently, then without the duplicates: a draw without replacement, of random number."""
    return _rearranged(with_replacement(q, width), lambda s: list(dict.fromkeys(s)))


def reranked(q: np.ndarray, width: int) -> dict[tuple[int, ...], float]:
    """One more than needed is drawn without replacement, and the likeliest are kept, in draw order."""

    def best(siblings: tuple[int, ...]) -> list[int]:
        kept = sorted(siblings, key=lambda token: -q[token])[:width]
        return [token for token in siblings if token in kept]

    return _rearranged(without_replacement(q, width + 1), best)


def _rearranged(law: dict[tuple[int, ...], float], arrange) -> dict[tuple[int, ...], float]:
    """The law of what ``arrange`` makes of siblings."""
    pairs = sorted((tuple(arrange(siblings)), weight) for siblings, weight in law.items())
    return {s: sum(w for _, w in same) for s, same in itertools.groupby(pairs, key=lambda pair: pair[0])}
