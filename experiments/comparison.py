"""What a comparison with ``transformers`` shows: one row a method, a table, a figure. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Any

from matplotlib.figure import Figure
import numpy as np
from rich.table import Table

from specjax.analysis import plot_style as look
from specjax.analysis.intervals import bootstrap

Row = dict[str, Any]

ESTIMATES = ("tokens_per_second", "transformers_tokens_per_second", "ratio")
NAMES = {"none": "plain decoding", "prompt_lookup": "prompt lookup"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decode:
    """One prompt decoded by both implementations in the same way."""

    drafter: str
    gamma: int
    prompt: int
    num_tokens: int
    seconds: float
    rounds: int
    cut: int  # tokens of the last block past the end of the output
    transformers_seconds: float
    transformers_rounds: int  # steps of the target, the one that read the prompt among them
    gap: float | None  # of the two best logits where the outputs part; None: they are identical


def summarise(decodes: Sequence[Decode]) -> list[Row]:
    """One row a method, in the order they come."""
    methods: dict[tuple[str, int], list[Decode]] = {}
    for each in decodes:
        methods.setdefault((each.drafter, each.gamma), []).append(each)
    return [summarise_method(mine) for mine in methods.values()]


def summarise_method(decodes: Sequence[Decode]) -> Row:
    """Totals over prompts; each rate and the ratio of rates with its 95 % interval over prompts (paired).

    ``tau`` counts the tokens that the end of the output cut, as everywhere
    here; transformers drafts fewer instead, so its ``tau`` is a little lower.
    """
    column = lambda name: np.array([getattr(each, name) for each in decodes], float)
    tokens, ours, theirs = map(column, ("num_tokens", "seconds", "transformers_seconds"))

    def estimate(i):
        total, here, there = (values[i].sum(-1) for values in (tokens, ours, theirs))
        return np.stack([total / here, total / there, there / here])

    values, limits = estimate(np.arange(len(decodes))), bootstrap(estimate, (len(decodes),))
    gaps = [each.gap for each in decodes if each.gap is not None]
    row: Row = {"drafter": decodes[0].drafter, "gamma": decodes[0].gamma}
    for name, value, interval in zip(ESTIMATES, values, limits):
        row[name] = float(value)
        row[f"{name}_ci"] = [interval.low, interval.high] if interval else None
    return row | {
        "tau": float((tokens.sum() + column("cut").sum()) / column("rounds").sum()),
        "transformers_tau": float(tokens.sum() / column("transformers_rounds").sum()),
        "num_prompts": len(decodes),
        "num_tokens": int(tokens.sum()),
        "diverging": len(gaps),
        "widest_gap": max(gaps, default=None),
    }


def label(row: Row) -> str:
    """For instance ``draft, gamma 7``."""
    name = NAMES.get(row["drafter"], str(row["drafter"]))
    return f"{name}, gamma {row['gamma']}" if row["gamma"] else name


def table(rows: Sequence[Row]) -> Table:
    """For the terminal; rates in tokens per second."""
    columns = ("", "transformers", "specjax", "ratio [95 %]", "tau of both", "diverging")
    shown = Table(title="tokens per second")
    for column in columns:
        shown.add_column(column, justify="right" if column else "left")
    for row in rows:
        low_high = row["ratio_ci"]
        gap = f", gap {row['widest_gap']:.0e}" if row["diverging"] else ""
        shown.add_row(
            label(row),
            f"{row['transformers_tokens_per_second']:.1f}",
            f"{row['tokens_per_second']:.1f}",
            f"{row['ratio']:.2f}x" + (f" [{low_high[0]:.2f}, {low_high[1]:.2f}]" if low_high else ""),
            f"{row['transformers_tau']:.2f} {row['tau']:.2f}",
            f"{row['diverging']}/{row['num_prompts']}{gap}",
        )
    return shown


def draw(rows: Sequence[Row], title: str) -> Figure:
    """Two bars a method with their intervals, the ratio above them."""
    figure = look.new_figure()
    axes = look.style(figure.subplots(), title=title, y="tokens per second")
    places = np.arange(len(rows))
    for shift, side, color, name in (
        (-0.2, "transformers", look.DRAFT_COLOR, "transformers_tokens_per_second"),
        (0.2, "specjax", look.TARGET_COLOR, "tokens_per_second"),
    ):
        heights = [row[name] for row in rows]
        lengths = [look.errors(row[name], row[f"{name}_ci"]) or [[0.0], [0.0]] for row in rows]
        axes.bar(places + shift, heights, 0.38, color=color, label=side)
        axes.errorbar(places + shift, heights, np.concatenate(lengths, axis=1), fmt="none", ecolor=look.INK)
    for place, row in zip(places, rows):
        top = max((row["tokens_per_second_ci"] or [0.0, 0.0])[1], row["tokens_per_second"])
        ratio = f"{row['ratio']:.1f}x"
        axes.annotate(
            ratio, (place + 0.2, top), (0, 4), textcoords="offset points", ha="center", color=look.INK
        )
    axes.set_xticks(places, [label(row).replace(", ", "\n") for row in rows])
    axes.margins(y=0.12)
    look.legend(axes, loc="upper left")
    return figure
