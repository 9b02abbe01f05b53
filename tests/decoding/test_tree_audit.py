"""After every round over a tree, caches and features are those of a fresh pass over the committed tokens."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import cache as kv
from specjax.acceptance import RecursiveRejection
from specjax.decoding import Program, buffer_length, prefill
from specjax.decoding.tree_round import decode_tree_round
from specjax.decoding.warping import active_in
from specjax.drafters.tree_model import TreeModelDrafter
from specjax.models.language_model import from_config
from specjax.request import make_request
from specjax.testing import caches
from specjax.testing.models import tiny_transformer
from specjax.types import Array, Outcome, pytree

pytestmark = pytest.mark.usefixtures("compile_fast")

V, NEW, TAPS = 8, 24, (1, "final")
_full, TARGET_PARAMS = tiny_transformer(vocab_size=V, seed=3, layers=2)
_noise = tiny_transformer(vocab_size=V, seed=4, layers=2)[1]
# A draft that resembles its target, so that paths of every length are accepted.
DRAFT_PARAMS = jax.tree.map(lambda x, noise: 0.8 * x + 0.4 * noise, TARGET_PARAMS, _noise)
# One layer sees a window, the other everything.
MODEL = from_config(dataclasses.replace(_full.config, sliding_windows=(4, None)))
CHOICES = ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (1, 0, 0))
NODES, DEPTH = 8, 3
LENGTHS = np.array([5, 1, 3, 4])
PROMPTS = np.random.default_rng(2).integers(0, V, (4, 5)).astype(np.int32)
MAX_LEN = buffer_length(5, NEW, NODES - 1)
PARAMS = (TARGET_PARAMS, DRAFT_PARAMS)
REQUEST = make_request(
    prompt_length=LENGTHS, max_new_tokens=NEW, seed=np.arange(4), temperature=[1.0, 0.0, 0.7, 1.0]
)


@pytree
class Remembered:
    inner: object
    outcome: Outcome  # of the last round


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remembering(TreeModelDrafter):
    """Keeps what it was told of the last round."""

    def init(self, params, prompt, length, max_len, max_gamma, features):
        inner, available = super().init(params, prompt, length, max_len, max_gamma, features)
        zeros = jnp.zeros((DEPTH + 1,), jnp.int32)
        taps = tuple(jnp.zeros((DEPTH + 1, tap.shape[-1])) for tap in features)
        outcome = Outcome(old_length=length, num_emitted=zeros[0], emitted=zeros, features=taps)
        return Remembered(inner=inner, outcome=outcome), available

    def propose_tree(self, params, state, *args):
        proposal, inner = super().propose_tree(params, state.inner, *args)
        return proposal, dataclasses.replace(state, inner=inner)

    def commit(self, params, state, tokens, outcome):
        inner, available = super().commit(params, state.inner, tokens, outcome)
        return Remembered(inner=inner, outcome=outcome), available


@jax.jit
def poison(state):
    """Every slot at and past a cache's length is filled with a value no reader could miss."""

    inner = dataclasses.replace(state.draft_state.inner, cache=caches.poisoned(state.draft_state.inner.cache))
    draft_state = dataclasses.replace(state.draft_state, inner=inner)
    return dataclasses.replace(
        state, target_cache=caches.poisoned(state.target_cache), draft_state=draft_state
    )


@functools.cache
def setting():
    """(program, one round, a fresh pass of target and draft over the whole buffer)."""
    program = Program(
        target=dataclasses.replace(MODEL, taps=TAPS),
        drafter=Remembering(model=MODEL, choices=CHOICES, temperature=1.0),
        rule=RecursiveRejection(),
        gammas=(NODES - 1,),
        max_gamma=NODES - 1,
        max_len=MAX_LEN,
    )
    row = functools.partial(decode_tree_round, program, PARAMS, active_in(REQUEST), NODES - 1)
    target = program.target
    fresh = lambda params, tokens: target.apply(params, tokens, target.init_cache(MAX_LEN))
    of_both = lambda tokens: tuple(fresh(params, tokens) for params in PARAMS)
    return program, jax.jit(lambda state: jax.vmap(row)(REQUEST, state)), jax.jit(jax.vmap(of_both))


def assert_same_up_to_length(cache, fresh):
    assert float(caches.largest_difference(cache, fresh).max()) <= 1e-5


def assert_same_features(outcome: Outcome, fresh: tuple[Array, ...]) -> None:
    """Row i of the outcome belongs to the token before the i-th emitted one."""
    for taps, expected in zip(outcome.features, fresh, strict=True):
        for row, count in enumerate(np.asarray(outcome.num_emitted)):
            start = int(outcome.old_length[row]) - 1
            np.testing.assert_allclose(taps[row, :count], expected[row, start : start + count], atol=1e-5)


def test_caches_and_features_equal_a_fresh_pass_after_every_round():
    program, one_round, fresh_pass = setting()
    state = prefill(program, PARAMS, PROMPTS, REQUEST)
    clean, accepted, pending = state, set(), set()
    while not np.all(state.done):
        before = np.asarray(state.statistics.accepted).sum(axis=1)
        live = ~np.asarray(state.done)
        state, clean = one_round(poison(state)), one_round(clean)
        np.testing.assert_array_equal(state.tokens, clean.tokens)
        np.testing.assert_array_equal(state.length, clean.length)

        draft_cache = state.draft_state.inner.cache
        np.testing.assert_array_equal(state.target_cache.length, state.length - 1)
        behind = np.asarray(state.length - draft_cache.length)
        of_target, of_draft = fresh_pass(state.tokens)
        assert_same_up_to_length(state.target_cache, of_target.cache)
        assert_same_up_to_length(draft_cache, of_draft.cache)
        assert_same_features(state.draft_state.outcome, of_target.features)
        accepted |= set((np.asarray(state.statistics.accepted).sum(axis=1) - before)[live].tolist())
        pending |= set(behind[live].tolist())
    # Paths of every length took part, so the draft had 1 to D + 1 tokens to catch up with; and so did
    # other branches than the first, whose nodes had to be moved.
    assert accepted == set(range(DEPTH + 1)) and pending >= set(range(1, DEPTH + 2))
    nodes = np.asarray(state.statistics.accepted_nodes).sum(axis=0)
    assert nodes[[2, 5, 7]].min() > 0, nodes


def test_the_audit_sees_a_path_that_was_not_moved(monkeypatch):
    """The control: without the compaction of the path the target's cache is not a fresh one."""
    monkeypatch.setattr(kv, "keep_path", lambda cache, start, path: cache)
    program, one_round, fresh_pass = setting.__wrapped__()
    state = prefill(program, PARAMS, PROMPTS, REQUEST)
    with pytest.raises(AssertionError):
        for _ in range(NEW):
            state = one_round(state)
            assert_same_up_to_length(state.target_cache, fresh_pass(state.tokens)[0].cache)


def test_a_finished_row_is_frozen():
    """Rounds that run on for others change none of its tokens, counters, lengths or traces."""
    program, one_round, _ = setting()
    state = prefill(program, PARAMS, PROMPTS, REQUEST)
    state = dataclasses.replace(state, done=jnp.array([True, False, True, False]))
    after = one_round(state)
    frozen = lambda tree: jax.tree.map(lambda x: x[np.array([0, 2])], tree)
    same = lambda new, old: jax.tree.map(np.testing.assert_array_equal, frozen(new), frozen(old))
    for name in ("tokens", "length", "done", "statistics", "trace"):
        same(getattr(after, name), getattr(state, name))
    same(after.target_cache.length, state.target_cache.length)
    same(after.draft_state.inner.cache.length, state.draft_state.inner.cache.length)
    assert np.all(np.asarray(after.length)[[1, 3]] > LENGTHS[[1, 3]])
