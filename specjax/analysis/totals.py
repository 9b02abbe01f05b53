"""Sums over records and medians over repeats: what the metrics are functions of."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specjax.analysis.records import Costs, PromptRecord

Float = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over records, or one row of them a sampling unit; [...] are leading dimensions."""

    num_tokens: Float  # [...]
    cut: Float  # [...]
    rounds: Float  # [...]
    catch_up_steps: Float  # [...]
    seconds: Float  # [...]
    prefill_seconds: Float  # [...]
    baseline_seconds: Float  # [...]
    baseline_tokens: Float  # [...]
    rounds_by_bucket: Float  # [..., number of buckets]
    rounds_by_drafted: Float  # [..., M+1]
    tested: Float  # [..., M]
    accepted: Float  # [..., M]
    overlap: Float  # [..., M]
    accepted_nodes: Float  # [..., M+1], or [..., 0] where nobody counted them


@dataclasses.dataclass(frozen=True, kw_only=True)
class CostRatios:
    """Costs in one-token target steps; [...] are leading dimensions."""

    c: Float  # [...]: a draft step
    d: Float  # [..., number of buckets]: d(bucket), a proposal
    v: Float  # [..., number of buckets]: v(bucket + 1), scoring it
    catch_up: Float  # [...]: a step of tokens that another drafter drafted (``ModelDrafter.catch_up``)


def pool(records: Sequence[PromptRecord]) -> Totals:
    """Sums over all records (no leading dimension)."""
    return _take(by_unit(records), lambda field: field.sum(0))


def by_unit(records: Sequence[PromptRecord]) -> Totals:
    """Sums within each sampling unit, [units, ...]: a prompt, or a batch of prompts, with its repeats."""
    if not records:
        raise ValueError("no records: a cell needs at least one decoded prompt")
    shapes = {(r.buckets, len(r.rounds_by_drafted)) for r in records}
    if len(shapes) > 1:
        raise ValueError(f"records of different programs: (buckets, M + 1) = {sorted(shapes)}")
    units = sorted({record.batch for record in records})
    row = np.array([units.index(record.batch) for record in records])

    def sums(name: str) -> Float:
        values = np.array([getattr(record, name) for record in records], np.float64)
        out = np.zeros((len(units), *values.shape[1:]))
        np.add.at(out, row, values)
        return out

    return Totals(**{field.name: sums(field.name) for field in dataclasses.fields(Totals)})


def _take(totals: Totals, function: Any) -> Totals:
    return Totals(**{key: function(value) for key, value in vars(totals).items()})


def resample(units: Totals, index: NDArray[np.int64]) -> Totals:
    """The sums of the units ``index`` [..., n] names, repetitions included: [...] leading dimensions."""
    num_units = len(units.rounds)
    flat = index.reshape(-1, index.shape[-1])
    cells = flat + num_units * np.arange(len(flat))[:, None]
    counts = np.bincount(cells.ravel(), minlength=num_units * len(flat)).reshape(*index.shape[:-1], num_units)
    return _take(units, lambda field: np.tensordot(counts.astype(np.float64), field, axes=1))


def cost_ratios(costs: Costs, index: NDArray[np.int64], buckets: Sequence[int]) -> CostRatios:
    """Medians over the repeats ``index`` [..., n] of every cost a round in ``buckets`` may have had.

    Raises:
      ValueError: a needed cost was not measured.
    """
    median = lambda repeats: np.median(np.asarray(repeats)[..., index], axis=-1)
    stack = lambda rows: np.moveaxis(median(rows), 0, -1)
    return CostRatios(
        c=median(costs.draft_ratio(max(buckets))),
        d=stack([costs.proposal_ratio(g) for g in buckets]),
        v=stack([costs.verify_ratio(g + 1) for g in buckets]),
        catch_up=median(costs.catch_up_ratio()),
    )
