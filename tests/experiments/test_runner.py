import jax
import numpy as np

from experiments.runner import make_batches, max_len, request_for
from experiments.settings import SweepSettings

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
