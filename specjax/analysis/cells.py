"""Results lines as plots and report read them: which count, how they group, what they are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import statistics
from typing import Any

import numpy as np

Row = dict[str, Any]


def finished(rows: Sequence[Row]) -> list[Row]:
    """Lines of cells that ended well."""
    return [row for row in rows if row.get("status", "ok") == "ok"]


def failed(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.get("status", "ok") != "ok"]


def speculative(rows: Sequence[Row]) -> list[Row]:
    """Finished lines with a drafter at gamma > 0."""
    return [row for row in finished(rows) if row["drafter"] != "none" and row["gamma"] > 0]


def by_drafter(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Speculative lines by (pair, drafter, rule), under the shortest label that tells them apart."""
    rows = speculative(rows)
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(label(row, rows), []).append(row)
    return groups


def label(row: Row, rows: Sequence[Row]) -> str:
    """The drafter's name, with the pair if it drafts for several targets and the rule if there are several.

    A lossy rule is always named, and as such.

    >>> a = {"pair": "big + small", "drafter": "small", "acceptance": "rejection"}
    >>> label(a, [a]), label(a, [a, a | {"acceptance": "block"}])
    ('small', 'small, rejection')
    """
    pairs = {other["pair"] for other in rows if other["drafter"] == row["drafter"]}
    name = row["pair"] if len(pairs) > 1 else row["drafter"]
    if row["drafter"] == "none":
        return name
    rules = {other["acceptance"] for other in rows if other["drafter"] != "none"}
    if not row.get("lossless", True):
        return f"{name}, {row['acceptance']} (lossy)"
    return f"{name}, {row['acceptance']}" if len(rules) > 1 else name


def by_temperature(rows: Sequence[Row]) -> dict[float, list[Row]]:
    """Lines by temperature, coolest first, each sorted by gamma."""
    temperatures = sorted({row["temperature"] for row in rows})
    ordered = sorted(rows, key=lambda row: row["gamma"])
    return {t: [row for row in ordered if row["temperature"] == t] for t in temperatures}


def best(rows: Sequence[Row]) -> Row | None:
    """The lossless speculative cell with the largest measured speedup."""
    candidates = [row for row in speculative(rows) if row["lossless"] and row["speedup"] is not None]
    return max(candidates, key=lambda row: row["speedup"], default=None)


def most_tested(rows: Sequence[Row]) -> Row:
    """The line with the most tested positions: the best estimate of alpha of a drafter at a temperature."""
    return max(rows, key=lambda row: sum(row["tested_by_position"]))


def cost_curves(rows: Sequence[Row]) -> tuple[dict[int, float], dict[int, float]]:
    """({gamma: d(gamma)}, {T: v(T)}) medians over these lines, with d(0) = 0 and v(1) = 1."""
    measured: dict[int, list[Row]] = {}
    for row in rows:
        if row["proposal_cost_ratio"] is not None and row["verify_cost_ratio"] is not None:
            measured.setdefault(row["gamma"], []).append(row)
    median = lambda gamma, field: statistics.median(row[field] for row in measured[gamma])
    d = {0: 0.0} | {gamma: median(gamma, "proposal_cost_ratio") for gamma in measured}
    v = {1: 1.0} | {gamma + 1: median(gamma, "verify_cost_ratio") for gamma in measured}
    return d, v


def linear(curve: Mapping[int, float]) -> Callable[[int], float]:
    """A cost curve at every number up to the largest measured: linear between its points.

    >>> d = linear({0: 0.0, 4: 0.2})
    >>> d(1), d(4)
    (0.05, 0.2)
    """
    places = sorted(curve)
    return lambda x: float(np.interp(x, places, [curve[place] for place in places]))
