"""Progress of a sweep: one line per finished cell, and on a terminal a live bar below them."""

from __future__ import annotations

import math
from typing import Any

from rich import progress
from rich.console import Console
from rich.markup import escape

Row = dict[str, Any]


class SweepProgress:
    """Cell, rate and time left. Where the output is no terminal, plain lines only.

    One unit of work is one decode of one batch by one cell.
    """

    def __init__(self, num_cells: int, num_units: int, console: Console | None = None):
        self.console = console or Console(highlight=False, soft_wrap=True)
        self.num_cells, self.finished = num_cells, 0
        self._bar = progress.Progress(
            progress.SpinnerColumn(),
            progress.BarColumn(bar_width=24),
            progress.TextColumn("{task.fields[cells]} cells"),
            progress.TextColumn("{task.description}", markup=False),
            progress.TextColumn("{task.fields[rate]}"),
            progress.TimeElapsedColumn(),
            progress.TextColumn("left"),
            progress.TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
            speed_estimate_period=120,
        )
        self._task = self._bar.add_task("", total=num_units, cells=f"0/{num_cells}", rate="")

    def __enter__(self) -> SweepProgress:
        self._bar.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(escape(text))

    def working_on(self, what: str) -> None:
        self._bar.update(self._task, description=what)

    def decoded(self, tokens_per_second: float) -> None:
        """One unit is done."""
        self._bar.update(self._task, advance=1, rate=f"{tokens_per_second:,.0f} tokens/s")

    def advance(self, num_units: int) -> None:
        """Units that need no decoding: an earlier launch did them, or their cell failed."""
        self._bar.update(self._task, advance=num_units)

    def reached(self, num_units: int) -> None:
        """A group has ended, and this many units lie behind."""
        self._bar.update(self._task, completed=num_units)

    def cell_ended(self, name: str, row: Row) -> None:
        """A line that stays, with the numbers one looks for first."""
        self.finished += 1
        cells = f"{self.finished}/{self.num_cells}"
        self._bar.update(self._task, cells=cells)
        left = "" if self.console.is_terminal else self._time_left()
        self.say(f"[{cells}] {name:<44} {headline(row)}{left}")

    def _time_left(self) -> str:
        task = self._bar.tasks[0]
        if not task.completed or task.total is None or task.elapsed is None:
            return ""
        seconds = task.elapsed * (task.total - task.completed) / task.completed
        return f"   left {int(seconds) // 60}:{int(seconds) % 60:02d}"


def headline(row: Row) -> str:
    """What one looks for first in a finished or failed cell."""
    if row["status"] != "ok":
        return f"FAILED {row['error']}"
    rate = f"{row['tokens_per_second']:,.0f} tokens/s" if row["tokens_per_second"] else ""
    if row["drafter"] == "none":
        return rate
    low_high = row.get("speedup_ci")
    interval = f" [{low_high[0]:.2f}, {low_high[1]:.2f}]" if low_high else ""
    alpha = row["alpha_accept"]
    accepted = "nothing drafted" if alpha is None else f"alpha_accept {alpha:.2f}"
    lossy = "" if row["lossless"] else "  lossy"
    return f"{row['speedup']:.2f}x{interval}  tau {row['tau']:.2f}  {accepted}  {rate}{lossy}{_parity(row)}"


def _parity(row: Row) -> str:
    """How many tokens were compared with plain decoding's, where they ought to be the same."""
    if row["identical_to_baseline"] is None:
        return ""
    differing, compared = row["num_decodes"] - row["identical_to_baseline"], f"{row['num_tokens']:,} tokens"
    if not differing:
        return f"  {compared} as plain"
    widest = max(row["divergence_margins"], default=math.nan)
    return f"  {compared}, {differing} of {row['num_decodes']} rows part, margins up to {widest:.1e}"
