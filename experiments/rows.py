"""Cells as lines of ``results.jsonl``."""

from __future__ import annotations

from collections.abc import Sequence
import traceback
from typing import Any

from experiments import catalogue, models
from experiments.catalogue import LoadedDrafter
from experiments.cells import Cell, cell_id
from experiments.drafter_names import DrafterName
from experiments.plan import Plan
from experiments.runner import Agreement
from experiments.settings import PROCESSORS
from specjax.analysis.groups import by_group
from specjax.analysis.metrics import summarize
from specjax.analysis.records import Costs, PromptRecord
from specjax.sampling import GREEDY_BELOW

Row = dict[str, Any]

_SAMPLING = ("top_k", "top_p", "min_p", "lenience", "seed")
_RUN = ("batch_size", "max_new_tokens", "num_prompts", "dtype")


def identity(cell: Cell, plan: Plan) -> Row:
    """What a cell is: its point on the axes and the settings behind it."""
    settings = plan.settings
    target = plan.targets[cell.target].label
    name = DrafterName.parse(cell.drafter)
    draft = plan.draft_models.get(name.base)
    base = draft.label if draft else models.label_of(name.heads or name.base)
    drafter = ":".join(filter(None, (base, name.shape)))
    return {
        "cell_id": cell_id(cell, settings),
        "pair": target if cell.is_baseline else f"{target}+{drafter}",
        "target": target,
        "drafter": drafter,
        "target_identity": plan.targets[cell.target].identity,
        "drafter_identity": draft.identity if draft else "",
        "acceptance": cell.rule,
        "is_tree": cell.is_tree,
        "lossless": catalogue.RULES[cell.rule](settings).lossless,
        "gamma": cell.gamma,
        "temperature": cell.temperature,
        **{key: getattr(settings, key) for key in (*_SAMPLING, *PROCESSORS, *_RUN)},
        "mesh": list(settings.mesh),
        "prompts_hash": plan.prompts_hash,
        "category": plan.category,
    }


def is_comparable(cell: Cell) -> bool:
    """Whether a cell's tokens are plain decoding's by construction: greedy or coupled draws."""
    return cell.is_baseline or cell.temperature < GREEDY_BELOW or cell.rule == "coupled"


def finished_row(
    cell: Cell,
    plan: Plan,
    records: Sequence[PromptRecord],
    costs: Costs,
    *,
    agreements: Sequence[Agreement],
    compile_seconds: float,
    weights_hash: str,
    drafter: LoadedDrafter,
) -> Row:
    """The line of a cell that ended well.

    ``identical_to_baseline`` counts the decodes that gave plain decoding's
    tokens and ``divergence_margins`` lists the margins of the others, widest
    first; both None unless :func:`is_comparable`.
    """
    row = identity(cell, plan)
    row |= summarize(
        records,
        costs,
        is_tree=cell.is_tree,
        is_cascade=DrafterName.parse(cell.drafter).is_cascade,
    )
    comparable = is_comparable(cell)
    margins = sorted((each.margin for each in agreements if each.margin is not None), reverse=True)
    return row | {
        "by_group": by_group(records),
        "shape": [list(node) for node in drafter.shape],
        "rank_accuracies": None if drafter.rank_accuracies is None else drafter.rank_accuracies.tolist(),
        "identical_to_baseline": sum(each.identical for each in agreements) if comparable else None,
        "divergence_margins": margins if comparable else None,
        "num_decodes": len(records),
        "compile_seconds": compile_seconds,
        "costs": costs.to_dict(),
        "weights_hash": weights_hash,
        "status": "ok",
        "error": "",
    }


def failed_row(cell: Cell, plan: Plan, error: Exception) -> Row:
    """The line of a cell that raised: its identity, the error in one line, the traceback beside it."""
    first_line = (str(error).strip().splitlines() or [""])[0]
    return identity(cell, plan) | {
        "status": "failed",
        "error": f"{type(error).__name__}: {first_line}",
        "traceback": "".join(traceback.format_exception(error)),
    }
