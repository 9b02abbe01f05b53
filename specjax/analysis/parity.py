"""How many tokens speculation was checked on against plain decoding's, and by what margin a row parted."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

from specjax.analysis import cells
from specjax.analysis.cells import Row


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParityLine:
    """A cell whose tokens are plain decoding's by construction: greedy, or of coupled draws."""

    label: str
    row: Row
    compared: int  # tokens
    parted: int  # decodes that are not plain decoding's token for token
    widest: float | None  # margin between the two best tokens among them; None without any


def parity_lines(rows: Sequence[Row]) -> list[ParityLine]:
    """One a comparable cell with a drafter; none of the others.

    >>> row = {"drafter": "d", "pair": "t+d", "gamma": 3, "acceptance": "rejection", "temperature": 0.0}
    >>> row |= {"num_tokens": 640, "num_decodes": 10, "identical_to_baseline": 9}
    >>> row |= {"divergence_margins": [2e-6]}
    >>> [(line.compared, line.parted, line.widest) for line in parity_lines([row])]
    [(640, 1, 2e-06)]
    """
    comparable = [row for row in cells.speculative(rows) if row.get("identical_to_baseline") is not None]
    return [
        ParityLine(
            label=cells.label(row, comparable),
            row=row,
            compared=row["num_tokens"],
            parted=row["num_decodes"] - row["identical_to_baseline"],
            widest=max(row.get("divergence_margins") or (), default=None),
        )
        for row in comparable
    ]
