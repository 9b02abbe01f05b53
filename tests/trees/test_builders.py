"""Shapes against brute force over all trees of small budgets."""

import itertools

import numpy as np
import pytest

from specjax.trees.builders import (
    best_budget,
    expected_tokens,
    fixed_branching,
    greedy_tree,
    optimal_tree,
)
from specjax.trees.topology import from_choices


def all_shapes(num_nodes, ranks, depth):
    """Every set of at most ``num_nodes - 1`` nodes closed under parents and earlier siblings."""
    shapes, frontier = {frozenset()}, {frozenset()}
    for _ in range(num_nodes - 1):
        frontier = {shape | {node} for shape in frontier for node in addable(shape, ranks, depth)}
        shapes |= frontier
    return shapes


def addable(shape, ranks, depth):
    for node in [(), *shape]:
        rank = sum(other[:-1] == node for other in shape)
        if len(node) < depth and rank < ranks:
            yield (*node, rank)


def best_by_force(accepted, num_nodes, depth):
    return max(expected_tokens(tuple(s), accepted) for s in all_shapes(num_nodes, len(accepted), depth))


@pytest.mark.parametrize(
    "accepted", [[0.6, 0.2, 0.1], [0.2, 0.5, 0.1], [0.05, 0.05, 0.85], [0.0, 0.5, 0.5], [1.0], [0.3, 0.0]]
)
def test_optimal_tree_is_the_best_of_all(accepted):
    """P_j that fall, rise and vanish; every budget up to 6 and depth up to 4."""
    for num_nodes, depth in itertools.product(range(1, 7), (0, 1, 2, 4)):
        shape = optimal_tree(accepted, num_nodes, depth)
        parent, rank = from_choices(shape)
        assert len(parent) <= num_nodes and all(len(node) <= depth for node in shape)
        for node in range(len(parent)):  # the j-th child presumes the ones before it
            assert sorted(rank[1:][parent[1:] == node]) == list(range(np.sum(parent[1:] == node)))
        best = best_by_force(accepted, num_nodes, depth)
        assert expected_tokens(shape, accepted) == pytest.approx(best, abs=1e-12)


def test_later_children_matter():
    """P_j that rise: the best tree is far from a chain, so the test above can fail."""
    accepted = [0.05, 0.05, 0.85]
    chain = ((0,), (0, 0), (0, 0, 0))
    assert expected_tokens(optimal_tree(accepted, 4), accepted) > expected_tokens(chain, accepted) + 0.5


def test_optimal_tree_at_a_real_size():
    """Falling P_j: the optimum is the N - 1 most valuable nodes, which greedy growth finds as well."""
    accepted = np.array([0.55, 0.15, 0.08, 0.05, 0.03])
    for num_nodes in (16, 64):
        optimal = expected_tokens(optimal_tree(accepted, num_nodes, 6), accepted)
        greedy = greedy_tree(np.tile(accepted, (6, 1)), num_nodes)
        assert len(greedy) == num_nodes - 1
        assert optimal == pytest.approx(expected_tokens(greedy, accepted), abs=1e-12)


def test_greedy_tree_is_the_best_over_measured_ranks():
    """Each depth has its accuracies; ranks may be skipped, since each is a candidate of its own."""
    rng = np.random.default_rng(0)
    for _ in range(10):
        table = rng.dirichlet(np.ones(3), 2) * rng.uniform(0.3, 1, (2, 1))
        table = table[:, :2]
        nodes = fixed_branching((2, 2))
        for size in range(1, 6):
            shape = greedy_tree(table, size + 1)
            from_choices(shape)
            closed = (
                set(s) for s in itertools.combinations(nodes, size) if all(n[:-1] in s for n in s if n[:-1])
            )
            best = max(expected_tokens(tuple(s), table) for s in closed)
            assert expected_tokens(shape, table) == pytest.approx(best, abs=1e-12)


def test_fixed_branching():
    shape = fixed_branching((3, 2, 1))
    assert len(shape) == 3 + 6 + 6
    assert np.bincount(from_choices(shape)[0][1:]).tolist() == [3, 2, 2, 2] + [1] * 6
    assert fixed_branching(()) == ()


def test_best_budget_follows_the_hardware():
    accepted = [0.6, 0.2, 0.1]
    free = best_budget(accepted, np.ones(16), draft_cost=0.0, max_depth=6)
    assert free.num_nodes == 16 and free.speedup == pytest.approx(free.tau)
    assert free.tau == pytest.approx(expected_tokens(optimal_tree(accepted, 16, 6), accepted))
    linear = best_budget(accepted, np.arange(1, 17), draft_cost=0.1, max_depth=6)
    assert (linear.num_nodes, linear.max_depth, linear.speedup) == (1, 0, 1.0)
    costs = 1 + 0.08 * np.arange(16)
    found = best_budget(accepted, costs, draft_cost=0.05, max_depth=6)
    every = [
        expected_tokens(optimal_tree(accepted, n, d), accepted) / (costs[n - 1] + 0.05 * d)
        for n, d in itertools.product(range(1, 17), range(7))
    ]
    assert found.speedup == pytest.approx(max(every), abs=1e-12)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: fixed_branching((2, 0)), r"branching\[1\] must be at least 1, got 0"),
        (lambda: greedy_tree([[0.5, 1.5]], 4), r"rank_accuracies must lie in \[0, 1\], got 1.5"),
        (lambda: greedy_tree([0.5], 4), r"2 dimension"),
        (lambda: greedy_tree([[0.5]], 0), r"num_nodes counts the root"),
        (lambda: optimal_tree([0.7, 0.7], 4), r"sums to 1.4"),
        (lambda: optimal_tree([float("nan")], 4), r"must lie in"),
        (lambda: optimal_tree([0.5], 4, -1), r"max_depth must be at least 0"),
        (lambda: best_budget([0.5], [1, 0], 0.1, 2), r"step_cost must be"),
        (lambda: best_budget([0.5], [1, 2], -0.1, 2), r"draft_cost must be at least 0"),
    ],
)
def test_impossible_settings_are_refused(build, words):
    with pytest.raises(ValueError, match=words):
        build()
