"""Log-probabilities of emitted tokens: those of plain decoding, and of a step over the finished text."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax.acceptance import Coupled, Rejection
from specjax.decoding import Program, autoregressive, buffer_length, generate
from specjax.drafters.model import ModelDrafter
from specjax.models.table import TableLM
from specjax.processors import make_processors
from specjax.request import make_request
from specjax.testing.models import tiny_transformer
from specjax.testing.parity import divergences
from specjax.types import ACCEPTED, BONUS, RESIDUAL

V, GAMMA, NEW = 12, 3, 16
TARGET, TARGET_PARAMS = tiny_transformer(vocab_size=V, seed=3)
DRAFT, _noise = tiny_transformer(vocab_size=V, seed=4)
DRAFT_PARAMS = jax.tree.map(lambda x, noise: 0.95 * x + 0.15 * noise, TARGET_PARAMS, _noise)
LENGTHS = np.array([5, 1, 3, 4])
PROMPTS = np.random.default_rng(0).integers(0, V, (4, 5)).astype(np.int32)
MAX_LEN = buffer_length(5, NEW, GAMMA)
# Greedy, sampled, filtered, and one whose first token is a stop in the middle of a block.
SETTINGS = dict(
    prompt_length=LENGTHS,
    max_new_tokens=NEW,
    seed=np.arange(4),
    temperature=[0.0, 1.0, 0.7, 1.0],
    top_k=[0, 0, 5, 0],
    stop_tokens=[[-1], [-1], [-1], [2]],
)
PLAIN, PENALISED = (
    make_request(**SETTINGS),
    make_request(**SETTINGS, processors=make_processors(frequency_penalty=[0.5, 0.5, 0.0, 1.0])),
)


@functools.cache
def decode(rule, drafted, penalised=False, logprobs=True):
    request = PENALISED if penalised else PLAIN
    if not drafted:
        return autoregressive(
            TARGET, TARGET_PARAMS, PROMPTS, request, rule=rule, max_len=MAX_LEN, logprobs=logprobs
        )
    program = Program(
        target=TARGET,
        drafter=ModelDrafter(model=DRAFT),
        rule=rule,
        gammas=(GAMMA,),
        max_gamma=GAMMA,
        max_len=MAX_LEN,
        logprobs=logprobs,
    )
    return generate(program, (TARGET_PARAMS, DRAFT_PARAMS), PROMPTS, request)


@functools.cache
def _over_text():
    @jax.jit
    @jax.vmap
    def laws(tokens, row):
        logits = TARGET.apply(TARGET_PARAMS, tokens, TARGET.init_cache(MAX_LEN)).logits
        return sampling.warp(logits, row), jax.nn.log_softmax(logits)

    return laws


def expected(state):
    """(warped, raw) [B, S] from one step over each finished text."""
    probs, raw = _over_text()(state.tokens, PLAIN.sampling)
    of_next = lambda rows: np.take_along_axis(
        np.asarray(rows)[:, :-1], np.asarray(state.tokens)[:, 1:, None], axis=2
    )[..., 0]
    first = np.full((len(LENGTHS), 1), np.nan)
    return [np.concatenate([first, x], axis=1) for x in (of_next(jnp.log(probs)), of_next(raw))]


def emitted(state):
    slots = np.arange(MAX_LEN)
    return (slots >= LENGTHS[:, None]) & (slots < np.asarray(state.length)[:, None])


@pytest.mark.parametrize("rule", [Rejection(), Coupled()], ids=lambda rule: type(rule).__name__)
def test_each_is_the_targets_given_all_before(rule):
    state = decode(rule, True)
    mask = emitted(state)
    for ours, theirs in zip((state.trace.logprobs.warped, state.trace.logprobs.raw), expected(state)):
        np.testing.assert_allclose(np.asarray(ours)[mask], theirs[mask], atol=1e-4)
        assert np.isnan(np.asarray(ours)[~mask]).all()
    # Accepted, residual and bonus tokens took part, and are not said to be certain.
    sampled = mask & (np.arange(len(LENGTHS)) > 0)[:, None]
    for origin in (ACCEPTED, RESIDUAL, BONUS):
        of_origin = sampled & (np.asarray(state.trace.origin) == origin)
        assert of_origin.any() and np.asarray(state.trace.logprobs.raw)[of_origin].max() < -1e-3


def test_they_are_those_of_plain_decoding():
    ours, plain = decode(Coupled(), True), decode(Coupled(), False)
    assert divergences(plain, ours) == []
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4), ours.trace.logprobs, plain.trace.logprobs
    )


def test_processors_change_the_warped_and_not_the_raw():
    """Equal to plain decoding's; raw is the model's own even where a penalty decides."""
    ours, plain = decode(Coupled(), True, True), decode(Coupled(), False, True)
    assert divergences(plain, ours) == []
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4), ours.trace.logprobs, plain.trace.logprobs
    )
    mask, (unprocessed, raw) = emitted(ours), expected(ours)
    np.testing.assert_allclose(np.asarray(ours.trace.logprobs.raw)[mask], raw[mask], atol=1e-4)
    off = np.abs(np.asarray(ours.trace.logprobs.warped) - unprocessed)
    assert np.nanmax(np.where(mask, off, 0)[[1, 3]]) > 0.1 and np.where(mask, off, 0)[2].max() <= 1e-4


def test_a_greedy_row_is_certain_of_what_it_emits():
    state = decode(Rejection(), True)
    assert (np.asarray(state.trace.logprobs.warped)[0][emitted(state)[0]] == 0).all()


def test_impossible_tokens():
    """A law with zeros: what is emitted has a finite log-probability, raw and warped."""
    table = jnp.log(jnp.array([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]))
    program = Program(target=TableLM(vocab_size=3), rule=Rejection(), max_len=16, logprobs=True)
    request = make_request(prompt_length=[1], max_new_tokens=8, seed=0, temperature=1.0)
    state = generate(program, (table, ()), np.zeros((1, 1), np.int32), request)
    logprobs = np.asarray(state.trace.logprobs.raw)[0, 1:9]
    np.testing.assert_allclose(logprobs, state.trace.logprobs.warped[0, 1:9], atol=1e-6)
    assert set(np.round(np.exp(logprobs), 5)) <= {0.5, 1.0}


def test_who_does_not_ask_pays_nothing():
    state = decode(Rejection(), True, logprobs=False)
    assert state.trace.logprobs is None
    np.testing.assert_array_equal(state.tokens, decode(Rejection(), True).tokens)
