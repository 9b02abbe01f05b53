"""Decoding with trees: the exact law of three tokens through real rounds, and faults that it must show.

The target is a transformer, so its law reads every cache row that a round
leaves; the three tokens take one to three rounds. What is compared with
teacher-forced passes covers float32 rounding and nothing else.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import cache as kv
from specjax import sampling
from specjax.acceptance import OneHotWalk, RecursiveRejection, SpecInfer, Traversal
from specjax.acceptance.chain import Coins
from specjax.decoding import Program, buffer_length, tree_round
from specjax.drafters.tree_model import TreeModelDrafter
from specjax.request import make_request
from specjax.testing.controls import Lossy
from specjax.testing.models import tiny_transformer
from specjax.testing.statistics import model_joint
from specjax.testing.tree_cells import from_leaves_cells, from_root_cells, walk_cells
from specjax.testing.tree_decoding_law import tree_decoding_law
from specjax.testing.tree_law import end_of
from specjax.trees.contracts import TreeVerdict
from tests.decoding.guessed_tree import GuessedTree

V, LENGTH, NEW = 3, 3, 6
TOLERANCE = 1e-6
PROMPT = np.array([[1, 2]], np.int32)
TARGET, TARGET_PARAMS = tiny_transformer(vocab_size=V, seed=1, width=8, sharpness=1.0)
# After the prompt two ids have p > q, so that all children of the root may be rejected by chance alone.
DRAFT, DRAFT_PARAMS = tiny_transformer(vocab_size=V, seed=6, width=8, sharpness=1.0)
CHOICES = ((0,), (1,), (1, 0))  # nodes 1 and 2; 3 below 2, so that a path moves rows at both depths
DEPTH, PLACE = np.array([0, 1, 1, 2]), np.array([0, 0, 1, 0])
DRAWN = TreeModelDrafter(model=DRAFT, choices=CHOICES)
FIXED = GuessedTree(branching=(2, 1), vocab_size=V)
SAMPLED = [
    (RecursiveRejection(), from_root_cells),
    (SpecInfer(), from_root_cells),
    (Traversal(), from_leaves_cells),
]
BY_NAME = {"ids": lambda value: type(value).__name__ if hasattr(value, "lossless") else ""}


def laws(rule, judged_cells, drafter=DRAWN, **settings):
    """The joint law [V, V, V] of what is emitted, and the target's own."""
    gamma = drafter.num_nodes - 1
    program = Program(
        target=TARGET, drafter=drafter, rule=rule, gammas=(gamma,), max_gamma=gamma,
        max_len=buffer_length(PROMPT.shape[1], NEW, gamma),
    )  # fmt: skip
    request = make_request(
        prompt_length=[PROMPT.shape[1]], max_new_tokens=NEW, seed=0, **{"temperature": 1.0} | settings
    )
    params = (TARGET_PARAMS, DRAFT_PARAMS)
    law = tree_decoding_law(program, params, PROMPT, request, LENGTH, judged_cells)
    assert law.sum() == pytest.approx(1, abs=1e-9)
    row = jax.tree.map(lambda x: x[0], request.sampling)
    return law, model_joint(TARGET, TARGET_PARAMS, PROMPT[0], LENGTH, row)


def error(*args, **settings):
    """Their largest difference."""
    law, expected = laws(*args, **settings)
    return np.abs(law - expected).max()


@pytest.mark.parametrize(("rule", "judged_cells"), SAMPLED, **BY_NAME)
def test_output_law_with_drawn_children(rule, judged_cells):
    assert error(rule, judged_cells) <= TOLERANCE


def test_output_law_with_fixed_children():
    assert error(OneHotWalk(), walk_cells, FIXED) <= TOLERANCE


def test_output_law_where_nodes_are_missing():
    """Zeros in p and q: after the prompt q has one id, so that node 2 and what lies below are not drawn."""
    law, expected = laws(RecursiveRejection(), from_root_cells, top_p=0.65)
    assert (expected == 0).any() and (expected > 0).sum() > 3
    np.testing.assert_allclose(law, expected, atol=TOLERANCE, rtol=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextOfParent(Lossy, RecursiveRejection):
    """Control: the token after a path is drawn from p of the last node's parent."""

    def accept(self, noise, proposal, target_probs):
        verdict = super().accept(noise, proposal, target_probs)
        late = sampling.draw(noise.final, target_probs[proposal.tree.parent[end_of(verdict)]])
        next_token = jnp.where(verdict.num_accepted > 0, late, verdict.next_token)
        return TreeVerdict(path=verdict.path, num_accepted=verdict.num_accepted, next_token=next_token)


def test_the_next_token_of_the_parent_is_caught():
    assert error(NextOfParent(), from_root_cells) > 0.01


def test_rows_left_in_node_order_are_caught(monkeypatch):
    """Control: the cache behind the committed rows is kept as the nodes were written."""
    monkeypatch.setattr(kv, "keep_path", lambda cache, start, path: cache)
    assert error(Traversal(), from_leaves_cells) > 1e-3


def test_nodes_that_see_their_siblings_are_caught(monkeypatch):
    """Control: the nodes are scored under a chain's mask."""

    def causal(tree, start, max_len):
        return jnp.arange(max_len) <= start + jnp.arange(tree.tokens.shape[0])[:, None]

    monkeypatch.setattr(tree_round, "_visible", causal)
    assert error(OneHotWalk(), walk_cells, FIXED) > 1e-3


@dataclasses.dataclass(frozen=True, kw_only=True)
class TraversalByPosition(Lossy, Traversal):
    """Control: a node's draw and coin belong to its absolute position and place among those of its depth."""

    def noise(self, key, round, length, num_nodes, vocab_size):
        def of_node(depth, place):
            at_position = jax.random.fold_in(key, length + depth)
            return jax.random.uniform(jax.random.fold_in(at_position, place), (2,))

        draws, accept = jax.vmap(of_node, out_axes=1)(DEPTH, PLACE)
        final = jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, length), 9))
        return draws, Coins(accept=accept, final=final)


def test_noise_by_position_is_caught_for_traversal():
    """A later round drafts again where a path was rejected, with the coins that rejected it."""
    assert error(TraversalByPosition(), from_leaves_cells) > 1e-3
