"""Trees as arrays: masks, depths and paths by hand, and what is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.trees.topology import chain_tree, check_parents, check_tree, from_choices, make_tree, path_to

HAND = np.array([-1, 0, 0, 1, 1, 2])


def test_a_tree_by_hand():
    tree = make_tree(np.arange(6), HAND, max_depth=2)
    assert tree.parent.tolist() == [0, 0, 0, 1, 1, 2]
    assert tree.depth.tolist() == [0, 1, 1, 2, 2, 2]
    seen = [set(np.flatnonzero(row).tolist()) for row in np.asarray(tree.ancestors)]
    assert seen == [{0}, {0, 1}, {0, 2}, {0, 1, 3}, {0, 1, 4}, {0, 2, 5}]
    assert [path_to(tree, node).tolist() for node in (0, 2, 4, 5)] == [[0, 0], [2, 0], [1, 4], [2, 5]]
    check_tree(tree)


@pytest.mark.parametrize("parent", [[-1], [-1, 0, 0, 0, 0, 0], [-1, 0, 1, 2, 3], [0, 0, 1, 0, 3, 3, 4]])
def test_ancestors_are_found_by_following_parents(parent):
    parent = np.array(parent)
    tree = make_tree(np.zeros(len(parent)), parent, max_depth=4)
    for node in range(len(parent)):
        path = [node]
        while path[-1]:
            path.append(parent[path[-1]])
        assert set(np.flatnonzero(tree.ancestors[node]).tolist()) == {*path, 0}
        assert tree.depth[node] == len(set(path)) - 1


def test_rows_of_a_batch_have_trees_of_their_own():
    """Traced, so unchecked; each row as if alone, and nodes that are not valid are seen by none."""
    parents = np.array([[-1, 0, 0, 1], [-1, 0, 1, 2], [-1, 0, 0, 0]])
    valid = np.array([[True] * 4, [True] * 4, [True, True, False, True]])
    build = lambda tokens, parent, valid: make_tree(tokens, parent, max_depth=3, valid=valid)
    batch = jax.jit(jax.vmap(build))(np.zeros((3, 4), int), parents, valid)
    for row in range(3):
        alone = make_tree(np.zeros(4, int), parents[row], max_depth=3, valid=valid[row])
        jax.tree.map(np.testing.assert_array_equal, jax.tree.map(lambda x: x[row], batch), alone)
    assert not np.asarray(batch.ancestors[2])[[0, 1, 3], 2].any() and batch.ancestors[2][2].tolist() == [
        False,
        False,
        True,
        False,
    ]


def test_a_chain_is_the_special_case():
    tree = chain_tree(jnp.arange(5), jnp.int32(3))
    assert tree.depth.tolist() == [0, 1, 2, 3, 0] and tree.valid.tolist() == [True] * 4 + [False]
    np.testing.assert_array_equal(tree.ancestors[:4, :4], np.tri(4, dtype=bool))
    assert path_to(tree, 3).tolist() == [1, 2, 3, 0]
    assert chain_tree(jnp.arange(1), jnp.int32(0)).max_depth == 0


def test_choices_become_nodes_with_parents_first():
    parent, rank = from_choices([(1,), (0, 2), (0,), (0, 0), (1, 1), (0, 0, 0)])
    assert parent.tolist() == [-1, 0, 0, 1, 1, 2, 3] and rank.tolist() == [0, 0, 1, 0, 2, 1, 0]
    assert [x.tolist() for x in from_choices([])] == [[-1], [0]]


@pytest.mark.parametrize(
    ("parent", "words"),
    [
        ([-1, 2, 1], r"cycle: 1 -> 2 -> 1"),
        ([-1, 1], r"cycle: 1 -> 1"),
        ([-1, 3, 0, 0], r"node 1 comes before its parent 3"),
        ([-1, 0, -1], r"node 2 is a second root"),
        ([1, 0], r"node 0 must be the root"),
        ([-1, 0, 7], r"node 2 has parent 7; nodes are 0..2"),
        ([-1, 0, 1, 2, 3], r"node 4 has depth 4; max_depth is 3"),
        ([], r"N >= 1"),
    ],
)
def test_what_is_no_tree_is_refused(parent, words):
    with pytest.raises(ValueError, match=words):
        make_tree(np.zeros(len(parent)), np.array(parent), max_depth=3)


def test_budgets_and_orphans_are_refused():
    check_parents(HAND, max_depth=2, budget=6)
    with pytest.raises(ValueError, match="6 nodes, its root included; the budget is 5"):
        check_parents(HAND, max_depth=2, budget=5)
    orphan = np.array([True, False, True, True, False, True])
    with pytest.raises(ValueError, match="node 3 is valid, its parent 1 is not"):
        check_parents(HAND, max_depth=2, valid=orphan)
    with pytest.raises(ValueError, match="valid has shape"):
        check_parents(HAND, max_depth=2, valid=orphan[:3])


def test_arrays_that_disagree_are_refused():
    tree = make_tree(np.arange(6), HAND, max_depth=2)
    with pytest.raises(ValueError, match=r"depth\[3\] is 1, by its parents 2"):
        check_tree(dataclasses.replace(tree, depth=tree.depth.at[3].set(1)))
    with pytest.raises(ValueError, match=r"ancestors\[5\]"):
        check_tree(dataclasses.replace(tree, ancestors=tree.ancestors.at[5, 1].set(True)))


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ([(0, 0)], r"\(0, 0\) lies below \(0,\), which is not among"),
        ([(0,), (0,)], r"listed twice"),
        ([()], r"the root, never listed"),
        ([(-1,)], r"negative rank"),
    ],
)
def test_choices_of_no_tree_are_refused(choices, words):
    with pytest.raises(ValueError, match=words):
        from_choices(choices)
