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

TAKES = "give the workdir of a run of experiments.train_heads"


def write(workdir: epath.Path) -> str:
    """Writes both files and returns the text. ValueError without an evaluation, or nowhere to write."""
    metrics = read_metrics(workdir / "metrics.jsonl")
    figure, text = training_figure(metrics), to_markdown(metrics)
    try:
        with (workdir / "heads.png").open("wb") as file:
            figure.savefig(file, format="png", dpi=130)
        (workdir / "heads.md").write_text(text)
    except OSError as error:
        raise ValueError(f"--workdir: {workdir} cannot be written ({error.strerror or error})") from None
    return text


def read_metrics(path: epath.Path) -> list[dict[str, Any]]:
    """The lines of a run; a last one torn by a kill is left out.

    Raises ValueError for a file that no training of heads wrote, with the line
    at fault, and for a run without an evaluation.
    """
    if not path.exists():
        raise ValueError(f"--workdir: no {path}; {TAKES}")
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read ({error}); {TAKES}") from None
    whole = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    metrics = [_parse(line, f"{path} line {number}") for number, line in enumerate(whole, start=1)]
    if not heads.tau_curves(metrics) or not heads.last_evaluation(metrics):
        raise ValueError(f"{path}: no evaluation among {len(metrics)} steps; wait for evaluate_every steps")
    return metrics


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        metrics = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON ({error.msg} at column {error.colno}); {TAKES}") from None
    if not isinstance(metrics, dict):
        raise ValueError(f"{where} holds a {type(metrics).__name__}, not an object of figures; {TAKES}")
    if type(metrics.get("step")) is not int:
        raise ValueError(f"{where}: step is {metrics.get('step')!r}, not the number of a step; {TAKES}")
    if odd := [name for name, value in metrics.items() if isinstance(value, str | dict)]:
        raise ValueError(f"{where}: {odd[0]} is {metrics[odd[0]]!r}, not a number; {TAKES}")
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
