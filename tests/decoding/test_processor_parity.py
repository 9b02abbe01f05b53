"""Under every processor speculative decoding emits what plain decoding emits; greedy text also by hand."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.acceptance import Coupled, Rejection
from specjax.decoding import Program, autoregressive, buffer_length, generate
from specjax.decoding.generate import decode_donated
from specjax.drafters.model import ModelDrafter
from specjax.drafters.ngram import NgramDrafter, fit_bigram
from specjax.drafters.prompt_lookup import PromptLookup
from specjax.models.table import TableLM
from specjax.processors import make_processors
from specjax.request import make_request
from specjax.testing.parity import Divergence, divergences, margin, token_rows

V, GAMMA, NEW, STOP = 7, 4, 20, 6
TARGET, DRAFT = TableLM(vocab_size=V, order=2), TableLM(vocab_size=V)
_rng = np.random.default_rng(11)
# The stop token is the likeliest everywhere: without min_new_tokens a row that has it ends at once.
TABLE = (_rng.normal(size=(V, V, V)) * 2).astype(np.float32)
TABLE[..., STOP] = 5.0
TARGET_PARAMS = jnp.asarray(TABLE)
DRAFT_PARAMS = jnp.asarray(TABLE.mean(axis=0) + _rng.normal(size=(V, V)), jnp.float32)
DRAFTERS = {
    "model": (ModelDrafter(model=DRAFT), DRAFT_PARAMS),
    "prompt lookup": (PromptLookup(), ()),
    "bigram": (NgramDrafter(), fit_bigram(_rng.integers(0, V, size=200), V, max_successors=3)),
}

# repetition, presence, frequency, logit bias, banned, min_new, stops
NONE = (1.0, 0.0, 0.0, {}, [], 0, -1)
ROWS = [
    NONE,
    (2.5, 0.0, 0.0, {}, [], 0, -1),
    (1.0, 3.0, 0.0, {}, [], 0, -1),
    (1.0, 0.0, 1.0, {}, [], 0, -1),
    (1.0, 0.0, 0.0, {0: 3.0, STOP: -4.0}, [], 0, -1),
    (1.0, 0.0, 0.0, {}, [STOP], 0, -1),
    (1.0, 0.0, 0.0, {}, [], 6, STOP),
    (0.8, 0.4, 0.7, {2: 1.0}, [3], 9, STOP),
]
PROMPT = np.array([[4, 4, 4]] * len(ROWS), np.int32)
MAX_LEN = buffer_length(PROMPT.shape[1], NEW, GAMMA)


def request_of(rows, temperature):
    repetition, presence, frequency, bias, banned, min_new, stops = (list(column) for column in zip(*rows))
    return make_request(
        prompt_length=[PROMPT.shape[1]] * len(rows),
        max_new_tokens=NEW,
        seed=np.arange(len(rows)),
        temperature=temperature,
        stop_tokens=[[stop] for stop in stops],
        processors=make_processors(
            repetition_penalty=repetition,
            presence_penalty=presence,
            frequency_penalty=frequency,
            logit_bias=bias,
            banned_tokens=banned,
            min_new_tokens=min_new,
        ),
    )


GREEDY, SAMPLED = request_of(ROWS, 0.0), request_of(ROWS, 0.7)


def greedy_by_hand(prompt, repetition, presence, frequency, bias, banned, min_new, stop):
    """Plain Python."""
    tokens, emitted = list(prompt), []
    while len(emitted) < NEW:
        scores = TABLE[tokens[-2], tokens[-1]].astype(np.float64)
        for token in range(V):
            scores[token] += bias.get(token, 0.0)
            if token in tokens:
                scores[token] *= repetition if scores[token] <= 0 else 1 / repetition
            scores[token] -= frequency * emitted.count(token) + presence * (token in emitted)
            if token in banned or (token == stop and len(emitted) < min_new):
                scores[token] = -np.inf
        emitted.append(int(scores.argmax()))
        tokens.append(emitted[-1])
        if emitted[-1] == stop:
            break
    return tokens


BY_HAND = [greedy_by_hand(prompt, *row) for prompt, row in zip(PROMPT.tolist(), ROWS)]


@functools.cache
def plain():
    """Sampled rows with coupled noise; greedy ones need none."""
    return autoregressive(TARGET, TARGET_PARAMS, PROMPT, SAMPLED, rule=Coupled(), max_len=MAX_LEN)


def decode(drafter, rule, request):
    program = Program(
        target=TARGET, drafter=drafter[0], rule=rule, gammas=(GAMMA,), max_gamma=GAMMA, max_len=MAX_LEN
    )
    return generate(program, (TARGET_PARAMS, drafter[1]), PROMPT, request)


def test_the_rows_differ():
    """Each processor changes the greedy text; the last rows stop where they may and not before."""
    assert len({tuple(tokens) for tokens in BY_HAND}) == len(ROWS)
    assert [len(tokens) - 3 for tokens in BY_HAND[-2:]] == [7, 10]


def test_plain_greedy_text_is_the_one_by_hand():
    state = autoregressive(TARGET, TARGET_PARAMS, PROMPT, GREEDY, rule=Coupled(), max_len=MAX_LEN)
    assert [row.tolist() for row in token_rows(state)] == BY_HAND


@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_text_is_plain_decodings(name):
    state = decode(DRAFTERS[name], Rejection(), GREEDY)
    assert [row.tolist() for row in token_rows(state)] == BY_HAND
    assert np.asarray(state.statistics.accepted).sum() > 0


@pytest.mark.parametrize("name", DRAFTERS)
def test_coupled_text_is_plain_decodings(name):
    """Sampled; values of the processors are arrays, so greedy rows run in the same program."""
    state = decode(DRAFTERS[name], Coupled(), SAMPLED)
    assert divergences(plain(), state) == []
    compiled = decode_donated._cache_size()
    greedy = decode(DRAFTERS[name], Coupled(), GREEDY)
    assert [row.tolist() for row in token_rows(greedy)] == BY_HAND
    assert decode_donated._cache_size() == compiled


def test_margins_are_those_of_processed_scores():
    """At the second token of the row of bias: its two best biased scores; sampled rows have noise besides."""
    state = autoregressive(TARGET, TARGET_PARAMS, PROMPT, GREEDY, rule=Coupled(), max_len=MAX_LEN)
    row, at = 4, PROMPT.shape[1] + 1
    tokens, bias = BY_HAND[row], ROWS[row][3]
    scores = TABLE[tokens[at - 2], tokens[at - 1]] + np.array([bias.get(token, 0.0) for token in range(V)])
    found = Divergence(row=row, position=at, expected=0, got=0)
    gap = margin(TARGET, TARGET_PARAMS, GREEDY, state, found)
    assert gap == pytest.approx(np.diff(np.sort(scores))[-1], abs=1e-4)
    assert margin(TARGET, TARGET_PARAMS, SAMPLED, state, found) != pytest.approx(gap, abs=1e-2)


def test_the_history_holds_accepted_tokens_only():
    state = decode(DRAFTERS["model"], Coupled(), SAMPLED)
    assert np.asarray(state.statistics.tested).sum() > np.asarray(state.statistics.accepted).sum()
    for row, tokens in enumerate(token_rows(state)):
        counts = np.bincount(tokens[PROMPT.shape[1] :], minlength=V)
        np.testing.assert_array_equal(state.history.emitted[row], counts)
    np.testing.assert_array_equal(state.history.in_prompt, np.eye(V, dtype=bool)[[4] * len(ROWS)])


def test_a_drafter_that_repeats_one_token_meets_the_penalty():
    """Penalties, and a drafter whose only idea is the token the text began with."""
    stubborn = jnp.asarray(np.eye(V)[[4] * V] * 9, jnp.float32)
    state = decode((ModelDrafter(model=DRAFT, temperature=0.0), stubborn), Rejection(), GREEDY)
    assert [row.tolist() for row in token_rows(state)] == BY_HAND


def test_no_processors_no_history():
    request = make_request(prompt_length=[3] * len(ROWS), max_new_tokens=2, seed=0)
    assert decode(DRAFTERS["prompt lookup"], Rejection(), request).history is None
