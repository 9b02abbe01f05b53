"""Head drafters read the right hidden state after every round, and decoding with them is plain decoding."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.acceptance.rejection import Rejection
from specjax.acceptance.tree_one_hot import OneHotWalk
from specjax.decoding.autoregressive import autoregressive
from specjax.decoding.generate import _round, generate
from specjax.decoding.prefill import prefill
from specjax.decoding.program import Program, buffer_length
from specjax.drafters import last_feature
from specjax.drafters.blockwise import Blockwise
from specjax.drafters.medusa import Medusa, MedusaTree
from specjax.models.heads.blockwise import BlockwiseConfig
from specjax.models.heads.heads import from_config, head_params, init_network
from specjax.models.heads.medusa import MedusaConfig
from specjax.models.language_model import from_config as model_from_config
from specjax.models.language_model import init_params
from specjax.request import make_request
from specjax.testing.models import tiny_config
from specjax.types import Outcome

V, D, H = 6, 8, 3
CONFIG = tiny_config(V)
TARGET, PARAMS = model_from_config(CONFIG, ("final",)), init_params(CONFIG, 5)
IDS = np.array([0, 1, 3, 4, 5], np.int32)  # token 2 is never drafted
CHOICES = ((0,), (1,), (3,), (0, 0), (1, 1), (0, 0, 2))
PROMPTS = jnp.array([[1, 2, 3, 0], [4, 0, 0, 0], [5, 1, 0, 0], [2, 2, 4, 1]], jnp.int32)
LENGTHS = np.array([3, 1, 2, 4])
NEW = 20


def medusa():
    heads = from_config(MedusaConfig(num_heads=H, width=D, num_ids=len(IDS)))
    return heads, head_params(heads, init_network(heads.config, 0), IDS, TARGET, PARAMS)


def blockwise():
    heads = from_config(BlockwiseConfig(num_heads=H, width=D, num_ids=len(IDS), hidden_size=5))
    return heads, head_params(heads, init_network(heads.config, 0), IDS, TARGET, PARAMS)


def all_drafters():
    return {
        "medusa": (Medusa(heads=medusa()[0]), medusa()[1], Rejection()),
        "blockwise": (Blockwise(heads=blockwise()[0]), blockwise()[1], Rejection()),
        "tree": (MedusaTree(heads=medusa()[0], choices=CHOICES), medusa()[1], OneHotWalk()),
    }


def request(temperature=0.0, **more):
    settings = {"max_new_tokens": [NEW, NEW, 5, NEW], "stop_tokens": [[4], [-1], [-1], [0]], **more}
    return make_request(prompt_length=LENGTHS, seed=[3, 1, 4, 1], temperature=temperature, **settings)


def program(drafter, rule):
    gamma = drafter.num_nodes - 1 if isinstance(drafter, MedusaTree) else H
    length = buffer_length(PROMPTS.shape[1], NEW, gamma)
    return Program(
        target=TARGET, rule=rule, drafter=drafter, gammas=(gamma,), max_gamma=gamma, max_len=length
    )


@pytest.fixture(scope="module", params=["medusa", "blockwise", "tree"])
def decoded(request):
    """(gamma, asked -> the state before the first round and after every one); compiled once."""
    drafter, draft, rule = all_drafters()[request.param]
    run = program(drafter, rule)
    step = jax.jit(functools.partial(_round, run, run.gammas[0], (PARAMS, draft)))

    def decode(asked):
        states = [prefill(run, (PARAMS, draft), PROMPTS, asked)]
        while not np.all(states[-1].done):
            states.append(step(asked, states[-1]))
        return states

    return run.gammas[0], decode


def teacher_forced(tokens):
    """[S, D]: the hidden state after every token of one row."""
    return TARGET.apply(PARAMS, tokens, TARGET.init_cache(tokens.shape[0])).features[0]


def test_the_state_is_the_feature_that_gave_the_pending_token_its_law(decoded):
    """Several rounds, partial acceptance, stops, frozen rows: against a teacher-forced pass over the row."""
    gamma, decode = decoded
    states = decode(request(temperature=1.0))
    features = jax.jit(jax.vmap(teacher_forced))(states[-1].tokens)
    assert np.asarray(states[0].want).tolist() == [gamma, 0, gamma, gamma]  # one token: nothing is known
    assert int(states[1].length[1]) == 2
    emitted, differs = set(), []
    for before, after in zip([None, *states], states):
        for row in range(len(LENGTHS)):
            length = int(after.length[row])
            if length >= 2:
                np.testing.assert_allclose(
                    after.draft_state[row], features[row, length - 2], rtol=1e-4, atol=1e-5
                )
                differs.append(np.abs(after.draft_state[row] - features[row, length - 1]).max() > 1e-2)
            if before is not None:
                emitted.add(length - int(before.length[row]))
    assert len(states) > 4 and {0, 1, 2} <= emitted  # frozen, rejected at once, partly accepted
    assert np.mean(differs) > 0.5  # control: off by one is seen, but where a token repeats itself


def test_poison_past_the_emitted_tokens_is_never_read():
    rows = jnp.full((4, D), jnp.nan)
    state = jnp.arange(D, dtype=jnp.float32)
    for emitted in range(5):
        features = rows.at[max(emitted - 1, 0)].set(emitted) if emitted else rows
        outcome = Outcome(
            old_length=jnp.int32(5),
            num_emitted=jnp.int32(emitted),
            emitted=jnp.zeros((4,), jnp.int32),
            features=(features,),
        )
        expected = state if emitted == 0 else jnp.full((D,), float(emitted))
        np.testing.assert_array_equal(last_feature.after_round(state, outcome), expected)


def test_greedy_output_is_that_of_plain_decoding(decoded):
    state = decoded[1](request())[-1]
    plain = autoregressive(TARGET, PARAMS, PROMPTS, request(), rule=Rejection())
    np.testing.assert_array_equal(state.length, plain.length)
    for row, length in enumerate(plain.length):
        np.testing.assert_array_equal(state.tokens[row, :length], plain.tokens[row, :length])
    assert int(state.statistics.accepted.sum()) > 0


def test_drafts_are_the_likeliest_ids_of_each_head():
    drafter, draft, _ = all_drafters()["medusa"]
    feature = jax.random.normal(jax.random.key(2), (D,))
    scores = np.asarray(drafter.heads.scores(draft, feature, H))
    propose = lambda gamma, wanted: drafter.propose(
        (PARAMS, draft), feature, jnp.zeros(9, jnp.int32), 4, gamma, wanted, None, None, None
    )[0]
    proposal = propose(5, 5)
    assert proposal.probs is None and int(proposal.num_drafted) == H and proposal.tokens.shape == (5,)
    assert proposal.tokens[:H].tolist() == IDS[scores.argmax(axis=1)].tolist()
    assert int(propose(2, 1).num_drafted) == 1


def test_a_tree_holds_the_ranks_of_its_shape():
    drafter, draft, _ = all_drafters()["tree"]
    feature = jax.random.normal(jax.random.key(2), (D,))
    order = IDS[np.argsort(-np.asarray(drafter.heads.scores(draft, feature, H)), axis=1, kind="stable")]
    tokens = jnp.array([1, 2, 3, 0])
    proposal, _ = drafter.propose_tree((PARAMS, draft), feature, tokens, 3, jnp.int32(6), None, None, None)
    tree = proposal.tree
    expected = [3, order[0, 0], order[0, 1], order[0, 3], order[1, 0], order[1, 1], order[2, 2]]
    assert tree.tokens.tolist() == expected and tree.parent.tolist() == [0, 0, 0, 0, 1, 2, 4]
    assert drafter.num_nodes == 7 and drafter.max_depth == 3 and proposal.probs is None
    fewer, _ = drafter.propose_tree((PARAMS, draft), feature, tokens, 3, jnp.int32(2), None, None, None)
    assert fewer.tree.valid.tolist() == [True] * 3 + [False] * 4


def test_shapes_beyond_the_heads_are_refused():
    heads = medusa()[0]
    with pytest.raises(ValueError, match="4 deep, the heads reach 3"):
        MedusaTree(heads=heads, choices=((0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)))
    with pytest.raises(ValueError, match="rank 5, heads score 5 ids"):
        MedusaTree(heads=heads, choices=tuple((rank,) for rank in range(6)))
    with pytest.raises(ValueError, match="lies below"):
        MedusaTree(heads=heads, choices=((0, 0),))


def test_a_target_without_the_tap_is_told_how_to_get_it():
    drafter, draft, rule = all_drafters()["blockwise"]
    run = dataclasses.replace(program(drafter, rule), target=dataclasses.replace(TARGET, taps=()))
    with pytest.raises(ValueError, match=r'dataclasses.replace\(target, taps=\("final",\)\)'):
        generate(run, (PARAMS, draft), PROMPTS, request())
