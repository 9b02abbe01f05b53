"""After every round both caches hold what a fresh prefill would, and nothing reads their other slots."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.acceptance import Rejection
from specjax.decoding import Program, buffer_length, prefill
from specjax.decoding.round import decode_round
from specjax.decoding.warping import active_in
from specjax.drafters.model import ModelDrafter
from specjax.request import make_request
from specjax.testing import caches
from specjax.testing.models import tiny_transformer

V, GAMMA, NEW = 8, 3, 24
TARGET, TARGET_PARAMS = tiny_transformer(vocab_size=V, seed=3)
DRAFT, _noise = tiny_transformer(vocab_size=V, seed=4)
DRAFT_PARAMS = jax.tree.map(lambda x, noise: 0.8 * x + 0.4 * noise, TARGET_PARAMS, _noise)
LENGTHS = np.array([5, 1, 3, 4])
PROMPTS = np.random.default_rng(2).integers(0, V, (4, 5)).astype(np.int32)
PROGRAM = Program(
    target=TARGET,
    drafter=ModelDrafter(model=DRAFT),
    rule=Rejection(),
    gammas=(GAMMA,),
    max_gamma=GAMMA,
    max_len=buffer_length(5, NEW, GAMMA),
)
PARAMS = (TARGET_PARAMS, DRAFT_PARAMS)
REQUEST = make_request(
    prompt_length=LENGTHS, max_new_tokens=NEW, seed=np.arange(4), temperature=[1.0, 0.0, 0.7, 1.0]
)


@jax.jit
def one_round(state):
    active = active_in(REQUEST)
    return jax.vmap(functools.partial(decode_round, PROGRAM, PARAMS, active, GAMMA))(REQUEST, state)


@jax.jit
def poison(state):
    """Every slot at and past a cache's length is filled with a value no reader could miss."""

    draft = dataclasses.replace(state.draft_state, cache=caches.poisoned(state.draft_state.cache))
    return dataclasses.replace(state, target_cache=caches.poisoned(state.target_cache), draft_state=draft)


@pytest.fixture(scope="module")
def fresh_caches():
    """Both models' caches [B, ...] after the whole buffer was fed from an empty cache."""

    @jax.jit
    @jax.vmap
    def feed(tokens):
        empty = lambda model: model.init_cache(PROGRAM.max_len)
        return tuple(
            model.apply(params, tokens, empty(model)).cache for model, params in zip((TARGET, DRAFT), PARAMS)
        )

    return feed


def assert_same_up_to_length(cache, fresh):
    assert float(caches.largest_difference(cache, fresh).max()) <= 1e-5


def test_caches_equal_a_fresh_prefill_after_every_round(fresh_caches):
    state = prefill(PROGRAM, PARAMS, PROMPTS, REQUEST)
    clean, accepted, pending = state, set(), set()
    while not np.all(state.done):
        before = np.asarray(state.statistics.accepted).sum(axis=1)
        live = ~np.asarray(state.done)
        state, clean = one_round(poison(state)), one_round(clean)
        np.testing.assert_array_equal(state.tokens, clean.tokens)
        np.testing.assert_array_equal(state.length, clean.length)

        np.testing.assert_array_equal(state.target_cache.length, state.length - 1)
        behind = np.asarray(state.length - state.draft_state.cache.length)
        assert set(behind) <= {1, 2}
        fresh_target, fresh_draft = fresh_caches(state.tokens)
        assert_same_up_to_length(state.target_cache, fresh_target)
        assert_same_up_to_length(state.draft_state.cache, fresh_draft)
        accepted |= set((np.asarray(state.statistics.accepted).sum(axis=1) - before)[live].tolist())
        pending |= set(behind[live].tolist())
    # Rounds of every kind took part: nothing accepted, some, all (which leaves two tokens pending).
    assert accepted == set(range(GAMMA + 1)) and pending == {1, 2}


def test_a_finished_row_is_frozen():
    """Rounds that run on for others change none of its tokens, counters, lengths or traces."""
    state = prefill(PROGRAM, PARAMS, PROMPTS, REQUEST)
    state = dataclasses.replace(state, done=jnp.array([True, False, True, False]))
    after = one_round(state)
    frozen = lambda tree: jax.tree.map(lambda x: x[np.array([0, 2])], tree)
    same = lambda name: jax.tree.map(
        np.testing.assert_array_equal, frozen(getattr(after, name)), frozen(getattr(state, name))
    )
    for name in ("tokens", "length", "done", "statistics", "trace"):
        same(name)
    np.testing.assert_array_equal(frozen(after.target_cache.length), frozen(state.target_cache.length))
    np.testing.assert_array_equal(
        frozen(after.draft_state.cache.length), frozen(state.draft_state.cache.length)
    )
    assert np.all(np.asarray(after.length)[[1, 3]] > LENGTHS[[1, 3]])
