"""Shapes of trees, chosen before a token is drafted: which shape is a matter of speed, never of law.

A shape is a tuple of nodes, each the ranks of its tokens on the way down from
the root, which itself is not listed; ``topology.from_choices`` makes arrays of
it. Budgets count the root, as a target step does: N nodes are N tokens scored.
All in float64 numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import heapq
import itertools

import numpy as np
from numpy.typing import ArrayLike

from specjax.trees.topology import Choices

Float = np.ndarray


def fixed_branching(branching: Sequence[int]) -> Choices:
    """Each node of depth i has ``branching[i]`` children (Jeon et al. 2024, 2402.14160, RSD-C).

    >>> fixed_branching((2, 1))
    ((0,), (1,), (0, 0), (1, 0))

    Raises ValueError for a branching below 1.
    """
    for depth, width in enumerate(branching):
        if width < 1:
            raise ValueError(f"branching[{depth}] must be at least 1, got {width}")
    levels = [itertools.product(*map(range, branching[:depth])) for depth in range(1, len(branching) + 1)]
    return tuple(itertools.chain.from_iterable(levels))


def greedy_tree(rank_accuracies: ArrayLike, num_nodes: int) -> Choices:
    """Medusa's static tree: grown by the likeliest node, one at a time (Cai et al. 2024, 2401.10774, 2.3.3).

    Args:
      rank_accuracies: [D, K]; entry [i, k] is the measured probability that the
        candidate of rank k at depth i + 1 is right. A node is worth the product
        along its path, as if depths were independent.
      num_nodes: the budget, root included.

    Of all trees of that size over these ranks it has the largest sum of node
    values, since no node is worth more than its parent. Ties go to the
    shallower node, then to the lower rank.

    >>> greedy_tree([[0.6, 0.2], [0.5, 0.3]], num_nodes=4)
    ((0,), (1,), (0, 0))

    Raises ValueError for accuracies outside of [0, 1] or an impossible budget.
    """
    accuracies = _probabilities("rank_accuracies", rank_accuracies, ndim=2)
    _check_budget(num_nodes)
    depth, ranks = accuracies.shape
    frontier: list[tuple[float, int, tuple[int, ...]]] = []  # (-value, depth, node)

    def expand(node: tuple[int, ...], value: float) -> None:
        if len(node) < depth:
            for rank in range(ranks):
                child = (*node, rank)
                heapq.heappush(frontier, (-value * accuracies[len(node), rank], len(child), child))

    nodes: list[tuple[int, ...]] = []
    expand((), 1.0)
    while frontier and len(nodes) < num_nodes - 1:
        value, _, node = heapq.heappop(frontier)
        nodes.append(node)
        expand(node, -value)
    return tuple(sorted(nodes, key=lambda node: (len(node), node)))


def optimal_tree(child_acceptance: ArrayLike, num_nodes: int, max_depth: int | None = None) -> Choices:
    """Sequoia's tree, of at most ``num_nodes`` nodes the one that emits most (Chen et al. 2024, 2402.12374).

    Args:
      child_acceptance: [K]; P_j, the measured probability that of a node's
        children the j-th is the one accepted, under the rule in use. Sums to
        at most 1. It need not fall with j.
      num_nodes: the budget, root included.
      max_depth: no node lies deeper; each level costs a draft step.

    Dynamic programming over budgets (section 3.1, proposition 3.3): c(n) =
    1 + max over n_1 + ... + n_k = n - 1 of sum_j P_j c(n_j). O(D K N^2).

    >>> optimal_tree([0.6, 0.3], num_nodes=5)
    ((0,), (1,), (0, 0), (0, 0, 0))

    Raises ValueError for P_j that are no probabilities or an impossible budget.
    """
    table = _Sequoia.solve(child_acceptance, num_nodes, max_depth)
    return tuple(sorted(table.nodes(table.max_depth, num_nodes), key=lambda node: (len(node), node)))


def expected_tokens(choices: Choices, child_acceptance: ArrayLike) -> float:
    """tau of a shape, root included: the sum over nodes of the product of P_j on the way to them.

    ``child_acceptance`` is [K], the same for every depth, or [D, K].

    >>> round(expected_tokens(((0,), (1,), (0, 0)), [0.6, 0.3]), 3)
    2.26
    """
    accepted = np.asarray(child_acceptance, np.float64)
    at_depth = lambda depth: accepted if accepted.ndim == 1 else accepted[depth]
    return 1.0 + sum(float(np.prod([at_depth(i)[j] for i, j in enumerate(node)])) for node in choices)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """A size of tree and what it is expected to gain over plain decoding."""

    num_nodes: int
    max_depth: int
    tau: float
    speedup: float


def best_budget(
    child_acceptance: ArrayLike, step_cost: ArrayLike, draft_cost: float, max_depth: int
) -> Budget:
    """The (nodes, depth) of the optimal tree that decodes fastest on this hardware (Sequoia, section 3.3).

    Args:
      child_acceptance: [K], as for :func:`optimal_tree`.
      step_cost: [N]; v(T) for T = 1..N, the measured cost of a T-token target
        step over that of a one-token step.
      draft_cost: c, the cost of drafting one level over a one-token target step.
      max_depth: the deepest tree to consider; 0 is plain decoding.

    Maximises c(n, d) / (v(n) + d * c). Ties go to the smaller tree.

    >>> best_budget([0.6, 0.3], step_cost=[1, 1.1, 1.2, 1.5, 2.2], draft_cost=0.1, max_depth=3).num_nodes
    3

    Raises ValueError for costs that are not positive (``draft_cost`` may be 0).
    """
    costs = np.asarray(step_cost, np.float64)
    if costs.ndim != 1 or not len(costs) or not np.all(costs > 0) or not np.all(np.isfinite(costs)):
        raise ValueError(f"step_cost must be v(1), v(2), ... > 0, got {step_cost!r}")
    if not draft_cost >= 0:
        raise ValueError(f"draft_cost must be at least 0, got {draft_cost}")
    table = _Sequoia.solve(child_acceptance, len(costs), max_depth)
    sizes = np.arange(1, len(costs) + 1)
    speedups = table.tokens[:, 1:] / (costs + draft_cost * np.arange(max_depth + 1)[:, None])
    size, depth = max(
        itertools.product(sizes, range(max_depth + 1)), key=lambda at: speedups[at[1], at[0] - 1]
    )
    return Budget(
        num_nodes=int(size),
        max_depth=depth,
        tau=float(table.tokens[depth, size]),
        speedup=float(speedups[depth, size - 1]),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Sequoia:
    """The tables of the dynamic programme, for trees of depth 0..D and 0..N nodes."""

    tokens: Float  # [D+1, N+1]: c(n, d), the most tokens of at most n nodes; 0 for none
    # [D+1, K, N+1]: nodes given to child j, if children j, j + 1, ... share n nodes; 0 ends the list
    share: np.ndarray

    @property
    def max_depth(self) -> int:
        return len(self.tokens) - 1

    @classmethod
    def solve(cls, child_acceptance: ArrayLike, num_nodes: int, max_depth: int | None) -> _Sequoia:
        accepted = _probabilities("child_acceptance", child_acceptance, ndim=1)
        if accepted.sum() > 1 + 1e-9:
            raise ValueError(
                f"child_acceptance sums to {accepted.sum():.4g}, but at most one child is accepted"
            )
        _check_budget(num_nodes)
        if max_depth is not None and max_depth < 0:
            raise ValueError(f"max_depth must be at least 0, got {max_depth}")
        depth = num_nodes - 1 if max_depth is None else max_depth

        tokens = np.tile(np.minimum(np.arange(num_nodes + 1), 1.0), (depth + 1, 1))
        share = np.zeros((depth + 1, len(accepted), num_nodes + 1), int)
        for d in range(1, depth + 1):
            best = np.zeros(num_nodes + 1)  # of children j, j + 1, ..., by the nodes they share
            for j in reversed(range(len(accepted))):
                later, best = best, np.zeros(num_nodes + 1)
                for n in range(1, num_nodes + 1):
                    given = np.arange(1, n + 1)
                    value = accepted[j] * tokens[d - 1, given] + later[n - given]
                    share[d, j, n] = given[np.argmax(value)] if value.max() > 0 else 0
                    best[n] = value.max()
            tokens[d, 1:] = 1 + best[:-1]
        return cls(tokens=tokens, share=share)

    def nodes(self, depth: int, num_nodes: int, above: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
        """The nodes below ``above`` of the best tree of ``num_nodes``, that node included."""
        left, below = num_nodes - 1, []
        for rank in range(self.share.shape[1]):
            given = int(self.share[depth, rank, left])
            if not given:
                break
            child = (*above, rank)
            below += [child, *self.nodes(depth - 1, given, child)]
            left -= given
        return below


def _probabilities(name: str, values: ArrayLike, *, ndim: int) -> Float:
    """``values`` as float64, each in [0, 1]."""
    array = np.asarray(values, np.float64)
    if array.ndim != ndim or not array.size:
        raise ValueError(f"{name} must have {ndim} dimension(s) and entries, got shape {array.shape}")
    if not np.all((array >= 0) & (array <= 1)):
        bad = array[~((array >= 0) & (array <= 1))][0]
        raise ValueError(f"{name} must lie in [0, 1], got {bad}")
    return array


def _check_budget(num_nodes: int) -> None:
    if num_nodes < 1:
        raise ValueError(f"num_nodes counts the root and must be at least 1, got {num_nodes}")
