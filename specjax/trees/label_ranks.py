"""Ranks of labels along a text: the accuracies that trees are grown from, and the tau a shape has there.

The rank of a label is the number of candidates that its head holds likelier.
All of it is [N, H]: place by place, the labels of heads 1 to H.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

TOP = 10  # ranks in tables, as Medusa's
NONE = -1  # a label that does not exist
MISSED = 2**31 - 1  # the rank of a label that a head does not score


def rank_accuracies(ranks: np.ndarray, *, top: int = TOP, conditional: bool = False) -> np.ndarray:
    """[H, top]: how often the label of head i has rank k, of those that exist.

    ``conditional`` counts those alone whose earlier labels have a rank below
    ``top`` as well: what a tree meets on its way down.

    >>> rank_accuracies(np.array([[0, 1], [0, 0], [9, 0], [0, -1]]), top=2)
    array([[0.75      , 0.        ],
           [0.66666667, 0.33333333]])
    >>> rank_accuracies(np.array([[0, 1], [0, 0], [9, 0], [0, -1]]), top=2, conditional=True)[1]
    array([0.5, 0.5])
    """
    table = np.zeros((ranks.shape[1], top))
    reached = np.ones(len(ranks), bool)
    for head, column in enumerate(ranks.T):
        counted = column[reached & (column != NONE)]
        table[head] = [(counted == rank).sum() / max(len(counted), 1) for rank in range(top)]
        if conditional:
            reached &= (column >= 0) & (column < top)
    return table


def path_accuracies(ranks: np.ndarray, choices: Sequence[Sequence[int]]) -> np.ndarray:
    """[D, K]: how often the label of head i has rank k, where the earlier ones spell a node of ``choices``.

    Of places all of whose labels exist. ``builders.expected_tokens`` makes a
    tau of it that supposes two things the walk does not: that rounds begin
    anywhere alike, and that a rank depends on the depth and not on the node.

    >>> path_accuracies(np.array([[0, 1], [0, 0], [9, 0], [1, 0]]), [(0,), (0, 0)])
    array([[0.5],
           [0.5]])
    """
    depth = max(map(len, choices), default=0)
    top = 1 + max((choice[-1] for choice in choices), default=-1)
    reached, table = whole(ranks), np.zeros((depth, top))
    for level in range(depth):
        counted = ranks[reached, level]
        table[level] = [(counted == rank).sum() / max(len(counted), 1) for rank in range(top)]
        reached &= np.any([_spelled(ranks, node) for node in choices if len(node) == level + 1], axis=0)
    return table


def predicted_tau(ranks: np.ndarray, response: np.ndarray, choices: Sequence[Sequence[int]]) -> float:
    """Tokens a round along given text: a round passes the nodes of ``choices`` that the labels' ranks spell.

    ``ranks`` [N, H] of all places of the stream, ``response`` [N] whose they
    are. Rounds follow one another as in decoding: where a round ends decides
    where the next begins, and what is hard to guess ends more rounds than
    its share of the text. A round that a response's end would cut is not counted.

    >>> ranks = np.array([[0, 1], [0, 0], [9, 0], [9, -1], [-1, -1]])
    >>> predicted_tau(ranks, np.zeros(5), [(0,), (0, 1)])  # from place 0 two are passed; then the end is near
    3.0
    """
    passed = np.zeros(len(ranks), int)
    for choice in choices:
        passed += _spelled(ranks, choice)
    has_labels = whole(ranks)
    rounds = tokens = place = 0
    while place < len(ranks):
        if has_labels[place]:
            rounds, tokens = rounds + 1, tokens + 1 + int(passed[place])
            place += 1 + int(passed[place])
        else:
            place = int(np.searchsorted(response, response[place], side="right"))
    return tokens / max(rounds, 1)


def whole(ranks: np.ndarray) -> np.ndarray:
    """[N] bool: places all of whose labels exist."""
    return (ranks != NONE).all(axis=1)


def _spelled(ranks: np.ndarray, choice: Sequence[int]) -> np.ndarray:
    """[N] bool: places whose first labels have the ranks of one node."""
    return (ranks[:, : len(choice)] == np.asarray(choice)).all(axis=1)
