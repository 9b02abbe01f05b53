"""Logit processors on one row of scores, by hand; and what cannot be asked of them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.acceptance import Rejection
from specjax.decoding import Program, generate
from specjax.decoding.warping import active_in, warp_of
from specjax.models.table import TableLM
from specjax.processors import (
    active_processors,
    extend_history,
    make_processors,
    prefixes,
    process,
    start_history,
)
from specjax.request import make_request
from specjax.testing.models import tiny_transformer
from specjax.types import PADDING

V = 6
LOGITS = jnp.array([[2.0, -1.0, 0.5, 3.0, -jnp.inf, 1.0]])
# Prompt 0 1, emitted 2 2; ids 3 and 5 are new.
HISTORY = extend_history(
    start_history(jnp.array([0, 1, 5]), jnp.int32(2), V), jnp.array([2, 2, 3]), jnp.int32(2)
)
NOTHING = jnp.full((1, 2), PADDING)


def processed(drafted=NOTHING, logits=LOGITS, stop_tokens=(PADDING,), num_emitted=2, **settings):
    params = make_processors(**settings)
    row = jax.tree.map(lambda x: x[0], params)
    stops, count = jnp.asarray(stop_tokens), jnp.int32(num_emitted)
    return process(row, active_processors(params), stops, HISTORY, count, logits, drafted)


def test_a_history_holds_what_was_committed():
    assert HISTORY.in_prompt.tolist() == [True, True, False, False, False, False]
    assert HISTORY.emitted.tolist() == [0, 0, 2, 0, 0, 0]


def test_repetition_penalty_counts_the_prompt_and_minds_the_sign():
    expected = [[1.0, -2.0, 0.25, 3.0, -np.inf, 1.0]]
    np.testing.assert_array_equal(processed(repetition_penalty=2.0), expected)


def test_presence_and_frequency_count_emitted_tokens_alone():
    np.testing.assert_array_equal(processed(presence_penalty=0.5), LOGITS.at[0, 2].add(-0.5))
    np.testing.assert_array_equal(processed(frequency_penalty=0.5), LOGITS.at[0, 2].add(-1.0))


def test_draft_tokens_before_a_position_count_there():
    """Row 0 stands after nothing, row 1 after 3, row 2 after 3 and 2."""
    rows = jnp.repeat(LOGITS, 3, axis=0)
    penalised = processed(prefixes(jnp.array([3, 2])), rows, frequency_penalty=1.0)
    np.testing.assert_array_equal((rows - penalised)[:, [2, 3]], [[2, 0], [2, 1], [3, 1]])


def test_bias_comes_before_penalties_and_a_ban_stays_a_ban():
    biased = processed(logit_bias={0: -3.0, 5: 1.0}, banned_tokens=[3], repetition_penalty=2.0)
    np.testing.assert_array_equal(biased, [[-2.0, -2.0, 0.25, -np.inf, -np.inf, 2.0]])


def test_stop_tokens_wait_for_min_new_tokens():
    """Two were emitted and four are asked for: forbidden after nothing and after one draft token."""
    rows = jnp.repeat(LOGITS, 3, axis=0)
    stops = processed(prefixes(jnp.array([3, 2])), rows, stop_tokens=(5, 3, PADDING), min_new_tokens=4)
    assert np.isneginf(stops[:2, [3, 5]]).all()
    np.testing.assert_array_equal(stops[2], rows[2])
    assert jnp.isfinite(stops[:, :3]).all()


def test_a_row_without_processors_is_untouched_whatever_its_neighbours_ask():
    params = make_processors(repetition_penalty=[1.0, 1.3], logit_bias=[{}, {2: 1.0}], min_new_tokens=[0, 9])
    row = jax.tree.map(lambda x: x[0], params)
    drafted = jnp.array([[2, 3]])
    untouched = process(
        row, active_processors(params), jnp.array([PADDING]), HISTORY, jnp.int32(2), LOGITS, drafted
    )
    np.testing.assert_array_equal(untouched, LOGITS)


def test_unused_processors_are_skipped():
    """No work outside of conditionals, and values that change do not compile anew."""
    request = make_request(prompt_length=[2], max_new_tokens=4, seed=0, processors=make_processors())
    row = lambda tree: jax.tree.map(lambda x: x[0], tree)
    warped = lambda request: warp_of(row(request), active_in(request), HISTORY, jnp.int32(4))(LOGITS, NOTHING)
    outside = {equation.primitive.name for equation in jax.make_jaxpr(warped)(request).jaxpr.eqns}
    assert "cond" in outside and not any(name.startswith("scatter") for name in outside)
    compiled = jax.jit(warped)
    for penalty in (1.0, 1.5, [0.7]):
        compiled(
            make_request(
                prompt_length=[2],
                max_new_tokens=4,
                seed=0,
                processors=make_processors(repetition_penalty=penalty, banned_tokens=[1]),
            )
        )
    assert compiled._cache_size() == 1


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0; 1 is none; got 0"),
        ({"repetition_penalty": [1.0, np.nan]}, "repetition_penalty must be above 0"),
        ({"presence_penalty": np.inf}, "presence_penalty must be finite"),
        ({"frequency_penalty": np.nan}, "frequency_penalty must be finite"),
        ({"min_new_tokens": 1.5}, "min_new_tokens must be whole and at least 0; got 1.5"),
        ({"min_new_tokens": -1}, "min_new_tokens must be"),
        ({"presence_penalty": [[1.0]]}, r"one a row; got shape \(1, 1\)"),
        ({"logit_bias": {3: np.inf}}, "logit_bias of token 3 must be below infinity"),
        ({"logit_bias": {-1: 1.0}}, "take token ids; got -1"),
        ({"banned_tokens": [2.5]}, "take token ids; got 2.5"),
        ({"logit_bias": [{}, {}], "banned_tokens": [[1], [2], [3]]}, "for 2 rows, banned_tokens for 3"),
    ],
)
def test_bad_values(settings, told):
    with pytest.raises(ValueError, match=told):
        make_processors(**settings)


def test_values_that_do_not_fit_the_batch_or_the_vocabulary():
    make = lambda **settings: make_request(
        prompt_length=[2, 2],
        max_new_tokens=4,
        seed=0,
        stop_tokens=[4, 5],
        processors=make_processors(**settings),
    )
    with pytest.raises(ValueError, match=r"processors\.presence_penalty has 3 rows, the batch 2"):
        make(presence_penalty=[1, 2, 3])
    program = Program(target=TableLM(vocab_size=V), rule=Rejection(), max_len=16)
    prompts, params = np.ones((2, 2), int), (jnp.zeros((V, V)), ())
    run = lambda **settings: generate(program, params, prompts, make(**settings))
    with pytest.raises(ValueError, match=r"row 1 biases or bans token 6, the target's vocabulary is 0\.\.5"):
        run(logit_bias=[{}, {6: 1.0}])
    with pytest.raises(ValueError, match="row 0 bans all 6 tokens"):
        run(banned_tokens=[range(6), [1] * 6])
    with pytest.raises(ValueError, match="row 1 bans all 6 tokens while min_new_tokens forbids"):
        run(banned_tokens=[[0], [0, 1, 2, 3]][1:] * 2, min_new_tokens=[0, 3])


def test_a_state_without_history_is_refused():
    request = make_request(prompt_length=[2], max_new_tokens=4, seed=0, processors=make_processors())
    with pytest.raises(ValueError, match="prefill with the same request"):
        warp_of(request, active_in(request), None, jnp.int32(2))


def test_bans_of_all_tokens_are_refused_where_the_vocabulary_is_padded():
    target, params = tiny_transformer(vocab_size=8, seed=0)
    program = Program(target=dataclasses.replace(target, num_ids=3), rule=Rejection(), max_len=16)

    def run(banned):
        processors = make_processors(banned_tokens=banned)
        request = make_request(prompt_length=[1], max_new_tokens=2, seed=0, processors=processors)
        return generate(program, (params, ()), np.ones((1, 1), int), request)

    with pytest.raises(ValueError, match="row 0 bans all 3 tokens"):
        run([0, 1, 2])
    assert run([0, 1]).tokens[0, 1:3].tolist() == [2, 2]
