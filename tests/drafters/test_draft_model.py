"""The draft model: its cache after every round, the oracle, vocabularies, its context."""

from __future__ import annotations

import dataclasses

import drafter_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import cache as kv
from specjax.acceptance import Block, Coupled, Rejection
from specjax.decoding import Program, autoregressive, generate
from specjax.drafters.model import ModelDrafter, ModelDraftState
from specjax.drafters.theory import Opposite
from specjax.models.decoder import DecoderConfig
from specjax.models.language_model import from_config, init_params
from specjax.models.table import TableLM
from specjax.processors import make_processors
from specjax.request import make_request
from specjax.testing import caches

CONFIG = DecoderConfig(
    vocab_size=11,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    max_position_embeddings=64,
)
MODEL, PARAMS = from_config(CONFIG), jax.tree.map(lambda x: x * 3, init_params(CONFIG, 1))
PROMPTS, LENGTHS = jnp.array([[1, 2, 3, 4], [5, 0, 0, 0], [7, 8, 0, 0]], jnp.int32), jnp.array([4, 1, 2])
SAMPLED = make_request(
    prompt_length=LENGTHS, max_new_tokens=12, seed=[1, 2, 3], temperature=[0.0, 1.0, 1.0], top_k=[0, 0, 4]
)


def prefilled(tokens, length):
    """The draft cache of one row, as if ``tokens[:length]`` were fed at once."""
    return kv.rewind(MODEL.apply(PARAMS, tokens, MODEL.init_cache(tokens.shape[0])).cache, length)


def rows_equal(cache, fresh, atol=1e-5):
    return float(caches.largest_difference(cache, fresh).max()) <= atol


@pytest.mark.parametrize("gamma", [0, 1, 3])
def test_cache_after_every_round_is_a_fresh_prefill(gamma):
    """Forced accept counts 0..gamma in rotation, one row frozen now and then, dead slots poisoned."""
    drafter, batch = ModelDrafter(model=MODEL), LENGTHS.shape[0]
    tokens, state, available = cases.start(drafter, (None, PARAMS), PROMPTS, LENGTHS)
    length, fresh = LENGTHS, jax.jit(jax.vmap(prefilled))
    np.testing.assert_array_equal(available, 64 - LENGTHS)
    for number in range(5):
        pending = np.asarray(length - state.cache.length)
        assert ((pending == 1) | (pending == 2)).all()
        assert rows_equal(state.cache, fresh(tokens, state.cache.length))
        args = (tokens, length, jnp.full((batch,), gamma), cases.uniforms(number, gamma, batch))
        accept = (number + jnp.arange(batch)) % (gamma + 1)
        live = jnp.array([True, True, number != 2])
        run = lambda state: cases.forced_round(
            drafter, (None, PARAMS), gamma, SAMPLED.sampling, state, *args, accept, live
        )
        rebuilt = dataclasses.replace(state, cache=fresh(tokens, state.cache.length))
        proposal, *_ = run(dataclasses.replace(state, cache=caches.poisoned(state.cache)))
        from_scratch, *_ = run(rebuilt)
        np.testing.assert_array_equal(proposal.tokens, from_scratch.tokens)
        np.testing.assert_allclose(proposal.probs, from_scratch.probs, atol=1e-5)

        before = state.cache.length
        _, state, tokens, length, available = run(state)
        np.testing.assert_array_equal(available, 64 - length)
        expected = jnp.where(live, length - jnp.where(accept == gamma, min(gamma, 1) + 1, 1), before)
        np.testing.assert_array_equal(state.cache.length, expected)


def test_catching_up_from_any_distance():
    """1 to 8 tokens pending, dead slots poisoned: the laws and the cache of one that kept up."""
    drafter, gamma, behind = ModelDrafter(model=MODEL, catch_up=3), 2, jnp.arange(1, 9)
    text = jnp.zeros((24,), jnp.int32).at[:9].set(jnp.array([3, 1, 4, 1, 5, 9, 2, 6, 5]))
    state = jax.vmap(lambda n: ModelDraftState(cache=prefilled(text, 9 - n), before=9 - n, catch_up_steps=0))(
        behind
    )
    state = dataclasses.replace(state, cache=caches.poisoned(state.cache))
    row_sampling, noise = jax.tree.map(lambda x: x[1], SAMPLED.sampling), jnp.array([0.3, 0.6])

    def row(state):
        args = (row_sampling, state, text, jnp.int32(9), jnp.int32(gamma), noise)
        return cases.propose_row(drafter, (None, PARAMS), gamma, *args)

    proposal, after = jax.jit(jax.vmap(row))(state)
    np.testing.assert_array_equal(proposal.tokens, np.tile(proposal.tokens[0], (8, 1)))
    np.testing.assert_allclose(proposal.probs, np.tile(proposal.probs[0], (8, 1, 1)), atol=1e-5)
    np.testing.assert_array_equal(after.cache.length, 9 + gamma - 1)
    np.testing.assert_array_equal(after.before, 9 - behind)
    np.testing.assert_array_equal(after.catch_up_steps, [0, 0, 1, 1, 1, 2, 2, 2])
    fresh = jax.vmap(lambda token: prefilled(text.at[9].set(token), 10))(proposal.tokens[:, 0])
    assert rows_equal(after.cache, fresh)


@pytest.mark.parametrize("gammas", [(1,), (0, 4)])
def test_every_draft_of_the_oracle_is_accepted(gammas):
    program = Program(
        target=MODEL,
        drafter=ModelDrafter(model=MODEL),
        rule=Rejection(),
        gammas=gammas,
        max_len=32,
        max_gamma=4,
    )
    request = dataclasses.replace(SAMPLED, max_new_tokens=jnp.array([12, 20, 3]))
    statistics = generate(program, (PARAMS, PARAMS), PROMPTS, request).statistics
    np.testing.assert_array_equal(statistics.accepted, statistics.tested)
    np.testing.assert_array_equal(statistics.rounds, np.ceil(request.max_new_tokens / (gammas[-1] + 1)))


def one_proposal(drafter, draft_params, temperature=1.0, top_k=0, gamma=1):
    """The proposal of a first round after the prompt [0]."""
    request = make_request(prompt_length=[1], max_new_tokens=1, seed=0, temperature=temperature, top_k=top_k)
    params, prompt = (None, draft_params), jnp.zeros((1, 1), jnp.int32)
    tokens, state, _ = cases.start(drafter, params, prompt, jnp.array([1]))
    row = jax.tree.map(lambda x: x[0], (request.sampling, state, tokens))
    noise = cases.uniforms(0, gamma, 1)[0]
    return propose(drafter, params, gamma, *row, jnp.int32(1), jnp.int32(gamma), noise)[0]


propose = jax.jit(cases.propose_row, static_argnums=(0, 2))


def table(*law):
    """A model whose next token never depends on the last one."""
    return TableLM(vocab_size=len(law)), jnp.log(jnp.tile(jnp.array(law), (len(law), 1)))


def test_q_is_reported_after_its_filter():
    """top-k 2 of q = (.1, .2, .3, .4): reporting the raw q would give the law (.75, .25, 0, 0)."""
    model, params = table(0.1, 0.2, 0.3, 0.4)
    q = one_proposal(ModelDrafter(model=model), params, top_k=2).probs[0]
    np.testing.assert_allclose(q, [0, 0, 3 / 7, 4 / 7], atol=1e-6)
    p = jnp.array([0.625, 0.375, 0, 0])
    kept = jnp.minimum(p, q)
    np.testing.assert_allclose(kept + (1 - kept.sum()) * (p - kept) / (p - kept).sum(), p, atol=1e-6)


def test_an_argmax_draft_is_one_hot_whatever_the_request():
    """q = (.6, .3, .1) as softmax beside an argmax draft would give the law (.5, .333, .167)."""
    model, params = table(0.6, 0.3, 0.1)
    for temperature in (0.0, 1.0, 3.0):
        proposal = one_proposal(ModelDrafter(model=model, temperature=0.0), params, temperature, gamma=3)
        assert proposal.probs is None
        np.testing.assert_array_equal(proposal.tokens, [0, 0, 0])


def test_own_temperature_replaces_the_sampling_of_the_request():
    model, params = table(0.1, 0.2, 0.3, 0.4)
    q = one_proposal(ModelDrafter(model=model, temperature=0.5), params, temperature=0.0, top_k=1).probs[0]
    np.testing.assert_allclose(q, np.array([1, 4, 9, 16]) / 30, atol=1e-6)


@pytest.mark.parametrize("target_size", [5, 3])
def test_vocabularies_of_different_sizes(target_size):
    """Draft of 4 outputs, the last one padding that would win; target with more ids, and with fewer."""
    model, params = table(0.1, 0.2, 0.2, 0.5)
    drafter = ModelDrafter(model=model, vocab_size=target_size, num_ids=3)
    proposal = one_proposal(drafter, params, gamma=9)
    expected = np.pad([0.2, 0.4, 0.4], (0, target_size - 3))
    np.testing.assert_allclose(proposal.probs, np.tile(expected, (9, 1)), atol=1e-6)
    assert (proposal.tokens < 3).all()
    argmax = one_proposal(dataclasses.replace(drafter, temperature=0.0), params, gamma=2)
    np.testing.assert_array_equal(argmax.tokens, [1, 1])


def test_ids_only_the_target_knows_are_still_emitted():
    model, params = table(0.5, 0.5)
    target, target_params = table(0.0, 0.0, 1.0)
    drafter = ModelDrafter(model=model, vocab_size=3)
    program = Program(target=target, drafter=drafter, rule=Rejection(), gammas=(2,), max_len=12, max_gamma=2)
    request = make_request(prompt_length=[1], max_new_tokens=4, seed=0, temperature=1.0)
    state = generate(program, (target_params, params), jnp.array([[0]]), request)
    np.testing.assert_array_equal(state.tokens[0, :5], [0, 2, 2, 2, 2])


@pytest.mark.parametrize("rule", [Rejection(), Block(), Coupled()], ids=lambda rule: type(rule).__name__)
def test_a_draft_ends_where_its_model_has_no_law(rule):
    """After 1 the draft model allows nothing. What follows is not drafted: judged by NaN, under the block
    rule it would take a prefix with it that had to be kept with probability 0.4."""
    draft = jnp.log(jnp.array([[0.5, 0.5, 0.0], [0.0, 0.0, 0.0], [0.2, 0.2, 0.6]]))
    target, target_params = table(0.5, 0.2, 0.3)
    drafter = ModelDrafter(model=TableLM(vocab_size=3))
    program = Program(target=target, drafter=drafter, rule=rule, gammas=(2,), max_len=12, max_gamma=2)
    batch = 500
    request = make_request(
        prompt_length=np.ones(batch), max_new_tokens=2, seed=np.arange(batch), temperature=1.0
    )
    state = generate(program, (target_params, draft), jnp.zeros((batch, 1), jnp.int32), request)
    statistics = jax.tree.map(np.asarray, state.statistics)
    assert np.isfinite(statistics.overlap).all()
    assert statistics.rounds_by_drafted[:, 1].sum() > 50 and statistics.accepted[:, 0].sum() > 50
    # 0.2 of 500 by the law, 0 if a draft of 1 is refused whenever the one after it has no law.
    assert 60 < int((state.tokens[:, 1] == 1).sum()) < 140


def test_a_row_all_of_whose_drafts_are_banned_is_decoded_without_them():
    """The target knows an id more. Nothing is drafted, and nothing is counted as tested."""
    target, target_params = table(0.4, 0.4, 0.2)
    drafter = ModelDrafter(model=TableLM(vocab_size=2), vocab_size=3)
    program = Program(target=target, drafter=drafter, rule=Block(), gammas=(2,), max_len=12, max_gamma=2)
    request = make_request(
        prompt_length=[1, 1], max_new_tokens=4, seed=[0, 1], temperature=1.0,
        processors=make_processors(banned_tokens=[[0, 1], []]),
    )  # fmt: skip
    state = generate(program, (target_params, jnp.zeros((2, 2))), jnp.array([[0], [0]]), request)
    assert state.tokens[0, 1:5].tolist() == [2, 2, 2, 2]
    assert np.isfinite(state.statistics.overlap).all()
    assert state.statistics.rounds_by_drafted[0].tolist() == [4, 0, 0]
    assert int(state.statistics.tested[0].sum()) == 0 and int(state.statistics.tested[1, 0]) > 0


def test_rows_past_the_context_of_the_draft_model_are_decoded_without_it():
    """Prompts of 2, 15, 16, 17 tokens, draft context 16; the first row crosses it."""
    draft = TableLM(vocab_size=cases.V, context=16)
    lengths = jnp.array([2, 15, 16, 17])
    prompts = jnp.where(jnp.arange(17) < lengths[:, None], jnp.arange(17) % cases.V, 0)
    request = make_request(prompt_length=lengths, max_new_tokens=20, seed=[1, 2, 3, 4], temperature=1.0)
    program = Program(
        target=cases.TARGET, drafter=ModelDrafter(model=draft), rule=Coupled(), gammas=(0, 3),
        max_len=48, max_gamma=3,
    )  # fmt: skip
    state = generate(program, (cases.TARGET_PARAMS, cases.DRAFT_PARAMS), prompts, request)
    plain = autoregressive(cases.TARGET, cases.TARGET_PARAMS, prompts, request, rule=Coupled(), max_len=48)
    np.testing.assert_array_equal(state.tokens, plain.tokens)
    assert (state.statistics.tested[2:] == 0).all() and (state.statistics.tested[:2, 0] > 0).all()
    assert int(state.statistics.rounds_by_drafted[1, 2:].sum()) == 0


def test_the_adversary_drafts_the_least_likely_token():
    model, params = table(0.4, 0.05, 0.55)
    adversary = ModelDrafter(model=Opposite(model=model), temperature=0.0)
    np.testing.assert_array_equal(one_proposal(adversary, params, gamma=2).tokens, [1, 1])


@pytest.mark.parametrize(
    "field", [{"temperature": -1.0}, {"temperature": float("nan")}, {"vocab_size": 0}, {"num_ids": -3}]
)
def test_bad_settings_are_refused(field):
    with pytest.raises(ValueError, match=next(iter(field))):
        ModelDrafter(model=MODEL, **field)
