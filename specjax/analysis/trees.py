"""Trees beside chains of the same number of scored tokens, and which child of a node was accepted."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

import numpy as np
from numpy.typing import NDArray

from specjax.analysis import cells
from specjax.analysis.cells import Row
from specjax.analysis.intervals import bootstrap

RANKS_SHOWN = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Node:
    """A node below the root and what became of it."""

    choice: tuple[int, ...]  # the ranks that lead to it
    visits: int  # rounds that accepted its parent
    accepted: int

    @property
    def acceptance(self) -> float | None:
        """The share of its visits; None where there was none."""
        return self.accepted / self.visits if self.visits else None


def tree_rows(rows: Sequence[Row]) -> list[Row]:
    """Finished lines of cells that drafted trees."""
    return [row for row in cells.speculative(rows) if row.get("is_tree")]


def chain_rows(rows: Sequence[Row]) -> list[Row]:
    """Finished lines of cells that drafted chains."""
    return [row for row in cells.speculative(rows) if not row.get("is_tree")]


def nodes(row: Row) -> list[Node]:
    """The tree of a cell without its root, by depth.

    >>> row = {"shape": [[0], [1], [0, 0]], "accepted_by_node": [10, 6, 2, 3]}
    >>> [(node.choice, node.visits, node.acceptance) for node in nodes(row)]
    [((0,), 10, 0.6), ((1,), 10, 0.2), ((0, 0), 6, 0.5)]
    """
    choices = [tuple(choice) for choice in row["shape"]]
    accepted = dict(zip([(), *choices], row["accepted_by_node"], strict=True))
    return [Node(choice=c, visits=accepted[c[:-1]], accepted=accepted[c]) for c in choices]


def rank_acceptance(row: Row) -> list[float | None]:
    """P_j of the first ``RANKS_SHOWN`` children: of all visits to a node with a j-th child, who took it.

    >>> row = {"shape": [[0], [1], [0, 0]], "accepted_by_node": [10, 6, 2, 3]}
    >>> rank_acceptance(row)[:3]
    [0.5625, 0.2, None]
    """
    found: list[float | None] = []
    for rank in range(RANKS_SHOWN):
        same = [node for node in nodes(row) if node.choice[-1] == rank]
        visits = sum(node.visits for node in same)
        found.append(sum(node.accepted for node in same) / visits if visits else None)
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetLine:
    """A tree, or a chain it is compared with, among cells that score the same number of tokens."""

    label: str
    row: Row
    gain: float | None = None  # tau over that of the chain of the same drafter, gamma and temperature
    gain_ci: list[float] | None = None  # paired: both decoded the same prompts
    # v(N) below which tau / (d + v) beats plain decoding, and the drafter's fastest chain at measured costs
    pays_below: float | None = None
    beats_chains_below: float | None = None
    ranks: list[float | None] = dataclasses.field(default_factory=list)


def budget_lines(rows: Sequence[Row]) -> list[BudgetLine]:
    """Trees and the chains that score as many tokens, by temperature and budget; empty without trees."""
    trees, chains = tree_rows(rows), chain_rows(rows)
    points = sorted({(row["temperature"], row["gamma"]) for row in trees})
    lines = []
    for temperature, gamma in points:
        at = lambda row: (row["temperature"], row["gamma"]) == (temperature, gamma)
        same = [row for row in (*chains, *trees) if at(row)]
        lines += [_line(row, rows, chains) for row in same]
    return lines


def _line(row: Row, rows: Sequence[Row], chains: Sequence[Row]) -> BudgetLine:
    name = cells.label(row, cells.finished(rows))
    own = [chain for chain in chains if _same_drafter(chain, row)]
    if not row.get("is_tree"):
        return BudgetLine(label=name, row=row, pays_below=_affordable(row, 1.0))
    equal = [chain for chain in own if chain["gamma"] == row["gamma"]]
    gain, gain_ci = tau_ratio(row, equal[0]) if equal else (None, None)
    speeds = [chain["speedup_cost_model"] for chain in own if chain["speedup_cost_model"] is not None]
    return BudgetLine(
        label=name,
        row=row,
        gain=gain,
        gain_ci=gain_ci,
        pays_below=_affordable(row, 1.0),
        beats_chains_below=_affordable(row, max(speeds)) if speeds else None,
        ranks=rank_acceptance(row),
    )


def base(row: Row) -> str:
    """The drafter without its shape.

    >>> base({"drafter": "draft:2x2", "is_tree": True})
    'draft'
    """
    return row["drafter"].rpartition(":")[0] if row.get("is_tree") else row["drafter"]


def _same_drafter(chain: Row, row: Row) -> bool:
    same = all(chain[key] == row[key] for key in ("target", "temperature"))
    return same and chain["lossless"] and chain["drafter"] == base(row)


def _affordable(row: Row, speedup: float) -> float | None:
    """The v at which tau / (d + v) is ``speedup``."""
    d = row["proposal_cost_ratio"]
    return None if d is None or row["tau"] is None else row["tau"] / speedup - d


def tau_ratio(row: Row, other: Row, *, seed: int = 0) -> tuple[float | None, list[float] | None]:
    """(tau of ``row`` over that of ``other``, its 95 % interval); the interval is paired by prompt.

    None for the interval where the two did not decode the same prompts.
    """
    if row["tau"] is None or not other["tau"]:
        return None, None
    fields = ("emitted_by_unit", "rounds_by_unit")
    counts = [np.asarray(line.get(field, []), float) for line in (row, other) for field in fields]
    if len({len(each) for each in counts}) > 1 or not len(counts[0]):
        return row["tau"] / other["tau"], None
    emitted, rounds, other_emitted, other_rounds = counts

    def estimate(index: NDArray[np.int64]) -> NDArray[np.float64]:
        tau = emitted[index].sum(-1) / rounds[index].sum(-1)
        return np.stack([tau / (other_emitted[index].sum(-1) / other_rounds[index].sum(-1))])

    (interval,) = bootstrap(estimate, (len(emitted),), seed=seed)
    return row["tau"] / other["tau"], None if interval is None else [interval.low, interval.high]
