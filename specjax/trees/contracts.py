"""What flows between a drafter of trees, a rule over trees and the round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from specjax.trees.topology import Tree
from specjax.types import Array, DraftState, Noise, Outcome, Params, Warp, pytree

# draw_children(noise of the siblings [K], probs [V]) -> (tokens [K], valid [K])
DrawChildren = Callable[[Noise, Array], tuple[Array, Array]]


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


@runtime_checkable
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


@runtime_checkable
class TreeDrafter(Protocol):
    """Who drafts trees: as :class:`specjax.types.Drafter`, but for ``propose_tree``.

    ``init`` and ``commit`` are the chain's, so is ``params``: (target params,
    draft params). ``Outcome.emitted`` [D+1] and ``Outcome.features`` [D+1, D]
    hold the accepted path in its order, as if it had been a chain.
    """

    @property
    def num_nodes(self) -> int:
        """N, the root included: what a target step scores. The program's one gamma is N - 1."""
        ...

    @property
    def max_depth(self) -> int:
        """D: the most tokens a round may accept."""
        ...

    def init(
        self,
        params: tuple[Params, Params],
        prompt: Array,
        length: Array,
        max_len: int,
        max_gamma: int,
        features: tuple[Array, ...],
    ) -> tuple[DraftState, Array]: ...

    def propose_tree(
        self,
        params: tuple[Params, Params],
        state: DraftState,
        tokens: Array,  # [S] int32; the root is tokens[length - 1]
        length: Array,  # [] int32
        num_wanted: Array,  # [] int32: nodes at and past 1 + num_wanted are not to be valid
        noise: Noise,  # leaves [N, ...]: a node's own draw
        draw_children: DrawChildren,
        warp: Warp,
    ) -> tuple[TreeProposal, DraftState]:
        """A tree of N nodes. Nodes are in order of depth, so the first few are a tree as well."""
        ...

    def commit(
        self, params: tuple[Params, Params], state: DraftState, tokens: Array, outcome: Outcome
    ) -> tuple[DraftState, Array]: ...
