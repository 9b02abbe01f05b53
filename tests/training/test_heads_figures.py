"""What is told of heads, ranks and the tau they predict, is that of the text."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from tiny_heads import COLUMN, FROZEN, HEADS, IDS, H

from specjax.models.heads.heads import HeadParams
from specjax.models.heads.ranks import label_ranks
from specjax.trees.label_ranks import MISSED, NONE, predicted_tau, rank_accuracies


def test_ranks_are_those_of_a_sort(stream, network):
    features, labels = stream.window(np.array([0]), 20, H)
    params = HeadParams(network=network, table=FROZEN.table, ids=jnp.asarray(IDS))
    ranks = np.asarray(label_ranks(HEADS, params, features[0, :20].astype(np.float32), labels[0]))
    states = HEADS.states(network, features[0, :20].astype(np.float32))
    for t, head in itertools.product(range(20), range(H)):
        label = labels[0, t, head]
        order = np.argsort(-np.asarray(FROZEN.table @ states[t, head]), kind="stable").tolist()
        if label == NONE:
            assert ranks[t, head] == NONE
        elif COLUMN[label] == NONE:
            assert ranks[t, head] == MISSED
        else:
            assert ranks[t, head] == order.index(COLUMN[label])
    known = [np.mean(column[column != NONE] != MISSED) for column in ranks.T]
    np.testing.assert_allclose(rank_accuracies(ranks, top=len(IDS)).sum(axis=1), known)
    assert min(known) < 1  # a label that is not scored counts as missed


def test_predicted_tau_follows_rounds_through_the_text():
    ranks = np.array([[0], [1], [0], [0], [0], [NONE], [0], [0], [NONE]])
    response = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1])
    # Rounds begin at 0 (passes), 2 (passes), 4 (passes, then the end), and at 6 (passes).
    assert predicted_tau(ranks, response, [(0,)]) == 2.0
    assert predicted_tau(ranks, response, [(1,)]) == pytest.approx((1 + 2 + 1 + 1 + 1 + 1) / 6)
    assert predicted_tau(ranks, response, []) == 1.0
