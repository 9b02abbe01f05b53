"""What flows between a drafter of trees, a rule over trees and the round."""

from __future__ import annotations

from typing import Protocol

from specjax.trees.topology import Tree
from specjax.types import Array, Noise, pytree


@pytree
class TreeProposal:
    """What a drafter submits to be scored.

    ``probs[u]`` is the law the children of node u were ACTUALLY drawn from, in
    index order, float32, after warping; None states that the tree was fixed
    before any coin of this round (argmax, top-k, reranked, retrieved).
    """

    tree: Tree
    probs: Array | None  # [N, V] float32


@pytree
class TreeVerdict:
    """The accepted path, and the token after it."""

    path: Array  # [D] int32: node indices from below the root; 0 past num_accepted
    num_accepted: Array  # [] int32 in 0..D
    next_token: Array  # [] int32: residual, or bonus where the path ends in a leaf


class TreeRule(Protocol):
    """How a tree is judged: one frozen dataclass per ``acceptance/tree_*.py``; one row, vmapped."""

    @property
    def lossless(self) -> bool:
        """Whether the output law is the target's for every drafter that reports its law."""
        ...

    def noise(
        self, key: Array, round: Array, length: Array, num_nodes: int, vocab_size: int
    ) -> tuple[Noise, Noise]:
        """(draft noise, leaves [N, ...]: a node's own draw; accept noise) of one row's round."""
        ...

    def draw_children(self, noise: Noise, probs: Array) -> tuple[Array, Array]:
        """(tokens [K] int32, valid [K] bool): K siblings as this rule needs them drawn from ``probs`` [V]."""
        ...

    def accept(self, noise: Noise, proposal: TreeProposal, target_probs: Array) -> TreeVerdict:
        """Judges a tree against ``target_probs`` [N, V], p after each node."""
        ...
