"""How often heads guess right, beside what was published, and what a training run says tau will be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import re
from typing import Any

import numpy as np

from specjax.analysis import cells, trees
from specjax.analysis.cells import Row

# Top-1 of five heads on their own targets (Cai et al. 2024, arXiv 2401.10774).
PUBLISHED_TOP1 = {
    "Medusa, Vicuna-7B": (0.560, 0.316, 0.201, 0.147, 0.118),
    "Medusa, Vicuna-13B": (0.594, 0.340, 0.216, 0.150, 0.122),
    "Medusa, Vicuna-33B": (0.605, 0.356, 0.225, 0.160, 0.137),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadLine:
    """One head of a drafter; the first guesses the token after the pending one."""

    head: int  # from 1
    top: dict[str, list[float]]  # by drafter: top-1 .. top-5 on text held out from its training
    published: dict[str, float | None]  # top-1 by target; None beyond the heads that it had


def head_lines(rows: Sequence[Row]) -> list[HeadLine]:
    """The heads of a sweep; none if no drafter of it has any."""
    measured = {
        trees.base(row): np.asarray(row["rank_accuracies"])
        for row in cells.finished(rows)
        if row.get("rank_accuracies")
    }
    return _lines(
        {name: np.cumsum(table, axis=1)[:, : trees.RANKS_SHOWN] for name, table in measured.items()}
    )


def _lines(top: Mapping[str, np.ndarray]) -> list[HeadLine]:
    """``top`` [H, RANKS_SHOWN] of each drafter, beside the published values."""
    most = max((len(table) for table in top.values()), default=0)
    return [
        HeadLine(
            head=head + 1,
            top={name: table[head].tolist() for name, table in top.items() if head < len(table)},
            published={
                name: values[head] if head < len(values) else None for name, values in PUBLISHED_TOP1.items()
            },
        )
        for head in range(most)
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictedTau:
    """A shape at temperature 0: tau as decoded, and as ranks of labels along that text predict it."""

    label: str
    row: Row
    over_walk: float | None  # decoded tau - 1 over the predicted; None where 1 is predicted
    over_accuracies: float | None


def predicted_taus(rows: Sequence[Row]) -> list[PredictedTau]:
    """One a cell that predicts.

    >>> row = {"drafter": "m", "pair": "t+m", "gamma": 3, "acceptance": "rejection", "temperature": 0.0}
    >>> (line,) = predicted_taus([row | {"tau": 1.5, "tau_of_ranks": 1.5, "tau_of_accuracies": 1.4}])
    >>> line.over_walk, round(line.over_accuracies, 3)
    (1.0, 1.25)
    """
    predicting = [row for row in cells.speculative(rows) if row.get("tau_of_ranks") is not None]
    over = lambda row, field: (row["tau"] - 1) / (row[field] - 1) if row[field] > 1 else None
    return [
        PredictedTau(
            label=cells.label(row, predicting),
            row=row,
            over_walk=over(row, "tau_of_ranks"),
            over_accuracies=over(row, "tau_of_accuracies"),
        )
        for row in sorted(predicting, key=lambda row: (row["gamma"], row["drafter"]))
    ]


def last_evaluation(metrics: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The newest line of a training run that holds accuracies; empty if there is none."""
    return next((line for line in reversed(metrics) if "head1_top1" in line), {})


def lines_of_run(metrics: Sequence[Mapping[str, Any]]) -> list[HeadLine]:
    """The heads of a training run, as "run", at its last evaluation.

    >>> line = {f"head1_top{k}": k / 10 for k in range(1, 6)}
    >>> lines_of_run([line])[0].top
    {'run': [0.1, 0.2, 0.3, 0.4, 0.5]}
    """
    last = last_evaluation(metrics)
    count = sum(re.fullmatch(r"head\d+_top1", name) is not None for name in last)
    ranks = range(1, trees.RANKS_SHOWN + 1)
    table = [[last[f"head{head}_top{k}"] for k in ranks] for head in range(1, count + 1)]
    return _lines({"run": np.array(table)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class TauCurve:
    """tau of one shape over training: predicted from ranks of held-out text, and as decoded."""

    shape: str  # "chain", "tree32": N nodes
    steps: list[int]
    predicted: list[float]
    real: list[float | None]  # None at an evaluation that did not decode
    real_ci: list[list[float] | None]


_PREDICTED = re.compile(r"(?:held_out_)?predicted_tau_(\w+)")


def tau_curves(metrics: Iterable[Mapping[str, Any]]) -> list[TauCurve]:
    """The curves in the lines of a training run's ``metrics.jsonl``; none without such lines.

    >>> lines = [{"step": 9, "held_out_predicted_tau_chain": 1.5, "held_out_real_tau_chain": 1.4}]
    >>> tau_curves(lines)[0].real
    [1.4]
    """
    found: dict[str, list[tuple[int, float, float | None, list[float] | None]]] = {}
    for line in metrics:
        for name, value in line.items():
            match = _PREDICTED.fullmatch(name)
            if match:
                real = name.replace("predicted", "real")
                point = (line["step"], value, line.get(real), line.get(f"{real}_ci"))
                found.setdefault(match[1], []).append(point)
    return [
        TauCurve(
            shape=shape,
            steps=[point[0] for point in points],
            predicted=[point[1] for point in points],
            real=[point[2] for point in points],
            real_ci=[point[3] for point in points],
        )
        for shape, points in found.items()
    ]


def top1_curves(metrics: Iterable[Mapping[str, Any]]) -> dict[int, list[tuple[int, float]]]:
    """{head from 1: [(step, top-1 accuracy)]} in the lines of a training run."""
    found: dict[int, list[tuple[int, float]]] = {}
    for line in metrics:
        for name, value in line.items():
            match = re.fullmatch(r"(?:held_out_)?top1_head(\d+)", name)
            if match:
                found.setdefault(int(match[1]), []).append((line["step"], value))
    return dict(sorted(found.items()))
