"""Tree drafters that know the continuation: any node of the tree can be made the end of the accepted path."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from specjax.drafters.theory import Truth
from specjax.trees.contracts import DrawChildren, TreeProposal
from specjax.trees.topology import Choices, from_choices, make_tree
from specjax.types import Array, Noise, Outcome, Params, Warp, pytree


@pytree
class ScriptedTreeParams:
    """Draft params of :class:`ScriptedTree`."""

    truth: Truth
    script: Array  # [R] int32: the node that wins in round 0, 1, ..., and again from 0; 0 the root


@pytree
class ScriptedTreeState:
    row: Array  # [] int32: this prompt's row of the truth
    round: Array  # [] int32


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScriptedTree:
    """Has the right tokens on the way to a scripted node and nowhere else where they could be accepted.

    At temperature 0 with the greedy continuation as truth, the path that is
    accepted ends at exactly that node. Off this way a node holds the token
    that would be right at its depth, below a wrong parent: a decoy for every
    fault of the tree mask and of the walk.
    """

    choices: Choices
    vocab_size: int
    # Whether to report a uniform law, which rules of sampled children want. Nothing is drawn from it,
    # so these are lossless at temperature 0 alone.
    uniform: bool = False

    @property
    def num_nodes(self) -> int:
        return 1 + len(self.choices)

    @property
    def max_depth(self) -> int:
        return max(map(len, self.choices), default=0)

    def init(
        self,
        params: tuple[Params, ScriptedTreeParams],
        prompt: Array,
        length: Array,
        max_len: int,
        max_gamma: int,
        features: tuple[Array, ...],
    ) -> tuple[ScriptedTreeState, Array]:
        row = params[1].truth.row_of(prompt, length)
        return ScriptedTreeState(row=row, round=jnp.int32(0)), jnp.int32(self.num_nodes - 1)

    def propose_tree(
        self,
        params: tuple[Params, ScriptedTreeParams],
        state: ScriptedTreeState,
        tokens: Array,
        length: Array,
        num_wanted: Array,
        noise: Noise,
        draw_children: DrawChildren,
        warp: Warp,
    ) -> tuple[TreeProposal, ScriptedTreeState]:
        parent, rank = from_choices(self.choices)
        depth = np.array([0, *sorted(map(len, self.choices))])
        ways = np.stack([self._way(parent, node) for node in range(self.num_nodes)])
        way = jnp.asarray(ways)[params[1].script[state.round % params[1].script.shape[0]]]

        right = params[1].truth.following(state.row, length, max(self.max_depth, 1))[depth - 1]
        is_sibling = way[np.maximum(parent, 0)] & ~way
        drafted = jnp.where(is_sibling, (right + 1 + rank) % self.vocab_size, right)
        drafted = drafted.at[0].set(tokens[length - 1])
        valid = np.arange(self.num_nodes) <= num_wanted
        probs = jnp.full((self.num_nodes, self.vocab_size), 1 / self.vocab_size) if self.uniform else None
        tree = make_tree(drafted, parent, max_depth=self.max_depth, valid=valid)
        return TreeProposal(tree=tree, probs=probs), state

    def commit(
        self,
        params: tuple[Params, ScriptedTreeParams],
        state: ScriptedTreeState,
        tokens: Array,
        outcome: Outcome,
    ) -> tuple[ScriptedTreeState, Array]:
        live = (outcome.num_emitted > 0).astype(jnp.int32)
        return dataclasses.replace(state, round=state.round + live), jnp.int32(self.num_nodes - 1)

    def _way(self, parent: np.ndarray, node: int) -> np.ndarray:
        """[N] bool: the root, ``node`` and what lies between."""
        way = np.zeros(len(parent), bool)
        while node > 0:
            way[node], node = True, parent[node]
        way[0] = True
        return way
