"""n-gram tables against dense counts."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.drafters.ngram import NgramDrafter, fit_bigram, fit_unigram
from specjax.sampling import draw

V = 9
IDS = np.random.default_rng(3).choice(V - 1, p=np.arange(1, V) / 36, size=150)  # V - 1 never occurs


def dense_bigram(ids, max_successors):
    """[V, V]: Witten-Bell rows, the long way round."""
    unigram = (np.bincount(ids, minlength=V) + 1) / (len(ids) + V)
    law = np.zeros((V, V))
    for last in range(V):
        counts = np.zeros(V)
        for u, v in itertools.pairwise(ids):
            counts[v] += u == last
        total = counts.sum() + (counts > 0).sum()
        kept = sorted(np.flatnonzero(counts), key=lambda v: (-counts[v], v))[:max_successors]
        weights = np.zeros(V)
        weights[kept] = counts[kept] / total if total else 0
        law[last] = weights + (1 - weights.sum()) * unigram
    return law


@pytest.mark.parametrize("max_successors", [1, 3, 100])
def test_bigram_rows_are_the_interpolated_counts(max_successors):
    table = fit_bigram(IDS, V, max_successors)
    law = np.asarray(jax.vmap(table.law)(np.arange(V)))
    np.testing.assert_allclose(law, dense_bigram(IDS, max_successors), atol=1e-6)
    np.testing.assert_allclose(law.sum(axis=1), 1, atol=1e-6)
    assert (law > 0).all()
    np.testing.assert_array_equal(table.best, law.argmax(axis=1))
    assert table.successors.shape == (V, min(max_successors, 7))  # no token has more than 7 successors


def test_unigram_is_the_smoothed_frequency_whatever_came_before():
    table = fit_unigram(IDS, V)
    expected = (np.bincount(IDS, minlength=V) + 1) / (len(IDS) + V)
    for last in (0, V - 1):
        np.testing.assert_allclose(table.law(last), expected, atol=1e-6)
        assert int(table.likeliest(last)) == expected.argmax()


def test_each_draft_is_drawn_from_the_row_of_the_one_before():
    """At temperature 1 q is the table's own law; the argmax drafter walks its likeliest tokens."""
    table = fit_bigram(IDS, V)
    tokens, length, warp = (
        jnp.array([0, 5, 0, 0, 0, 0]),
        jnp.int32(2),
        lambda x, _: jax.nn.softmax(x, axis=-1),
    )
    propose = lambda drafter: drafter.propose(
        ((), table), jnp.int32(3), tokens, length, 3, jnp.int32(2), jnp.array([0.9, 0.1, 0.5]), draw, warp
    )[0]
    sampled = propose(NgramDrafter())
    before = [5, *sampled.tokens[:2].tolist()]
    np.testing.assert_allclose(sampled.probs, [table.law(u) for u in before], atol=1e-6)
    likeliest = propose(NgramDrafter(argmax=True))
    assert likeliest.tokens.tolist() == [int(table.best[u]) for u in (5, *likeliest.tokens[:2].tolist())]
    assert likeliest.probs is None and int(likeliest.num_drafted) == 2


def test_a_large_vocabulary_fits_in_memory():
    ids = np.random.default_rng(0).integers(0, 49_152, size=20_000)
    table = fit_bigram(ids, 49_152)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(table)) < 16e6
    assert table.successors.shape[1] <= 32


def test_one_token_is_a_corpus():
    table = fit_bigram(np.array([2]), 3)
    np.testing.assert_allclose(table.law(2), [0.25, 0.25, 0.5], atol=1e-6)
    assert table.best.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.array([], np.int32), "empty"),
        (np.array([0, 9]), r"0\.\.8, got 0\.\.9"),
        (np.array([-1, 2]), "got -1"),
        (np.array([0.5]), "integers"),
        (np.zeros((2, 2), int), "shape"),
    ],
)
def test_what_is_no_corpus_is_refused(ids, message):
    for fit in (fit_unigram, fit_bigram):
        with pytest.raises(ValueError, match=message):
            fit(ids, V)


def test_max_successors_below_one_is_refused():
    with pytest.raises(ValueError, match="max_successors"):
        fit_bigram(IDS, V, 0)
