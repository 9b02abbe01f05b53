"""Typical acceptance: Medusa's rule by hand, greedy at temperature 0, and lossy by every proof."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.acceptance import OneHotWalk, Typical
from specjax.acceptance.chain import Coins
from specjax.testing.law import joint_law, random_law
from specjax.testing.tree_drafts import enumerate_trees, likeliest
from specjax.testing.tree_law import from_the_root, tree_round_law
from specjax.trees.contracts import TreeProposal
from specjax.trees.topology import make_tree

V, N, DEPTH = 4, 9, 3
PARENT = np.array([-1, 0, 0, 1, 1, 2, 3, 3, 5])


@jax.jit
@jax.vmap
def both(tokens, valid, target_probs, accept, final):
    """The verdicts of the typical rule and of the one-hot walk."""
    tree = make_tree(tokens, jnp.asarray(PARENT), max_depth=DEPTH, valid=valid)
    arguments = Coins(accept=accept, final=final), TreeProposal(tree=tree, probs=None), target_probs
    return Typical().accept(*arguments), OneHotWalk().accept(*arguments)


def closed(valid):
    """Nodes below an invalid one are not valid either."""
    for node in range(1, N):
        valid[:, node] &= valid[:, PARENT[node]]
    return valid


def cases(count, seed):
    """(tokens, valid, final coins): siblings differ, ids out of the vocabulary and invalid nodes occur."""
    rng = np.random.default_rng(seed)
    tokens = np.zeros((count, N), np.int32)
    for parent in set(PARENT[1:].tolist()):
        nodes = np.flatnonzero(parent == PARENT)
        tokens[:, nodes] = np.argsort(rng.random((count, V + 1)))[:, : len(nodes)] - rng.integers(0, 2)
    valid = closed(np.hstack([np.ones((count, 1), bool), rng.random((count, N - 1)) < 0.9]))
    return rng, tokens, valid, rng.random(count, np.float32)


def by_hand(tokens, valid, p, epsilon=0.3, delta=0.09):
    """(nodes of the path, p of the next token) in float64, as Medusa's code has it."""
    entropy = -np.sum(p * np.log(np.where(p > 0, p, 1)), axis=1)
    least = np.minimum(epsilon, delta * np.exp(-entropy))
    best, score = [], (0, 0.0)
    for leaf in range(1, N):
        way, node = [], leaf
        while node > 0:
            way, node = [node, *way], PARENT[node]
        likelihood = [
            p[PARENT[node], tokens[node]] if valid[node] and 0 <= tokens[node] < V else -1 for node in way
        ]
        if np.all(np.array(likelihood) > least[PARENT[way]]):
            best, score = max((best, score), (way, (len(way), np.log(likelihood).sum())), key=lambda x: x[1])
    end = best[-1] if best else 0
    law = np.where(p[end] > least[end], p[end], 0)
    return best, law / law.sum()


def test_against_the_rule_by_hand():
    rng, tokens, valid, final = cases(400, 0)
    # Sharp, flat and middling laws, so that either side of the threshold's minimum decides.
    p = np.stack([rng.dirichlet(np.full(V, a), N) for a in np.resize([0.05, 0.3, 1, 30], 400)])
    verdict, _ = both(tokens, valid, jnp.float32(p), rng.random((400, N), np.float32), final)
    lengths = set()
    for row in range(400):
        way, law = by_hand(tokens[row], valid[row], np.float32(p[row]).astype(float))
        assert int(verdict.num_accepted[row]) == len(way)
        assert np.asarray(verdict.path[row])[: len(way)].tolist() == way
        upto, token = np.cumsum(law), int(verdict.next_token[row])
        assert law[token] > 0 and upto[token] - law[token] - 1e-5 <= final[row] <= upto[token] + 1e-5
        lengths.add(len(way))
    assert lengths == {0, 1, 2, 3}


def test_greedy_it_is_the_one_hot_walk():
    """Node for node, whatever the coins."""
    rng, tokens, valid, final = cases(400, 1)
    right = rng.integers(0, V, (400, N))
    # Most trees have the right token somewhere.
    tokens[:, [1, 3, 6]] = np.where(rng.random((400, 3)) < 0.7, right[:, [0, 1, 3]], tokens[:, [1, 3, 6]])
    for node, sibling in ((1, 2), (3, 4), (6, 7)):
        tokens[:, sibling] = np.where(tokens[:, sibling] == tokens[:, node], V, tokens[:, sibling])
    p = np.eye(V, dtype=np.float32)[right]
    typical, walk = both(tokens, valid, p, rng.random((400, N), np.float32), final)
    for name in ("num_accepted", "path", "next_token"):
        np.testing.assert_array_equal(getattr(typical, name), getattr(walk, name))
    assert set(np.asarray(walk.num_accepted).tolist()) == {0, 1, 2, 3}


def test_its_output_is_not_the_targets_law():
    """Of the method that finds at most 1e-6 for the lossless rules."""
    rng, worst = np.random.default_rng(2), 0.0
    assert not Typical().lossless
    for _ in range(3):
        p, q = random_law(rng, 3, 3), random_law(rng, 3, 2)
        trees = enumerate_trees(np.array([-1, 0, 0, 1, 2]), p, q, likeliest, num_nodes=5)
        joint = tree_round_law(Typical(), p, trees, from_the_root)
        assert joint.sum() == pytest.approx(1)
        worst = max(worst, np.abs(joint - joint_law(p)).max())
    assert worst > 0.1


@pytest.mark.parametrize("field", [{"epsilon": 1.0}, {"delta": -0.1}, {"delta": 1.5}])
def test_bad_thresholds_are_refused(field):
    with pytest.raises(ValueError, match=next(iter(field))):
        Typical(**field)
