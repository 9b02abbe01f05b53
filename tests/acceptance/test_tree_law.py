"""The exact law of one round over trees, and of several: the proof that the tree rules are lossless.

Every number here is the law of the compiled float32 kernels over all values
of their uniforms, so the tolerance covers float32 rounding and nothing else.
"""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.acceptance import OneHotWalk, RecursiveRejection, Rejection, SpecInfer, Traversal
from specjax.acceptance.chain import Coins
from specjax.testing import tree_controls
from specjax.testing.law import GRID, draw_law, joint_law, random_law
from specjax.testing.rounds import rounds_law
from specjax.testing.tree_drafts import enumerate_trees, likeliest, with_replacement, without_replacement
from specjax.testing.tree_law import (
    OnChain,
    end_of,
    from_the_leaves,
    from_the_root,
    post_order,
    tree_outcomes,
    tree_round_law,
    walk_law,
)
from specjax.trees.contracts import TreeProposal
from specjax.trees.topology import make_tree

TOLERANCE = 1e-6
V, N, D = 3, 11, 3  # one shape, so that each rule is compiled once
FEWEST_TREES, MOST_TREES = 64, 256  # of one table
SAMPLED = [
    (RecursiveRejection(), without_replacement, from_the_root),
    (SpecInfer(), with_replacement, from_the_root),
    (Traversal(), without_replacement, from_the_leaves),
]
BY_NAME = {"ids": lambda value: type(value).__name__ if hasattr(value, "lossless") else ""}
WIDEST = np.array([-1, 0, 0, 1, 1, 2, 2, 3, 4, 5, 6])  # 7 internal nodes on 3 levels
PAIRS = np.array([-1, 0, 0, 1, 1, 2])


def random_parent(rng):
    """A ragged shape of 2 to 3 levels, width 1 to 3, of at most 7 internal nodes."""
    levels = rng.integers(2, D + 1)
    parent, depth = [-1], [0]
    for node in itertools.count():
        if node == len(parent):
            break
        if depth[node] < levels and (node in (0, 1) or rng.random() < 0.6):
            room = min(rng.integers(1, 4), N - len(parent))
            parent += [node] * room
            depth += [depth[node] + 1] * room
    return np.array(parent) if len(set(parent)) <= 8 else random_parent(rng)


def count_trees(parent, q, children):
    """How many trees :func:`enumerate_trees` would make."""

    @functools.cache
    def below(node, context):
        nodes = [c for c in range(1, len(parent)) if parent[c] == node]
        if not nodes:
            return 1
        return sum(
            math.prod(below(c, (*context, token)) for c, token in zip(nodes, siblings, strict=False))
            for siblings in children(q[len(context)][context], len(nodes))
        )

    return below(0, ())


def tables(seed, children, parents):
    """(parent, p, q) for each of ``parents``: laws drawn until neither too many nor too few trees are."""
    rng = np.random.default_rng(seed)
    for index, parent in enumerate(parents):
        for attempt in itertools.count():
            zeros = min(0.15 * (index % 3) + 0.05 * attempt, 0.8)
            p, q = random_law(rng, V, D + 1, 0.15 * (index % 3)), random_law(rng, V, D, zeros)
            if (len(parent) > 8) * FEWEST_TREES <= count_trees(parent, q, children) <= MOST_TREES:
                yield parent, p, q
                break


def error(rule, p, q, parent, children, ends):
    trees = enumerate_trees(parent, p, q, children, num_nodes=N)
    assert trees.weights.sum() == pytest.approx(1)
    return np.abs(tree_round_law(rule, p, trees, ends) - joint_law(p)).max()


def test_shapes_cover_what_they_should():
    rng = np.random.default_rng(0)
    shapes = [random_parent(rng) for _ in range(11)] + [WIDEST]
    internal = [len(set(shape.tolist()) - {-1}) for shape in shapes]
    widths = [np.bincount(shape[1:]).max() for shape in shapes]
    assert max(internal) == 7 and min(internal) <= 3 and {2, 3} <= set(widths)


@pytest.mark.parametrize(("rule", "children", "ends"), SAMPLED, **BY_NAME)
def test_output_law_is_the_targets(rule, children, ends):
    """Every draft of random trees; zeros in p and q exhaust supports, so that nodes stay undrawn."""
    rng = np.random.default_rng(0)
    parents = [random_parent(rng) for _ in range(11)] + [WIDEST]
    for parent, p, q in tables(1, children, parents):
        assert error(rule, p, q, parent, children, ends) <= TOLERANCE


@pytest.mark.parametrize(("rule", "children", "ends"), SAMPLED, **BY_NAME)
def test_one_node_after_the_other(rule, children, ends):
    """A node alone, its children drawn in every way: what a recursive rule's proof rests on."""
    for width in (1, 2, 3):
        star = np.array([-1] + [0] * width)
        for parent, p, q in tables(width, children, [star] * 6):
            assert error(rule, p, q, parent, children, ends) <= TOLERANCE


@pytest.mark.parametrize(("rule", "children", "ends"), SAMPLED[:2], **BY_NAME)
def test_nodes_of_a_large_tree_decide_as_they_would_alone(rule, children, ends):
    """The other half of that proof: a threshold knows its siblings and no more of the tree."""
    rng, compared = np.random.default_rng(5), 0

    def any_one(row, width):
        return {tuple(rng.permutation(sorted(children(row, width)))[0].tolist()): 1.0}

    for _ in range(4):
        p, q = random_law(rng, V, D + 1), random_law(rng, V, D)
        trees = enumerate_trees(WIDEST, p, q, any_one, num_nodes=N)
        whole = tree_outcomes(rule, trees).thresholds
        seen_below = np.asarray(make_tree(trees.tokens[0], WIDEST, max_depth=D).ancestors)
        reached = ends(trees.parent, whole)[0] @ seen_below > 0
        for node in sorted(set(WIDEST[1:][reached[WIDEST[1:]]].tolist())):
            nodes, path = np.flatnonzero(node == WIDEST), trees.path(0, node)
            local_p, local_q = [p[len(path)][path], *p[1:]], [q[len(path)][path], *q[1:]]
            siblings = {tuple(trees.tokens[0, nodes].tolist()): 1.0}
            star = np.array([-1] + [0] * len(nodes))
            alone = enumerate_trees(star, local_p, local_q, lambda row, width: siblings, num_nodes=N)
            thresholds = tree_outcomes(rule, alone).thresholds[0, 1 : len(nodes) + 1]
            np.testing.assert_array_equal(thresholds, whole[0, nodes])
            compared += 1
    assert compared >= 12


def random_trees(seed, children, count):
    """``count`` of the trees of one random shape."""
    rng = np.random.default_rng(seed)
    parent, p, q = next(tables(seed, children, [PAIRS]))
    trees = enumerate_trees(parent, p, q, children, num_nodes=N)
    return trees, rng.integers(0, len(trees.weights), count), rng


@pytest.mark.parametrize(("rule", "children", "ends"), SAMPLED, **BY_NAME)
def test_thresholds_predict_every_verdict(rule, children, ends):
    """The method itself: what random coins do is what the bisected thresholds say, without exception."""
    trees, rows, rng = random_trees(3, children, 2000)
    coins = (rng.integers(0, GRID, (2000, N)) / GRID).astype(np.float32)
    seen = np.asarray(judge_all(rule, trees, rows, coins))
    high = coins >= tree_outcomes(rule, trees).thresholds[rows]
    order = post_order(trees.parent[: len(PAIRS)]) if ends is from_the_leaves else None
    for row, is_high, end in zip(rows, high, seen):
        low = ~is_high & trees.valid[row]
        if order:
            expected = next(node for node in order if low[node] or node == 0)
        else:
            expected = 0
            for node in range(1, len(PAIRS)):
                expected = node if trees.parent[node] == expected and low[node] else expected
        assert end == expected
    assert len(set(seen.tolist())) >= 4


def judge_all(rule, trees, rows, coins):
    """Where the paths of ``trees[rows]`` end."""

    @jax.jit
    @jax.vmap
    def judge(tokens, valid, probs, target_probs, accept):
        tree = make_tree(tokens, jnp.asarray(trees.parent), max_depth=trees.max_depth, valid=valid)
        coins = Coins(accept=accept, final=jnp.float32(0.5))
        return end_of(rule.accept(coins, TreeProposal(tree=tree, probs=probs), target_probs))

    return judge(trees.tokens[rows], trees.valid[rows], trees.probs[rows], trees.target_probs[rows], coins)


# --- the one-hot walk: lossless for each tree alone --------------------------------------


def test_walk_is_lossless_for_any_tree():
    """Random tokens, twins among siblings with subtrees of their own."""
    rng = np.random.default_rng(2)
    for parent in [*(random_parent(rng) for _ in range(5)), WIDEST, np.array([-1]), np.arange(-1, D)]:
        p, q = random_law(rng, V, D + 1, 0.2), random_law(rng, V, D)
        anything = lambda q, width: {tuple(rng.integers(0, V, width).tolist()): 1.0}
        trees = enumerate_trees(parent, p, q, anything, num_nodes=N)
        assert np.abs(walk_law(OneHotWalk(), p, trees) - joint_law(p)).max() <= TOLERANCE


FIXED_FIRST = [likeliest, tree_controls.sorted_siblings, tree_controls.deduplicated, tree_controls.reranked]


@pytest.mark.parametrize("children", FIXED_FIRST)
def test_walk_is_lossless_where_the_draft_law_is_lost(children):
    _, p, q = next(tables(7, children, [PAIRS]))
    trees = enumerate_trees(PAIRS[:4], p, q, children, num_nodes=N)
    assert np.abs(walk_law(OneHotWalk(), p, trees) - joint_law(p)).max() <= TOLERANCE


def every_draw(rule, p, tree, entries):
    """The joint law [V, V, V] of the first tokens, p [V] at each node: the kernel asked for all draws.

    ``entries`` lists the entries of ``noise.accept`` that matter, each a draw.
    """
    size = len(tree.parent)
    widths = draw_law(Rejection(), p[None])[0]
    middles = (np.cumsum(widths) - widths / 2).astype(np.float32)
    draws = np.array(list(itertools.product(range(V), repeat=len(entries))))
    coins = np.zeros((len(draws), *(size,) * len(entries[0])), np.float32)
    coins[(slice(None), *np.array(entries).T)] = middles[draws]
    rows = jnp.tile(jnp.float32(p), (size, 1))

    def judge(accept):
        coins = Coins(accept=accept, final=jnp.float32(0))
        return rule.accept(coins, TreeProposal(tree=tree, probs=None), rows)

    verdicts, joint = jax.jit(jax.vmap(judge))(coins), np.zeros((V,) * 3)
    rest = [np.einsum("a,b->ab", p, p), p, np.ones(())]
    paths = np.asarray(tree.tokens)[verdicts.path]
    ends, tokens = np.asarray(verdicts.num_accepted), np.asarray(verdicts.next_token)
    for draw, n, path, token in zip(draws, ends, paths, tokens):
        joint[(*path[:n], token)] += np.prod(widths[draw]) * rest[n]
    return joint


def test_one_coin_per_path_is_caught():
    """Two paths share a node and draw at its parent on their own: the better one wins too often."""
    p = np.array([0.3, 0.5, 0.2])
    tree = make_tree(jnp.array([0, 1, 0, 2]), jnp.array([-1, 0, 1, 1]), max_depth=2)
    honest = every_draw(OneHotWalk(), p, tree, [(node,) for node in range(4)])
    np.testing.assert_allclose(honest, np.einsum("a,b,c->abc", p, p, p), atol=TOLERANCE)
    paths = [(2, 0), (2, 1), (2, 2), (3, 0), (3, 1), (3, 3)]
    faulty = every_draw(tree_controls.CoinPerPath(), p, tree, paths)
    assert faulty.sum((1, 2))[1] == pytest.approx(0.75, abs=1e-5)  # 1 - (1 - .5)^2, not .5


# --- what must be caught, and its honest twin ---------------------------------------------

FAULTS = {
    "siblings sorted by probability": (0, tree_controls.sorted_siblings, 0.05),
    "sorted, traversal": (2, tree_controls.sorted_siblings, 0.05),
    "duplicates removed, q kept": (1, tree_controls.deduplicated, 0.01),
    "top-k children, softmax q": (0, likeliest, 0.1),
    "top-k children, softmax q, SpecInfer": (1, likeliest, 0.1),
    "top-k children, softmax q, traversal": (2, likeliest, 0.1),
    "reranked, then p / q": (0, tree_controls.reranked, 0.05),
    "reranked, traversal": (2, tree_controls.reranked, 0.05),
    "drawn without replacement, SpecInfer": (1, without_replacement, 0.02),
}


def worst_error(rule, children, ends, count=3):
    rng = np.random.default_rng(9)
    cases = [(random_law(rng, V, D + 1), random_law(rng, V, D)) for _ in range(count)]
    return max(error(rule, p, q, PAIRS[:5], children, ends) for p, q in cases)


@pytest.mark.parametrize("fault", FAULTS)
def test_lossy_drafters_are_caught(fault):
    """Their honest twins are the draws of SAMPLED, and the walk above."""
    index, children, least = FAULTS[fault]
    rule, _, ends = SAMPLED[index]
    assert worst_error(rule, children, ends) > least


def test_a_draft_law_that_keeps_its_scale_is_caught():
    assert worst_error(tree_controls.StaleScale(), without_replacement, from_the_root) > 0.02


@pytest.mark.parametrize("children", [tree_controls.deduplicated, with_replacement])
@pytest.mark.parametrize("index", [0, 2], ids=["RecursiveRejection", "Traversal"])
def test_first_of_each_duplicate_is_a_draw_without_replacement(index, children):
    """Whether the others are taken away or left for the rule to pass over."""
    rule, _, ends = SAMPLED[index]
    assert worst_error(rule, children, ends, count=1) <= TOLERANCE


def test_position_keys_are_lossy_for_traversal():
    """Over several rounds, 3 tokens: error 0.065 with noise by position, none with noise by round."""
    p, q = np.array([0.3, 0.7]), np.array([0.7, 0.3])
    target = np.einsum("a,b,c->abc", p, p, p)
    off = lambda rule, by_position: np.abs(
        rounds_law(OnChain(rule=rule), p, q, gamma=2, length=3, by_position=by_position) - target
    ).max()
    assert off(Traversal(), False) <= TOLERANCE
    assert off(Traversal(), True) == pytest.approx(0.065, abs=0.001)
