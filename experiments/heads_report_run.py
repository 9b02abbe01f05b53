"""The report of a training run of heads: tables and a figure from its metrics.

Apart from its main, which defines flags: several mains cannot be imported into one process.
"""

from __future__ import annotations

from collections.abc import Sequence
import json
from typing import Any

from etils import epath

from specjax.analysis import heads
from specjax.analysis.heads_plots import training_figure
from specjax.analysis.report import interval, number
from specjax.analysis.trees import RANKS_SHOWN


def write(workdir: epath.Path) -> str:
    """Writes both files and returns the text. ValueError without an evaluation to show."""
    metrics = read_metrics(workdir / "metrics.jsonl")
    figure = training_figure(metrics)
    with (workdir / "heads.png").open("wb") as file:
        figure.savefig(file, format="png", dpi=130)
    text = to_markdown(metrics)
    (workdir / "heads.md").write_text(text)
    return text


def read_metrics(path: epath.Path) -> list[dict[str, Any]]:
    """The lines of a run; a last one torn by a kill is left out."""
    if not path.exists():
        raise ValueError(f"--workdir: no {path}; give the workdir of a run of experiments.train_heads")
    whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    metrics = [json.loads(line) for line in whole]
    if not heads.tau_curves(metrics):
        raise ValueError(f"{path}: no evaluation among {len(metrics)} steps; wait for evaluate_every steps")
    return metrics


def to_markdown(metrics: Sequence[dict[str, Any]]) -> str:
    """Two tables: accuracies at the last evaluation; predicted and decoded tau at each that decoded."""
    ranks = range(1, RANKS_SHOWN + 1)
    header = ["head", *(f"top-{k}" for k in ranks), *(f"{name}, top-1" for name in heads.PUBLISHED_TOP1)]
    shown = lambda *values: [number(value, 3) for value in values]
    accuracies = [
        [str(line.head), *shown(*line.top["run"]), *shown(*line.published.values())]
        for line in heads.lines_of_run(metrics)
    ]
    taus = []
    for curve in heads.tau_curves(metrics):
        points = zip(curve.steps, curve.predicted, curve.real, curve.real_ci, strict=True)
        for step, predicted, real, limits in points:
            if real is not None:
                decoded = f"{number(real)} {interval(limits)}".strip()
                taus.append([curve.shape, str(step), number(predicted), decoded, number(predicted / real)])
    return (
        f"# Heads after {heads.last_evaluation(metrics)['step']} steps\n\n"
        "Accuracy on responses held out from training, top-k: the label is among the k likeliest.\n\n"
        + _table(header, accuracies)
        + "\ntau as the ranks of held-out responses predict it, and as decoded.\n\n"
        + _table(["shape", "step", "predicted", "decoded", "predicted / decoded"], taus)
        + "\n![Heads over training](heads.png)\n"
    )


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
