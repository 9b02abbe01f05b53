"""Along the text that plain decoding gave, the ranks of heads' labels say what every round passes."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import greedy_text, runner
from specjax.acceptance.rejection import Rejection
from specjax.acceptance.tree_one_hot import OneHotWalk
from specjax.decoding.generate import generate
from specjax.decoding.program import Program
from specjax.drafters.medusa import Medusa, MedusaTree
from specjax.models.heads.heads import from_config, head_params, init_network
from specjax.models.heads.medusa import MedusaConfig
from specjax.models.language_model import from_config as model_from_config
from specjax.models.language_model import init_params
from specjax.request import make_request
from specjax.testing.models import tiny_config
from specjax.testing.parity import divergences
from specjax.training.heads_figures import stream_ranks
from specjax.trees.builders import expected_tokens, fixed_branching
from specjax.trees.label_ranks import path_accuracies, predicted_tau, whole
from specjax.types import PADDING

H, NEW = 3, 24
CONFIG = tiny_config(12)
TARGET, PARAMS = model_from_config(CONFIG, ("final",)), init_params(CONFIG, 0)
PARAMS["embed_tokens"] *= 20  # laws far from uniform
HEADS = from_config(MedusaConfig(num_heads=H, width=8, num_ids=9))
# Of several lengths, two of a single token; the last batch has rows of padding.
PROMPTS = [[1, 2, 3], [4], [10, 7], [6, 3, 3, 0], [0, 0, 2], [9, 7], [10, 6, 7, 11], [8, 7, 6], [6]]
BATCHES = runner.make_batches(PROMPTS, 4)
CHAIN, TREE = ((0,), (0, 0), (0, 0, 0)), fixed_branching((3, 2, 1))
DRAFTERS = {"chain": (Medusa(heads=HEADS), CHAIN), "tree": (MedusaTree(heads=HEADS, choices=TREE), TREE)}


def decode(rule, draft_params=(), **program):
    width = max(map(len, PROMPTS)) + NEW + len(TREE) + 2
    made = Program(target=TARGET, rule=rule, max_len=width, **program)
    for batch in BATCHES:
        rows = len(batch.lengths)
        new = np.where(np.arange(rows) < len(batch.index), NEW, 0)
        request = make_request(prompt_length=batch.lengths, max_new_tokens=new, seed=0, stop_tokens=[4])
        yield batch, generate(made, (PARAMS, draft_params), jnp.asarray(batch.tokens), request)


@pytest.fixture(scope="module")
def plain():
    return list(decode(Rejection()))


@pytest.fixture(scope="module")
def text(plain):
    return greedy_text.read(TARGET, PARAMS, plain)


@pytest.fixture(scope="module")
def params():
    leaves, tree = jax.tree.flatten(init_network(HEADS.config, 0))
    keys = jax.random.split(jax.random.key(7), len(leaves))
    network = jax.tree.unflatten(tree, [jax.random.normal(k, x.shape) for k, x in zip(keys, leaves)])
    return head_params(HEADS, network, np.arange(1, 10), TARGET, PARAMS)


def whole_rounds(decodes):
    """(tokens, rounds) of the rounds that begin where a draft can, H tokens or more before the end."""
    tokens = rounds = 0
    for batch, state in decodes:
        for row in range(len(batch.index)):
            end, first = int(state.length[row]), max(int(batch.lengths[row]), 2)
            numbers = np.asarray(state.trace.round)[row, first:end]
            for number in np.unique(numbers):
                emitted = int((numbers == number).sum())
                pending = first + int(np.argmax(numbers == number)) - 1
                if pending + H < end:
                    is_last = number == numbers[-1]
                    cut = int(state.statistics.cut[row]) if is_last else 0
                    tokens, rounds = tokens + emitted + cut, rounds + 1
    return tokens, rounds


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_walk_is_the_decoded_tau_to_the_last_token(name, plain, text, params):
    drafter, shape = DRAFTERS[name]
    rule = Rejection() if name == "chain" else OneHotWalk()
    gamma = len(shape)
    decodes = list(decode(rule, params, drafter=drafter, gammas=(gamma,), max_gamma=gamma))
    for (_, expected), (_, got) in zip(plain, decodes, strict=True):
        assert divergences(expected, got) == []
    tokens, rounds = whole_rounds(decodes)
    found = greedy_text.predicted(text, drafter, params, gamma)
    assert tokens > 1.3 * rounds > 10
    assert found["tau_of_ranks"] == tokens / rounds
    # Control: the same ranks at other places of the text
    ranks = stream_ranks(HEADS, params, text)
    shuffled = np.random.default_rng(0).permutation(ranks[whole(ranks)])
    elsewhere = ranks.copy()
    elsewhere[whole(ranks)] = shuffled
    assert predicted_tau(elsewhere, text.response, shape) != tokens / rounds


def test_the_text_is_what_was_decoded_from_the_last_prompt_token_on(plain, text):
    for batch, state in plain:
        for row, prompt in enumerate(batch.index):
            first = max(len(PROMPTS[prompt]) - 1, 1)
            expected = np.asarray(state.tokens)[row, first : int(state.length[row])]
            np.testing.assert_array_equal(text.tokens[text.response == prompt], expected)
    assert (text.tokens != PADDING).all() and set(text.response) == set(range(len(PROMPTS)))


def test_accuracies_count_the_places_whose_earlier_labels_are_in_the_shape(text, params):
    ranks = stream_ranks(HEADS, params, text)
    ranks = ranks[whole(ranks)]
    for shape in (CHAIN, TREE):
        table = path_accuracies(ranks, shape)
        for depth, rank in {(len(node) - 1, node[-1]) for node in shape}:
            above = {node for node in shape if len(node) == depth} or {()}
            met = [row for row in ranks if tuple(row[:depth].tolist()) in above]
            assert table[depth, rank] == pytest.approx(np.mean([row[depth] == rank for row in met]))
    # Of a chain the products add up to what a round passes that begins at any place.
    alike = 1 + np.mean([np.cumprod(row == 0).sum() for row in ranks])
    assert expected_tokens(CHAIN, path_accuracies(ranks, CHAIN)) == pytest.approx(alike)
    found = greedy_text.predicted(text, DRAFTERS["chain"][0], params, gamma=3)
    assert found["tau_of_accuracies"] == pytest.approx(alike)


def test_a_chain_longer_than_the_heads_is_cut_and_a_short_text_predicts_nothing(plain, params):
    chain = DRAFTERS["chain"][0]
    assert greedy_text.shape_of(chain, 7) == CHAIN and greedy_text.shape_of(chain, 2) == CHAIN[:2]
    short = [
        (batch, types.SimpleNamespace(tokens=state.tokens, length=batch.lengths + 1))
        for batch, state in plain
    ]
    text = greedy_text.read(TARGET, PARAMS, short)
    assert greedy_text.predicted(text, chain, params, 3) == greedy_text.NOT_PREDICTED
