"""A cascade emits what its parts would, pays for one of them a round, and its model catches up."""

import dataclasses

import drafter_cases as cases
from drafter_cases import LENGTHS, PROMPTS, REQUEST, TARGET, TARGET_PARAMS
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.acceptance import Block, Coupled, Rejection
from specjax.decoding import generate
from specjax.drafters.cascade import Cascade
from specjax.drafters.model import ModelDrafter
from specjax.drafters.prompt_lookup import PromptLookup
from specjax.request import make_request

GAMMAS = (1, 3)
CASCADE = Cascade(
    copier=PromptLookup(min_ngram=2), model=ModelDrafter(model=cases.DRAFT, catch_up=2), model_gamma=1
)
PARAMS = (TARGET_PARAMS, cases.DRAFT_PARAMS)


def decode(drafter, params, rule, request=REQUEST, prompts=PROMPTS):
    return generate(cases.program(drafter, rule, GAMMAS), params, prompts, request)


@pytest.mark.parametrize("rule", [Rejection(), Block(), Coupled()], ids=lambda rule: type(rule).__name__)
def test_greedy_and_coupled_text_is_plain_decodings(rule):
    state = decode(CASCADE, PARAMS, rule)
    tokens, lengths = cases.plain_tokens()
    rows = range(len(LENGTHS)) if rule == Coupled() else [0]  # row 0 is greedy
    for row in rows:
        end = int(lengths[row])
        np.testing.assert_array_equal(state.tokens[row, :end], tokens[row, :end])


def test_both_draft_and_the_bucket_tells_who():
    """Rows alone, so that a bucket belongs to its row."""
    lookup_rounds = model_rounds = 0
    for seed in range(4):
        request = make_request(prompt_length=[6], max_new_tokens=20, seed=seed, temperature=0.6)
        state = decode(CASCADE, PARAMS, Rejection(), request, PROMPTS[:1])
        model, lookup = np.asarray(state.statistics.rounds_by_bucket[0])
        model_rounds, lookup_rounds = model_rounds + model, lookup_rounds + lookup
        drafted = np.asarray(state.statistics.rounds_by_drafted[0])
        assert drafted[2:].sum() == lookup and drafted[1] == model
    assert model_rounds > 5 and lookup_rounds > 5


def test_a_model_that_catches_up_drafts_what_one_that_kept_up_drafts():
    """The oracle as the model: whatever the copier did before, all its drafts are accepted."""
    oracle = dataclasses.replace(CASCADE, model=ModelDrafter(model=TARGET, catch_up=2))
    forgetful = dataclasses.replace(oracle, model=ModelDrafter(model=TARGET))

    def rounds_and_rejections(drafter):
        found = np.zeros(3, int)
        for seed in range(6):
            request = make_request(prompt_length=[6], max_new_tokens=20, seed=seed, temperature=0.6)
            state = decode(drafter, (TARGET_PARAMS, TARGET_PARAMS), Rejection(), request, PROMPTS[:1])
            rejections = int((state.trace.rejected >= 0).sum())
            found += [*np.asarray(state.statistics.rounds_by_bucket[0]).tolist(), rejections]
        return found

    drafted, copied, rejections = rounds_and_rejections(oracle)
    assert drafted > 5 and copied > 2 and rejections <= copied
    _, copied, rejections = rounds_and_rejections(forgetful)  # control
    assert rejections > copied


def test_a_model_one_step_behind_takes_one_step_a_round_and_drafts_the_same():
    tokens, state, available = cases.start(CASCADE, PARAMS, PROMPTS, LENGTHS)
    outcome = (cases.uniforms(0, 1), jnp.zeros(4, int), jnp.zeros(4, bool))  # frozen
    round_of = lambda state: cases.forced_round(
        CASCADE, PARAMS, 1, REQUEST.sampling, state, tokens, LENGTHS, available, *outcome
    )
    timely, *_ = round_of(state)
    behind = jnp.maximum(LENGTHS - 1 - CASCADE.model.catch_up, 0)
    late, state, *_ = round_of((state[0], CASCADE.model.as_if_fed(state[1], behind)))
    np.testing.assert_array_equal(late.tokens, timely.tokens)
    _, state, *_ = round_of(state)
    # The row of one token was never behind.
    np.testing.assert_array_equal(state[1].catch_up_steps, [2, 0, 2, 2])


def test_rows_without_a_copy_draft_nothing_beside_one_that_has():
    state = decode(CASCADE, PARAMS, Rejection())
    assert int(state.statistics.rounds_by_drafted[:, 0].sum()) > 0
    assert np.all(np.asarray(state.length) <= np.asarray(LENGTHS) + np.asarray(REQUEST.max_new_tokens))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dataclasses.replace(CASCADE, model_gamma=0), "model_gamma must be at least 1, got 0"),
        (lambda: ModelDrafter(model=TARGET, catch_up=-1), "catch_up must be at least 0"),
        (
            lambda: cases.start(ModelDrafter(model=cases.DRAFT, catch_up=9), PARAMS, PROMPTS, LENGTHS),
            "exceeds the slack of the buffers, 7",
        ),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
