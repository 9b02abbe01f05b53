"""Decoding with trees is decoding: same tokens at temperature 0, complete statistics, clear refusals."""

import numpy as np
import pytest

from specjax.acceptance import OneHotWalk, Rejection
from specjax.decoding.autoregressive import autoregressive
from specjax.decoding.generate import generate, stream
from specjax.decoding.program import Program, buffer_length
from specjax.drafters.prompt_lookup import PromptLookup
from specjax.models.decoder import DecoderConfig
from specjax.models.language_model import from_config, init_params
from specjax.request import make_request
from specjax.types import BONUS, RESIDUAL
from tests.decoding.guessed_tree import GuessedTree

CONFIG = DecoderConfig(
    vocab_size=11, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=8, max_position_embeddings=96,
)  # fmt: skip
MODEL, PARAMS = from_config(CONFIG), init_params(CONFIG, 3)
DRAFTER = GuessedTree(branching=(4, 2, 1), vocab_size=11)
NODES = DRAFTER.num_nodes
PROMPTS = np.array([[1, 2, 3, 4], [5, 6, 0, 0], [7, 0, 0, 0]], np.int32)
LENGTHS, NEW = [4, 2, 1], 24


def _program(**settings):
    length = buffer_length(4, NEW, NODES - 1)
    return Program(
        target=MODEL, rule=OneHotWalk(), drafter=DRAFTER, gammas=(NODES - 1,), max_gamma=NODES - 1,
        max_len=length, **settings,
    )  # fmt: skip


def _request(**settings):
    return make_request(prompt_length=LENGTHS, max_new_tokens=NEW, seed=[0, 1, 2], **settings)


@pytest.fixture(scope="module")
def greedy():
    return generate(_program(), (PARAMS, ()), PROMPTS, _request())


def test_greedy_trees_emit_what_plain_decoding_emits(greedy):
    plain = autoregressive(MODEL, PARAMS, PROMPTS, _request(), rule=Rejection())
    for row in range(3):
        end = int(plain.length[row])
        np.testing.assert_array_equal(greedy.tokens[row, :end], plain.tokens[row, :end])
    # The guesses are right now and then, and not in the first branch alone.
    assert int(greedy.statistics.accepted.sum()) > 5
    assert int(greedy.statistics.accepted_nodes[:, 2:5].sum()) > 0


def test_the_stream_gives_the_same_tokens(greedy):
    rows = [[], [], []]
    for blocks in stream(_program(), (PARAMS, ()), PROMPTS, _request()):
        for row, block in zip(rows, blocks, strict=True):
            row.extend(block.tolist())
    for row, prompt in enumerate(LENGTHS):
        assert rows[row] == greedy.tokens[row, prompt : greedy.length[row]].tolist()


def test_statistics_of_a_tree(greedy):
    s = greedy.statistics
    rounds, accepted = np.asarray(s.rounds), np.asarray(s.accepted)
    np.testing.assert_array_equal(s.accepted_nodes[:, 0], rounds)
    parents = np.array([0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    depth_1, depth_2 = s.accepted_nodes[:, 1:5].sum(1), s.accepted_nodes[:, 5:13].sum(1)
    np.testing.assert_array_equal(np.stack([depth_1, depth_2], 1), accepted[:, :2])
    for node in range(5, 13):
        assert np.all(s.accepted_nodes[:, node] <= s.accepted_nodes[:, parents[node]])
    emitted = np.asarray(greedy.length) - LENGTHS
    np.testing.assert_array_equal(rounds + accepted.sum(1) - np.asarray(s.cut), emitted)
    np.testing.assert_array_equal(s.tested[:, 0], rounds)
    np.testing.assert_array_equal(s.rounds_by_drafted[:, NODES - 1], rounds)


def test_a_path_to_a_leaf_ends_with_a_bonus_token(greedy):
    for row in range(3):
        new = slice(LENGTHS[row], int(greedy.length[row]))
        origin, rejected = (
            np.asarray(greedy.trace.origin[row, new]),
            np.asarray(greedy.trace.rejected[row, new]),
        )
        assert np.all((rejected >= 0) == (origin == RESIDUAL))
        assert not np.any(rejected[origin == BONUS] >= 0)


def test_rows_may_want_fewer_nodes():
    state = generate(_program(), (PARAMS, ()), PROMPTS, _request(gamma=[0, 2, 100]))
    assert int(state.statistics.accepted_nodes[0, 1:].sum()) == 0
    assert int(state.statistics.accepted_nodes[1, 3:].sum()) == 0
    np.testing.assert_array_equal(state.statistics.rounds_by_drafted[0, 0], state.statistics.rounds[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rule": Rejection()}, "GuessedTree drafts trees, Rejection judges chains"),
        ({"drafter": PromptLookup()}, "PromptLookup drafts chains, OneHotWalk judges trees"),
        ({"gammas": (3,)}, f"a tree of {NODES} nodes drafts {NODES - 1}"),
        ({"max_gamma": 3}, "exceeds max_gamma 3"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    settings = vars(_program()) | change
    with pytest.raises(ValueError, match=message):
        Program(**settings)
