"""Acceptance and speed by group of prompts (``PromptRecord.category``), in the pooled definitions."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specjax.analysis import cells, metrics
from specjax.analysis.cells import Row
from specjax.analysis.intervals import bootstrap
from specjax.analysis.records import PromptRecord
from specjax.analysis.totals import by_unit, resample

ESTIMATES = ("alpha_accept", "alpha_overlap", "tau", "speedup")


def by_group(records: Sequence[PromptRecord], *, seed: int = 0) -> dict[str, Row]:
    """The estimates of each group, with their intervals; empty if all prompts are of one group.

    A group has the fields ``num_prompts``, ``num_tokens`` and those of
    ``ESTIMATES``, each with its ``_ci``, over the group's own prompts (at
    batch sizes above 1 over the batches they were in). ``speedup`` is None
    where a batch of the group held rows of another: its time is of both.

    Args:
      records: all decodes of a cell, repeats included.
      seed: of the bootstrap.
    """
    names = sorted({record.category for record in records})
    if len(names) < 2:
        return {}
    lines = {}
    for name in names:
        group = [record for record in records if record.category == name]
        lines[name] = _estimates(group, seed)
        others = {record.batch for record in records if record.category != name}
        if others & {record.batch for record in group}:
            lines[name] |= {"speedup": None, "speedup_ci": None}
    return lines


def _estimates(records: Sequence[PromptRecord], seed: int) -> Row:
    units = by_unit(records)

    def estimate(index: NDArray[np.int64]) -> NDArray[np.float64]:
        sums = resample(units, index)
        return np.stack([metrics.MEASURED[name](sums) for name in ESTIMATES])

    sizes = (len(units.rounds),)
    counts: dict[str, Any] = {
        "num_prompts": len({record.prompt for record in records}),
        "num_tokens": int(units.num_tokens.sum()),
    }
    points, intervals = estimate(np.arange(*sizes)), bootstrap(estimate, sizes, seed=seed)
    return counts | metrics.fields(ESTIMATES, points, intervals)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupTable:
    """Drafters against groups at one temperature, each drafter at its best gamma."""

    temperature: float
    groups: dict[str, int]  # name -> prompts
    lines: dict[str, Row]  # label of the drafter -> its cell with the largest pooled speedup


def group_tables(rows: Sequence[Row]) -> list[GroupTable]:
    """One table a temperature, coolest first; none where prompts are of one group."""
    best: dict[float, dict[str, Row]] = {}
    for name, drafter in cells.by_drafter(rows).items():
        grouped = [row for row in drafter if row.get("by_group")]
        for temperature, lines in cells.by_temperature(grouped).items():
            fastest = max(lines, key=lambda line: line["speedup"] or 0.0)
            best.setdefault(temperature, {})[name] = fastest
    return [
        GroupTable(temperature=temperature, groups=_groups(best[temperature]), lines=best[temperature])
        for temperature in sorted(best)
    ]


def _groups(lines: dict[str, Row]) -> dict[str, int]:
    groups = {name: group["num_prompts"] for row in lines.values() for name, group in row["by_group"].items()}
    return dict(sorted(groups.items()))
