"""The exact joint law over several rounds, with noise that is fresh or used again.

A single round of the block rule cannot tell noise keyed by round from noise
keyed by position: the fault is what the second round inherits.
"""

from __future__ import annotations

import itertools

import numpy as np

from specjax.testing.law import GRID, enumerate_drafts, outcomes
from specjax.types import Rule


def rounds_law(
    rule: Rule, p: np.ndarray, q: np.ndarray, gamma: int, length: int, *, by_position: bool
) -> np.ndarray:
    """The joint law [V] * length of the first tokens, p and q [V] being the same at every position.

    With ``by_position`` a draft draw and an accept coin belong to their
    absolute position, and come back when a rejection makes a later round draft
    there again; else every round has its own. The final draw is always fresh:
    a position has one final token at most.
    """
    vocab_size = len(p)
    drafts = enumerate_drafts(
        rule, [_repeat(p, i) for i in range(gamma + 1)], [_repeat(q, i) for i in range(gamma)]
    )
    drawn, judge = (
        drafts.weights.reshape((vocab_size,) * gamma).sum(tuple(range(1, gamma))),
        _Judge(rule, drafts),
    )
    cells = [
        (token, coin, drawn[token] * width)
        for token in range(vocab_size)
        for coin, width in zip(judge.coins, judge.widths, strict=True)
    ]
    joint = np.zeros((vocab_size,) * length)

    def play(emitted: tuple[int, ...], weight: float, known: dict[int, tuple[int, float]]) -> None:
        start = len(emitted)
        if start >= length:
            joint[emitted[:length]] += weight
            return
        fresh = [at for at in range(start, start + gamma) if at not in known]
        for drawn_cells in itertools.product(cells, repeat=len(fresh)):
            now = known | {at: cell[:2] for at, cell in zip(fresh, drawn_cells, strict=True)}
            tokens, coins = zip(*(now[at] for at in range(start, start + gamma)), strict=True)
            n, next_law = judge(tokens, coins)
            inherited = {at: cell for at, cell in now.items() if at > start + n} if by_position else {}
            here = weight * np.prod([cell[2] for cell in drawn_cells])
            for token in range(vocab_size):
                if here * next_law[token] > 0:
                    play((*emitted, *tokens[:n], token), here * next_law[token], inherited)

    play((), 1.0, {})
    return joint


class _Judge:
    """The rule's verdict as a table over drafts and coin cells."""

    def __init__(self, rule: Rule, drafts):
        num_accepted, weights, laws = outcomes(rule, drafts)
        gamma = drafts.tokens.shape[1]
        # The share of the cells with coin i low is the coin's threshold.
        self._low = weights.reshape(-1, *(2,) * gamma)
        self._thresholds = np.stack(
            [self._low.take(0, axis=i + 1).reshape(len(weights), -1).sum(1) for i in range(gamma)], 1
        )
        edges = np.unique(np.round(np.concatenate([[0.0, 1.0], self._thresholds.ravel()]) * GRID)) / GRID
        self.coins, self.widths = (edges[:-1] + edges[1:]) / 2, np.diff(edges)
        self._row = {tuple(draft): i for i, draft in enumerate(drafts.tokens.tolist())}
        self._num_accepted, self._laws = num_accepted, laws

    def __call__(self, tokens: tuple[int, ...], coins: tuple[float, ...]) -> tuple[int, np.ndarray]:
        row = self._row[tokens]
        cell = int("".join(str(int(high)) for high in np.array(coins) >= self._thresholds[row]), 2)
        return int(self._num_accepted[row, cell]), self._laws[row, cell]


def _repeat(law: np.ndarray, order: int) -> np.ndarray:
    """[V] * (order + 1): the same law after every prefix."""
    return np.broadcast_to(law, (len(law),) * (order + 1))
