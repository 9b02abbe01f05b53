"""Which shape a tree of a sweep has: fixed, by rank accuracies, or the best for measured children."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from experiments.drafter_names import STATIC, DrafterName
from specjax.trees import builders
from specjax.trees.topology import Choices, from_choices

# What the j-th child is guessed to be accepted with, before it is measured: a wide tree that shows them all.
FIRST_GUESS = (0.45, 0.15, 0.09, 0.06, 0.04, 0.03, 0.02, 0.02)


def choose(
    name: DrafterName,
    gamma: int,
    rank_accuracies: np.ndarray | None,
    decode: Callable[[Choices], np.ndarray],
) -> Choices:
    """The nodes of a tree of ``gamma`` drafted ones.

    Args:
      name: which kind of shape.
      gamma: N - 1.
      rank_accuracies: [D, K] of heads, on text held out from their training;
        None for a draft model, which has no last depth.
      decode: decodes prompts that are not the sweep's with a tree of some
        shape and returns accepted_nodes [N]. Called for an optimal shape alone.

    Raises ValueError if there are fewer nodes to grow than ``gamma``.
    """
    if name.branching:
        return builders.fixed_branching(name.branching)
    accuracies = _guessed(gamma) if rank_accuracies is None else rank_accuracies
    shape = grown(name, gamma, accuracies)
    if name.shape == STATIC:
        return shape
    children = child_acceptance(shape, decode(shape))
    return builders.optimal_tree(children, gamma + 1, max_depth=len(accuracies))


def grown(name: DrafterName, gamma: int, rank_accuracies: np.ndarray) -> Choices:
    """The ``gamma`` likeliest nodes by ``rank_accuracies`` [D, K]; ValueError where there are fewer."""
    shape = builders.greedy_tree(rank_accuracies, gamma + 1)
    if len(shape) < gamma:
        raise ValueError(
            f"config.gammas: {name.base}:{name.shape} has {len(shape)} nodes to draft, not {gamma}; "
            f"nearest gamma is {len(shape)}"
        )
    return shape


def _guessed(gamma: int) -> np.ndarray:
    """[gamma, K] rank accuracies of a draft model."""
    return np.tile(FIRST_GUESS, (gamma, 1))


def child_acceptance(choices: Choices, accepted_nodes: np.ndarray) -> np.ndarray:
    """P_j [K]: how often, of all visits to a node with a j-th child, that child was the one accepted.

    ``accepted_nodes`` [N] counts rounds by node, the root first. As if each
    rank had been visited once more, with chances 1/2, 1/4, ..., so that none
    is ruled out by a few visits. Sums to at most 1, as ``builders.optimal_tree``
    needs it: over nodes that differ in their ranks a sum above 1 is scaled back.

    >>> child_acceptance(((0,), (1,), (0, 0)), np.array([10, 6, 2, 3])).round(3).tolist()
    [0.559, 0.205]
    """
    parent, rank = from_choices(choices)
    ranks = range(rank[1:].max() + 1)
    of_rank = [np.flatnonzero((rank == j) & (parent >= 0)) for j in ranks]
    visits = np.array([accepted_nodes[parent[nodes]].sum() for nodes in of_rank], float)
    taken = np.array([accepted_nodes[nodes].sum() for nodes in of_rank], float)
    accepted = (taken + 0.5 ** (np.arange(len(taken)) + 1)) / (visits + 1)
    return accepted / max(1.0, accepted.sum())
