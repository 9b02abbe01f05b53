"""A prompt read in chunks leaves what one pass over it leaves."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.acceptance import Rejection
from specjax.decoding import Program, prefill
from specjax.decoding.prefill import CHUNK
from specjax.request import make_request
from specjax.testing import caches
from specjax.testing.models import tiny_transformer

TAPS = (1, "final")
MODEL, PARAMS = tiny_transformer(vocab_size=13, seed=0, context=3 * CHUNK + 6)
TARGET = dataclasses.replace(MODEL, taps=TAPS)


@dataclasses.dataclass(frozen=True)
class Shows:
    """Keeps the features that the target hands to a drafter."""

    def init(self, params, prompt, length, max_len, max_gamma, features):
        return features, jnp.int32(0)


def states(width, lengths):
    """(the batch's state, one pass over each row's whole prompt)."""
    prompts = jax.random.randint(jax.random.key(width), (len(lengths), width), 0, 13)
    request = make_request(prompt_length=jnp.array(lengths), max_new_tokens=3, seed=0)
    program = Program(
        target=TARGET, drafter=Shows(), rule=Rejection(), gammas=(1,), max_gamma=1, max_len=width + 6
    )
    state = prefill(program, (PARAMS, ()), prompts, request)
    whole = jax.vmap(lambda tokens: TARGET.apply(PARAMS, tokens, TARGET.init_cache(width)))(prompts)
    return state, whole


@pytest.mark.parametrize("width", [CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 40])
@pytest.mark.parametrize("batch", [1, 3])
def test_chunks_leave_what_one_pass_leaves(width, batch):
    lengths = [width, 1, CHUNK + 1][:batch]
    lengths = [min(length, width) for length in lengths]
    state, whole = states(width, lengths)
    cache = state.target_cache
    np.testing.assert_array_equal(cache.length, np.array(lengths) - 1)
    head = lambda rows: rows[:, :width]
    for mine, theirs in zip(caches.by_slot(cache), caches.by_slot(whole.cache)):
        for row, length in enumerate(lengths):
            np.testing.assert_allclose(head(mine)[row, :length], theirs[row, :length], atol=1e-5)
    for mine, theirs in zip(state.draft_state, whole.features):
        assert mine.shape == theirs.shape
        for row, length in enumerate(lengths):
            np.testing.assert_allclose(mine[row, :length], theirs[row, :length], atol=1e-5)


def test_chunks_past_the_longest_prompt_are_not_read():
    state, _ = states(3 * CHUNK, [CHUNK + 5, 7])
    for rows in caches.by_slot(state.target_cache):
        assert np.any(rows[0, CHUNK : CHUNK + 5])
        np.testing.assert_array_equal(rows[:, 2 * CHUNK :], 0.0)
