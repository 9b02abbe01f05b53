"""A table model answers from its table, in any cut of the tokens, after any rewind."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from specjax import cache as kv
from specjax.models.table import TableLM

V = 4
RNG = np.random.default_rng(0)
TABLES = {1: jnp.asarray(RNG.normal(size=(V, V))), 2: jnp.asarray(RNG.normal(size=(V, V, V)))}
TOKENS = [3, 1, 0, 2, 2]


def by_hand(order, tokens):
    before = [0, *tokens[:-1]]
    return np.array([TABLES[1][t] if order == 1 else TABLES[2][b, t] for b, t in zip(before, tokens)])


@pytest.mark.parametrize("order", [1, 2])
def test_logits_by_hand_in_any_cut(order):
    model, expected = TableLM(vocab_size=V, order=order), by_hand(order, TOKENS)
    for cut in (0, 1, 3):
        cache, logits = model.init_cache(8), []
        for piece in (TOKENS[:cut], TOKENS[cut:]):
            if piece:
                output = model.apply(TABLES[order], jnp.array(piece), cache)
                cache, logits = output.cache, [*logits, output.logits]
        assert int(cache.length) == len(TOKENS)
        np.testing.assert_array_equal(jnp.concatenate(logits), expected)
        assert logits[0].dtype == jnp.float32


def test_a_rewound_cache_forgets_what_followed():
    model = TableLM(vocab_size=V, order=2)
    cache = model.apply(TABLES[2], jnp.array([3, 1, 2, 2]), model.init_cache(8)).cache
    output = model.apply(TABLES[2], jnp.array([0]), kv.rewind(cache, jnp.int32(2)))
    np.testing.assert_array_equal(output.logits[0], TABLES[2][1, 0])


def test_under_a_mask_the_token_before_is_the_parent():
    """Slot 0 is committed; slots 1 and 2 are its children, slot 3 is a child of slot 1."""
    model = TableLM(vocab_size=V, order=2)
    cache = model.apply(TABLES[2], jnp.array([3]), model.init_cache(4)).cache
    mask = jnp.array([[1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], bool)
    output = model.apply(TABLES[2], jnp.array([1, 2, 0]), cache, mask=mask)
    expected = [TABLES[2][3, 1], TABLES[2][3, 2], TABLES[2][1, 0]]
    np.testing.assert_array_equal(output.logits, np.array(expected))


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="order must be 1 or 2, got 3"):
        TableLM(vocab_size=V, order=3)
    with pytest.raises(ValueError, match="vocab_size"):
        TableLM(vocab_size=0)
    model = TableLM(vocab_size=V, order=2)
    with pytest.raises(ValueError, match=r"\(4, 4, 4\), got \(4, 4\)"):
        model.apply(TABLES[1], jnp.array([0]), model.init_cache(2))
