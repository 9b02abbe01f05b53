"""Which shape a tree of a sweep has: fixed, by rank accuracies, or the best for measured children."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from experiments import runner
from experiments.catalogue import LoadedDrafter
from experiments.cells import Cell
from experiments.drafter_names import STATIC, DrafterName
from experiments.models import LoadedModel
from experiments.plan import Plan
from experiments.rules import RULES
from specjax.trees import builders
from specjax.trees.topology import Choices, from_choices

# What the j-th child is guessed to be accepted with, before it is measured: a wide tree that shows them all.
FIRST_GUESS = (0.45, 0.15, 0.09, 0.06, 0.04, 0.03, 0.02, 0.02)


def shaped(
    cell: Cell, plan: Plan, target: LoadedModel, drafter: LoadedDrafter, sizes: Mapping[str, int]
) -> LoadedDrafter:
    """``drafter`` with the tree of a cell, whose programs have buffers of ``sizes``.

    An optimal shape is measured: the plan's calibration prompts are decoded
    with a first shape of the same size, under the cell's rule and temperature.
    """
    settings, rule = plan.settings, RULES[cell.rule](plan.settings)

    def accepted_nodes(shape: Choices) -> np.ndarray:
        grown = drafter.shaped(shape, cell.temperature)
        program = runner.make_program(target, grown, rule, cell.gamma, **sizes)
        counts = np.zeros(cell.gamma + 1)
        for batch in runner.make_batches(plan.calibration_ids[cell.target], settings.batch_size):
            request = runner.request_for(batch, settings, cell.temperature, target.stop_tokens)
            timed = runner.decode_timed(program, (target.params, drafter.params), batch, request)
            counts += timed.state.statistics.accepted_nodes[:, : cell.gamma + 1].sum(axis=0)
        return counts

    shape = choose(DrafterName.parse(cell.drafter), cell.gamma, drafter.rank_accuracies, accepted_nodes)
    return drafter.shaped(shape, cell.temperature)


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
    accuracies = np.tile(FIRST_GUESS, (gamma, 1)) if rank_accuracies is None else rank_accuracies
    shape = builders.greedy_tree(accuracies, gamma + 1)
    if name.shape != STATIC and len(shape) == gamma:
        children = child_acceptance(shape, decode(shape))
        shape = builders.optimal_tree(children, gamma + 1, max_depth=len(accuracies))
    if len(shape) < gamma:
        raise ValueError(
            f"config.gammas: {name.base}:{name.shape} has {len(shape)} nodes to draft, not {gamma}; "
            f"nearest gamma is {len(shape)}"
        )
    return shape


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
