"""Prompt lookup against a search in plain Python, and its corner cases."""

from __future__ import annotations

import functools

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.acceptance import Rejection
from specjax.decoding import Program, generate
from specjax.drafters.prompt_lookup import PromptLookup, find_match
from specjax.models.table import TableLM
from specjax.request import make_request

SIZE = 16
search = jax.jit(find_match, static_argnums=(2, 3))


def match_by_hand(tokens: list[int], max_ngram: int, min_ngram: int) -> tuple[int, int]:
    """(start, available) of the longest, then latest, earlier occurrence of the last tokens."""
    for n in range(min(max_ngram, len(tokens) - 1), min_ngram - 1, -1):
        for start in range(len(tokens) - 1, n - 1, -1):
            if tokens[start - n : start] == tokens[-n:]:
                return start, len(tokens) - start
    return 0, 0


@settings(derandomize=True, max_examples=150, deadline=None, database=None)
@given(
    tokens=st.lists(st.integers(0, 2), min_size=1, max_size=SIZE),
    leftover=st.integers(0, 2),
    ngrams=st.sampled_from([(3, 1), (2, 2)]),
)
def test_finds_what_a_plain_search_finds(tokens, leftover, ngrams):
    buffer = np.full(SIZE, leftover, np.int32)
    buffer[: len(tokens)] = tokens
    match = search(buffer, len(tokens), *ngrams)
    assert (int(match.start), int(match.available)) == match_by_hand(tokens, *ngrams)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([5, 6, 7, 8, 9, 10, 11, 7, 8], [9, 10, 11, 7]),
        ([1, 2, 3, 4], []),  # all distinct
        ([3], []),  # one token, shorter than any n-gram
        ([3, 3], [3]),  # the match ends where the suffix begins
        ([1, 2, 9, 1, 2, 8, 1, 2], [8, 1, 2]),  # the most recent of two
        ([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], [9, 2, 3, 8]),  # the longest of two, though older
    ],
)
def test_drafts_what_followed(tokens, expected):
    buffer = jnp.zeros((SIZE,), jnp.int32).at[: len(tokens)].set(jnp.array(tokens))
    drafter, length = PromptLookup(), jnp.int32(len(tokens))
    state, available = drafter.init(((), ()), buffer, length, SIZE, 4, ())
    proposal, _ = drafter.propose(((), ()), state, buffer, length, 4, jnp.int32(4), None, None, None)
    assert proposal.probs is None
    assert proposal.tokens[: int(proposal.num_drafted)].tolist() == expected
    assert int(available) >= len(expected) and (int(available) > 0) == bool(expected)


@functools.cache
def counting():
    """A target that counts 0, 1, 2, 3, 0, ... for sure."""
    return TableLM(vocab_size=4), jnp.log(jnp.roll(jnp.eye(4), 1, axis=1))


def test_rounds_without_a_match_are_plain_steps():
    """From one token: four rounds of the empty bucket until the cycle closes, then whole drafts."""
    target, params = counting()
    program = Program(
        target=target, drafter=PromptLookup(), rule=Rejection(), gammas=(0, 3), max_len=32, max_gamma=3
    )
    request = make_request(prompt_length=[1], max_new_tokens=16, seed=0)
    state = generate(program, (params, ()), jnp.array([[2]]), request)
    np.testing.assert_array_equal(state.tokens[0, :17], (2 + np.arange(17)) % 4)
    statistics = state.statistics
    np.testing.assert_array_equal(statistics.rounds_by_bucket[0], [4, 3])
    np.testing.assert_array_equal(statistics.accepted[0], statistics.tested[0])


@pytest.mark.parametrize("ngrams", [(0, 0), (2, 3), (3, 0)])
def test_bad_settings_are_refused(ngrams):
    with pytest.raises(ValueError, match="min_ngram"):
        PromptLookup(max_ngram=ngrams[0], min_ngram=ngrams[1])
