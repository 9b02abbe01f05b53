"""A tree whose tokens are guessed from the pending token alone: no model, some branches right by chance."""

import dataclasses

import jax.numpy as jnp

from specjax.trees.builders import fixed_branching
from specjax.trees.contracts import TreeProposal
from specjax.trees.topology import from_choices, make_tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuessedTree:
    branching: tuple[int, ...]
    vocab_size: int

    @property
    def num_nodes(self):
        return 1 + len(fixed_branching(self.branching))

    @property
    def max_depth(self):
        return len(self.branching)

    def init(self, params, prompt, length, max_len, max_gamma, features):
        return jnp.int32(0), jnp.int32(self.num_nodes - 1)

    def propose_tree(self, params, state, tokens, length, num_wanted, noise, draw_children, warp):
        parent, _ = from_choices(fixed_branching(self.branching))
        nodes = jnp.arange(self.num_nodes)
        guesses = (tokens[length - 1] * 7 + nodes * 5 + length) % self.vocab_size
        tree = make_tree(guesses, parent, max_depth=self.max_depth, valid=nodes <= num_wanted)
        return TreeProposal(tree=tree, probs=None), state

    def commit(self, params, state, tokens, outcome):
        return state, jnp.int32(self.num_nodes - 1)
