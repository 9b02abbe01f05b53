"""A sweep's drafters with the trees of their cells, which may have to be measured first."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from experiments import runner
from experiments.catalogue import LoadedDrafter
from experiments.cells import Cell
from experiments.drafter_names import DrafterName
from experiments.models import LoadedModel
from experiments.plan import Plan
from experiments.rules import RULES
from experiments.shape_choice import choose
from specjax.trees.topology import Choices


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
