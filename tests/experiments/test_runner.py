import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from experiments import models
from experiments.progress import headline
from experiments.runner import Agreement, Timed, agreements, make_batches, max_len, request_for
from experiments.settings import SweepSettings
from specjax.acceptance.rejection import Rejection
from specjax.decoding.autoregressive import autoregressive

PROMPTS = [list(range(n)) for n in (5, 130, 3, 7, 9)]


def test_batches_cover_every_prompt_once_and_pad_the_last():
    batches = make_batches(PROMPTS, 2)
    assert [batch.index for batch in batches] == [(0, 1), (2, 3), (4,)]
    assert [batch.tokens.shape for batch in batches] == [(2, 130), (2, 128), (2, 128)]
    assert batches[0].tokens[1].tolist() == PROMPTS[1]
    request = request_for(batches[2], SweepSettings(max_new_tokens=4), 0.0, (7,))
    assert request.max_new_tokens.tolist() == [4, 0]
    assert request.stop_tokens.tolist() == [[7], [7]]


def test_buffers_hold_the_longest_prompt_its_output_and_slack():
    settings = SweepSettings(gammas=(7, 1), max_new_tokens=64)
    assert max_len(PROMPTS, settings) == 224  # 130 + 64 + 7 + 2, in steps of 32


def test_seeds_belong_to_prompts_not_to_places_in_a_batch():
    def key(batch, row, repeat=0):
        return jax.random.key_data(request_for(batch, SweepSettings(), 1.0, (), repeat).key[row])

    alone, paired = make_batches(PROMPTS, 1), make_batches(PROMPTS, 2)
    assert np.array_equal(key(alone[3], 0), key(paired[1], 1))
    assert not np.array_equal(key(alone[3], 0), key(alone[2], 0))
    assert not np.array_equal(key(alone[3], 0), key(alone[3], 0, repeat=1))


def test_processors_reach_every_row_and_cost_nothing_by_default():
    batch = make_batches([[1, 2], [3]], 2)[0]
    request = lambda **changes: request_for(batch, SweepSettings(**changes), 0.0, [9])
    assert request().processors is None
    processors = request(frequency_penalty=0.5, logit_bias=((4, 1.5),), banned_tokens=(7,)).processors
    np.testing.assert_array_equal(processors.frequency_penalty, [0.5, 0.5])
    np.testing.assert_array_equal(processors.bias_tokens, [[4, 7]] * 2)
    np.testing.assert_array_equal(processors.bias, [[1.5, -np.inf]] * 2)


def test_a_row_that_parts_is_told_with_its_margin(pair):
    """Another last token is one that the target did not choose, by a margin that can be seen."""
    target, settings = models.load_target(pair[0], "float32"), SweepSettings(max_new_tokens=3)
    (batch,) = make_batches([[1, 2, 3], [4, 5]], 2)
    request = request_for(batch, settings, 0.0, [])
    state = autoregressive(target.model, target.params, jnp.asarray(batch.tokens), request, rule=Rejection())
    tokens = np.array(state.tokens)
    tokens[1, 4] = (tokens[1, 4] + 1) % 200
    plain, other = (
        Timed(state=each, seconds=1.0, prefill_seconds=1.0, catch_up_steps=np.zeros(len(each.length), int))
        for each in (state, dataclasses.replace(state, tokens=tokens))
    )
    same = Agreement(identical=True)
    judged = lambda timed, comparable: agreements(timed, plain, batch, request, target, comparable=comparable)
    assert judged(plain, True) == [same, same]
    assert judged(other, False) == [same, Agreement(identical=False)]
    first, second = judged(other, True)
    assert first == same and not second.identical and second.margin > 1e-4


def test_the_terminal_tells_how_many_tokens_were_compared():
    row = {
        "status": "ok",
        "drafter": "draft",
        "lossless": True,
        "speedup": 1.5,
        "tau": 2.0,
        "alpha_accept": 0.5,
    }
    row |= {"tokens_per_second": 100.0, "num_tokens": 5376, "num_decodes": 56, "divergence_margins": []}
    assert headline(row | {"identical_to_baseline": 56}).endswith("  5,376 tokens as plain")
    parted = row | {"identical_to_baseline": 54, "divergence_margins": [3e-6, 1e-6]}
    assert headline(parted).endswith("  5,376 tokens, 2 of 56 rows part, margins up to 3.0e-06")
    assert headline(row | {"identical_to_baseline": None}).endswith("100 tokens/s")
